"""`accelbench.toml`, nearest upwards: what a project wants of `check`, and what its devices cost."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from benchbench.analyse.pricing import Prices, valid_prices
from benchbench.errors import UsageError, unknown
from benchbench.plan.thresholds import Rule, fraction, rules

NAME = "accelbench.toml"


class CheckConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The `[check]` table: defaults of the options of the same names."""

    baseline: str | None = None
    max_slowdown: str | float | None = None
    metric: list[str] = []
    dedicated: bool = False


class PriceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The `[price]` table: amounts of a currency, by a device's name or a pattern of it."""

    currency: str
    per_hour: dict[str, float]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    check: CheckConfig = CheckConfig()
    thresholds: dict[str, str | float] = {}
    price: PriceConfig | None = None


def nearest(start: Path) -> Config:
    """What the file says, or the defaults without one. Raises UsageError."""
    path = find_config(start)
    return load_config(path) if path else Config()


def find_config(start: Path) -> Path | None:
    """The file in `start` or the nearest folder above it."""
    places = (folder / NAME for folder in [start.absolute(), *start.absolute().parents])
    return next((path for path in places if path.is_file()), None)


def load_config(path: Path) -> Config:
    """Raises UsageError with file and key."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Config)
        config_thresholds(found)
        default_rules(found)
        prices(found)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"Cannot read {path}: {error}", "See docs/checking.md for an example.") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", _hint(str(error))) from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}", error.hint) from error
    return found


def config_thresholds(found: Config) -> list[Rule]:
    """Of the `[thresholds]` table. Raises UsageError."""
    return rules(found.thresholds, NAME)


def default_rules(found: Config) -> list[Rule]:
    """`max-slowdown`, which is for every case that no pattern names. Raises UsageError."""
    limit = found.check.max_slowdown
    return [] if limit is None else [Rule("", fraction(str(limit)), f"{NAME} max-slowdown")]


def prices(found: Config) -> Prices | None:
    """Of the `[price]` table. Raises UsageError."""
    table = found.price
    return valid_prices(Prices(currency=table.currency, per_hour=table.per_hour)) if table else None


def _hint(message: str) -> str:
    """The nearest key to an unknown one."""
    found = re.search(r"unknown field `([^`]+)`(?: - at `([^`]*)`)?", message)
    if not found:
        return "See docs/checking.md for every key."
    tables: dict[str, type[msgspec.Struct]] = {"$.check": CheckConfig, "$.price": PriceConfig}
    kind = tables.get(found[2], Config)
    valid = [field.encode_name for field in msgspec.structs.fields(kind)]
    return unknown("keys", found[1], valid)
