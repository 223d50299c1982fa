"""`accelbench.toml`: where a project's code is, what it measures, what it checks, what its devices cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchbench import paths
from benchbench.analyse.pricing import Prices, parse_prices, valid_prices
from benchbench.errors import UnreadableInput, UsageError, unknown
from benchbench.launch.project import KEYS, NAME, CodeConfig, DataConfig, find_config
from benchbench.plan.revision import content_at
from benchbench.plan.suite import Rule, fraction, rules
from benchbench.reading import parse_toml, read_toml


class CheckConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The `[check]` table: defaults of the options of the same names."""

    baseline: str | None = None
    max_slowdown: str | float | None = None
    metric: list[str] = []
    dedicated: bool = False


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[run]` table: defaults of the options of the same names; a suite's path begins at the file."""

    suite: list[str] = []
    backend: list[str] = []


class PriceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The `[price]` table: amounts of a currency, by a device's name or a pattern of it."""

    currency: str
    per_hour: dict[str, float]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    code: CodeConfig = CodeConfig()
    data: DataConfig = DataConfig()
    run: RunConfig = RunConfig()
    check: CheckConfig = CheckConfig()
    thresholds: dict[str, str | float] = {}
    price: PriceConfig | None = None


def nearest(start: Path) -> Config:
    """What the file says, or the defaults without one. Raises UsageError."""
    path = find_config(start)
    return load_config(path) if path else Config()


def nearest_at(revision: str, start: Path) -> Config:
    """The same at a revision of the repository that `start` is in: who asks cannot have changed it."""
    whole = paths.absolute(start)
    for folder in [whole, *whole.parents]:
        text = content_at(revision, folder / NAME)
        if text is not None:
            return load_config(folder / NAME, text, f" of {revision}")
    return Config()


def load_config(path: Path, text: bytes | None = None, version: str = "") -> Config:
    """Raises UsageError with file and key. `text`: what it holds, in that `version`, if not as it is now."""
    try:
        fields = read_toml(path) if text is None else parse_toml(text)
        found = msgspec.convert(fields, Config)
        found = msgspec.structs.replace(found, run=_located(found.run, path.parent))
        config_thresholds(found)
        default_rules(found)
        prices(found)
    except UnreadableInput as error:
        raise UsageError(f"Cannot read {error}", KEYS) from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}{version}: {error}", _hint(str(error))) from error
    except ValueError as error:
        raise UsageError(f"Cannot read {path}{version}: {error}", KEYS) from error
    except UsageError as error:
        raise UsageError(f"{path}{version}: {error}", error.hint) from error
    return found


def _located(run: RunConfig, folder: Path) -> RunConfig:
    """The configuration with the paths of its suites made absolute."""
    suites = [str(folder / name) if name.endswith(".toml") else name for name in run.suite]
    return msgspec.structs.replace(run, suite=suites)


def config_thresholds(found: Config, version: str = "") -> list[Rule]:
    """The rules of the `[thresholds]` table; `version` of the file, as shown. Raises UsageError."""
    return rules(found.thresholds, f"{NAME}{version}")


def default_rules(found: Config, version: str = "") -> list[Rule]:
    """`max-slowdown`, which is for every case that no pattern names. Raises UsageError."""
    limit = found.check.max_slowdown
    return [] if limit is None else [Rule("", fraction(str(limit)), f"{NAME}{version} max-slowdown")]


def prices(found: Config) -> Prices | None:
    """The prices in the `[price]` table. Raises UsageError."""
    table = found.price
    return valid_prices(Prices(currency=table.currency, per_hour=table.per_hour)) if table else None


def known_prices(typed: Sequence[str] = ()) -> Prices | None:
    """`["*H100*=2.5 EUR"]`, then the prices of the nearest accelbench.toml. Raises UsageError."""
    return parse_prices(typed, prices(nearest(Path())))


def _hint(message: str) -> str:
    """The nearest key to an unknown one."""
    found = re.search(r"unknown field `([^`]+)`(?: - at `([^`]*)`)?", message)
    if not found:
        return KEYS
    tables: dict[str, type[msgspec.Struct]] = {
        "$.code": CodeConfig,
        "$.data": DataConfig,
        "$.run": RunConfig,
        "$.check": CheckConfig,
        "$.price": PriceConfig,
    }
    kind = tables.get(found[2], Config)
    valid = [field.encode_name for field in msgspec.structs.fields(kind)]
    return unknown("keys", found[1], valid)
