"""Prices of devices per hour, and the items that a case makes for its price. Pure."""

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
    """Prices per hour in one currency.

    `per_hour`: amount by device name, or by a pattern of the whole name with * and ?. `8 x NAME` is the
    price of eight devices together.
    """

    currency: str
    per_hour: Mapping[str, float]

    def price_of(self, device: str, count: int = 1) -> float | None:
        """Price of `count` devices: the price for this number, or `count` times the price of one."""
        total = self._listed_price(device, count)
        if total is not None or count == 1:
            return total
        single = self._listed_price(device, 1)
        return None if single is None else count * single

    def _listed_price(self, device: str, count: int) -> float | None:
        """Price of this number of devices: by the exact name, or by the first matching pattern."""
        entries = [(*_split_count(name), amount) for name, amount in self.per_hour.items()]
        amounts = {pattern: amount for number, pattern, amount in entries if number == count}
        # Only * and ? are special, so the bracket is quoted.
        matching = [
            pattern for pattern in amounts if fnmatchcase(device.lower(), pattern.lower().replace("[", "[[]"))
        ]
        match = device if device in matching else next(iter(matching), None)
        return None if match is None else amounts[match]


def _split_count(name: str) -> tuple[int, str]:
    """Number of devices and name: `8 x *H100*` → 8, `*H100*`."""
    match = re.fullmatch(r"([0-9]{1,4}) ?[x×] (.+)", name)
    return (int(match[1]), match[2]) if match else (1, name)


def valid_prices(prices: Prices) -> Prices:
    """The prices, if they are valid.

    Raises UsageError for an amount that is not a price, or a missing currency.
    """
    for device, amount in prices.per_hour.items():
        if not 0 < amount < inf:
            raise UsageError(f"{amount} is not a price of {device!r}.", "A price is above zero, for an hour.")
    if prices.per_hour and not prices.currency.strip():
        raise UsageError("The prices have no currency.", EXAMPLE)
    return prices


def parse_prices(texts: Iterable[str], before: Prices | None) -> Prices | None:
    """Prices from texts `DEVICE=AMOUNT CURRENCY`, which precede those of `before`. Raises UsageError.

    A text without a currency has that of the others, or of `before`.
    """
    entries = [_parse_price(text) for text in texts]
    if not entries:
        return before
    given_currencies = {currency for _, _, currency in entries if currency}
    earlier = before or Prices(currency="", per_hour={})
    currencies = given_currencies | ({earlier.currency} if earlier.currency else set())
    if len(currencies) > 1:
        raise UsageError(f"Prices in {' and '.join(sorted(currencies))}.", "Give all in one currency.")
    amounts = {device: amount for device, amount, _ in entries}
    earlier_amounts = {device: amount for device, amount in earlier.per_hour.items() if device not in amounts}
    return valid_prices(Prices(currency="".join(currencies), per_hour=amounts | earlier_amounts))


def _parse_price(text: str) -> tuple[str, float, str]:
    match = re.fullmatch(r"(.+)= *([0-9]+(?:[.][0-9]+)?) *([^0-9\s]\S*)?", text.strip(), re.ASCII)
    if not match:
        raise UsageError(f"{text!r} is not a price.", EXAMPLE)
    return match[1].strip(), float(match[2]), match[3] or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePrice:
    """Price of an hour of a case's devices, and the items for it; all None without a price, with a reason."""

    price_per_hour: float | None = None
    currency: str | None = None
    items_per_cost: float | None = None
    reason: str = ""


FIELDS = ("price_per_hour", "currency", "items_per_cost")


def case_price(items_per_s: float | None, device: str, prices: Prices | None, count: int) -> CasePrice:
    """Price of a case on `count` of this device."""
    price = prices.price_of(device, count) if prices else None
    if prices is None or price is None:
        return CasePrice(reason=f"no price of {device or 'this device'} is given")
    if items_per_s is None:
        return CasePrice(price_per_hour=price, currency=prices.currency, reason="items_per_s is not known")
    items_per_cost = items_per_s * HOUR_S / price
    return CasePrice(price_per_hour=price, currency=prices.currency, items_per_cost=items_per_cost)
