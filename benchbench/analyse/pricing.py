"""What an hour of a device costs, as its user says, and what that makes of a rate. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf

from benchbench.errors import UsageError

HOUR_S = 3600
EXAMPLE = "Write it as --price '*H100*=2.5 EUR'."


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """`per_hour`: a device's name, or a pattern of the whole name with * and ?, → amounts of `currency`.

    `8 x NAME` is what has eight of them.
    """

    currency: str
    per_hour: Mapping[str, float]

    def of(self, device: str, count: int = 1) -> float | None:
        """The price of `count` such devices: as given for so many, else `count` times the price of one."""
        together = self._given(device, count)
        if together is not None or count == 1:
            return together
        one = self._given(device, 1)
        return None if one is None else count * one

    def _given(self, device: str, count: int) -> float | None:
        """The price that was given: by the device's own name, else by the first pattern that fits."""
        counted = [(*_counted(name), amount) for name, amount in self.per_hour.items()]
        known = {pattern: amount for number, pattern, amount in counted if number == count}
        # Only * and ? are special, so the bracket is quoted.
        fitting = [
            pattern for pattern in known if fnmatchcase(device.lower(), pattern.lower().replace("[", "[[]"))
        ]
        match = device if device in fitting else next(iter(fitting), None)
        return None if match is None else known[match]


def _counted(name: str) -> tuple[int, str]:
    """`8 x *H100*` → 8, `*H100*`."""
    match = re.fullmatch(r"([0-9]{1,4}) ?[x×] (.+)", name)
    return (int(match[1]), match[2]) if match else (1, name)


def valid_prices(prices: Prices) -> Prices:
    """The prices as they are. Raises UsageError for an amount that is none, or one without a currency."""
    for device, amount in prices.per_hour.items():
        if not 0 < amount < inf:
            raise UsageError(f"{amount} is not a price of {device!r}.", "A price is above zero, for an hour.")
    if prices.per_hour and not prices.currency.strip():
        raise UsageError("The prices have no currency.", EXAMPLE)
    return prices


def parse_prices(texts: Iterable[str], before: Prices | None) -> Prices | None:
    """Prices from `DEVICE=AMOUNT CURRENCY`, more binding than `before`, which may give the currency.

    Raises UsageError.
    """
    entries = [_parsed(text) for text in texts]
    if not entries:
        return before
    named = {currency for _, _, currency in entries if currency}
    old = before or Prices(currency="", per_hour={})
    currencies = named | ({old.currency} if old.currency else set())
    if len(currencies) > 1:
        raise UsageError(f"Prices in {' and '.join(sorted(currencies))}.", "Give all in one currency.")
    amounts = {device: amount for device, amount, _ in entries}
    later = {device: amount for device, amount in old.per_hour.items() if device not in amounts}
    return valid_prices(Prices(currency="".join(currencies), per_hour=amounts | later))


def _parsed(text: str) -> tuple[str, float, str]:
    match = re.fullmatch(r"(.+)= *([0-9]+(?:[.][0-9]+)?) *([^0-9\s]\S*)?", text.strip(), re.ASCII)
    if not match:
        raise UsageError(f"{text!r} is not a price.", EXAMPLE)
    return match[1].strip(), float(match[2]), match[3] or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePrice:
    """The price of an hour of a case's devices, and the items it buys; all None without a price, and why."""

    price_per_hour: float | None = None
    currency: str | None = None
    items_per_cost: float | None = None
    reason: str = ""


FIELDS = ("price_per_hour", "currency", "items_per_cost")


def priced(items_per_s: float | None, device: str, prices: Prices | None, count: int = 1) -> CasePrice:
    """The price of a case on so many of this device."""
    price = prices.of(device, count) if prices else None
    if prices is None or price is None:
        return CasePrice(reason=f"no price of {device or 'this device'} is given")
    if items_per_s is None:
        return CasePrice(price_per_hour=price, currency=prices.currency, reason="items_per_s is not known")
    items_per_cost = items_per_s * HOUR_S / price
    return CasePrice(price_per_hour=price, currency=prices.currency, items_per_cost=items_per_cost)
