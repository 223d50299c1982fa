"""Read `accelbench.toml`: a project's code, default suites and backends, checks, thresholds and prices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchbench import paths
from benchbench.analyse.pricing import Prices, parse_prices, valid_prices
from benchbench.errors import UnreadableInput, UsageError, unknown
from benchbench.launch.project import KEYS, NAME, CodeConfig, DataConfig, find_config
from benchbench.model.options import Rule
from benchbench.plan.revision import content_at
from benchbench.plan.suite import fraction, rules
from benchbench.reading import parse_toml, read_toml


class CheckConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The `[check]` table: defaults of options."""

    baseline: str | None = None
    max_slowdown: str | float | None = None
    metric: list[str] = []
    dedicated: bool = False


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[run]` table: defaults of options. Paths of suites and models are relative to the file."""

    suite: list[str] = []
    model: list[str] = []
    backend: list[str] = []


class PriceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The `[price]` table: prices by device name or pattern."""

    currency: str
    per_hour: dict[str, float]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of the file."""

    code: CodeConfig = CodeConfig()
    data: DataConfig = DataConfig()
    run: RunConfig = RunConfig()
    check: CheckConfig = CheckConfig()
    thresholds: dict[str, str | float] = {}
    price: PriceConfig | None = None


def nearest(start: Path) -> Config:
    """Read the nearest file, or return the defaults without one. Raises UsageError."""
    path = find_config(start)
    return load_config(path) if path else Config()


def nearest_at(revision: str, start: Path) -> Config:
    """Read the nearest file at a revision, so that a change under test cannot alter it. Raises UsageError."""
    start_folder = paths.absolute(start)
    for folder in [start_folder, *start_folder.parents]:
        text = content_at(revision, folder / NAME)
        if text is not None:
            return load_config(folder / NAME, text, f" of {revision}")
    return Config()


def load_config(path: Path, text: bytes | None = None, version: str = "") -> Config:
    """Read a file. `text`: its content at `version`, if not the current one. Raises UsageError with file and
    key.
    """
    try:
        fields = read_toml(path) if text is None else parse_toml(text)
        config = msgspec.convert(fields, Config)
        config = msgspec.structs.replace(config, run=_with_absolute_paths(config.run, path.parent))
        config_thresholds(config)
        default_rules(config)
        prices(config)
    except UnreadableInput as error:
        raise UsageError(f"Cannot read {error}", KEYS) from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}{version}: {error}", _hint(str(error))) from error
    except ValueError as error:
        raise UsageError(f"Cannot read {path}{version}: {error}", KEYS) from error
    except UsageError as error:
        raise UsageError(f"{path}{version}: {error}", error.hint) from error
    return config


def _with_absolute_paths(run: RunConfig, folder: Path) -> RunConfig:
    """Make the paths of suites and models absolute."""
    suites = [str(folder / name) if name.endswith(".toml") else name for name in run.suite]
    models = [str(folder / name) for name in run.model]
    return msgspec.structs.replace(run, suite=suites, model=models)


def config_thresholds(config: Config, version: str = "") -> list[Rule]:
    """Rules of the `[thresholds]` table; `version`: of the file, for messages. Raises UsageError."""
    return rules(config.thresholds, f"{NAME}{version}")


def default_rules(config: Config, version: str = "") -> list[Rule]:
    """Rule of `max-slowdown`, for cases that no pattern names. Raises UsageError."""
    limit = config.check.max_slowdown
    return [] if limit is None else [Rule("", fraction(str(limit)), f"{NAME}{version} max-slowdown")]


def prices(config: Config) -> Prices | None:
    table = config.price
    return valid_prices(Prices(currency=table.currency, per_hour=table.per_hour)) if table else None


def known_prices(typed: Sequence[str] = ()) -> Prices | None:
    """Prices that were typed, such as `["*H100*=2.5 EUR"]`, then those of the nearest file. Raises
    UsageError.
    """
    return parse_prices(typed, prices(nearest(Path())))


def _hint(message: str) -> str:
    """Suggest the nearest valid key."""
    match = re.search(r"unknown field `([^`]+)`(?: - at `([^`]*)`)?", message)
    if not match:
        return KEYS
    tables: dict[str, type[msgspec.Struct]] = {
        "$.code": CodeConfig,
        "$.data": DataConfig,
        "$.run": RunConfig,
        "$.check": CheckConfig,
        "$.price": PriceConfig,
    }
    kind = tables.get(match[2], Config)
    valid = [field.encode_name for field in msgspec.structs.fields(kind)]
    return unknown("keys", match[1], valid)
