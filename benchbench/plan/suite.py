"""TOML → Suite, or an error that names file, key and the valid values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchbench import registry
from benchbench.errors import SuiteError, UnreadableInput, UsageError, page, unknown
from benchbench.launch import catalogue
from benchbench.launch.catalogue import WorkloadKind
from benchbench.model.case import Cache, Dtype, Scalar
from benchbench.model.placement import Strategy
from benchbench.plan.revision import content_at
from benchbench.plan.sizes import tied
from benchbench.plan.thresholds import Rule, rules
from benchbench.plan.worlds import parse_world
from benchbench.reading import LARGEST_IN_TOML, parse_toml, read_toml
from benchbench.timing.policy import POLICIES

Axes = dict[str, list[Scalar] | Scalar]  # a key may tie names: `m=n=k`


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One workload and its axes. Each table of `cpu` or `accelerator` is a product of its lists."""

    workload: str
    dtype: list[Dtype] | None = None  # None: the suite's
    mode: list[str] | None = None  # None: what each backend's users usually run
    backend: list[str] | None = None  # None: every backend found
    cache: list[Cache] = msgspec.field(default_factory=lambda: [Cache.HOT])
    world: list[int | str] | None = None  # how many compute a step together, or which; None: as needed
    strategy: list[Strategy] | None = None  # how they divide it; None: every way that there is
    double: str = ""  # a parameter: doubled from each size on, until memory is full or nothing is gained
    cpu: list[Axes] = msgspec.field(default_factory=lambda: [{}])
    accelerator: list[Axes] = msgspec.field(default_factory=lambda: [{}])


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to measure; where, is the plan's business."""

    description: str
    cases: list[Entry]
    name: str = ""
    policy: str = "default"
    dtype: list[Dtype] = msgspec.field(default_factory=lambda: [Dtype.FLOAT32])
    thresholds: dict[str, str | float] = msgspec.field(default_factory=dict)  # of `check`: pattern → fraction


def folders() -> list[Path]:
    """Where suites are looked for: here, then those that come with accelbench."""
    package = Path(__file__).parent.parent
    places = [Path("suites"), package / "bundled_suites", package.parent / "suites"]
    return [place for place in places if os.path.isdir(place)]


def suite_names() -> list[str]:
    """Of every suite that can be run by name."""
    return sorted({path.stem for place in folders() for path in place.glob("*.toml")})


def suite_path(name: str) -> Path:
    """The file of a suite that is named, or its path. Raises UsageError."""
    path = Path(name)
    if path.suffix == ".toml":
        return path
    found = [place / f"{name}.toml" for place in folders() if os.path.isfile(place / f"{name}.toml")]
    if not found or path.name != name:
        raise UsageError(f"No suite named {name!r}.", unknown("suites", name, suite_names()))
    return found[0]


def load_suite(name: str) -> Suite:
    """A suite by name or by path. Raises SuiteError, UsageError."""
    path = suite_path(name)
    try:
        return parse_suite(read_toml(path), path)
    except UnreadableInput as error:
        raise UsageError(f"Cannot read the suite {error}", "Check the path after --suite.") from error
    except ValueError as error:
        raise SuiteError(
            f"{path} is not valid TOML: {error}", f"See {page('suites')} for an example."
        ) from error


def parse_suite(fields: dict[str, Any], path: Path) -> Suite:
    """Check every key and value. Raises SuiteError."""
    try:
        suite = msgspec.convert({"name": path.stem, **fields}, Suite)
    except msgspec.ValidationError as error:
        raise SuiteError(f"{path}: {error}", _hint(str(error))) from error
    if suite.policy not in POLICIES:
        hint = unknown("policies", suite.policy, list(POLICIES))
        raise SuiteError(f"{path}: policy {suite.policy!r} is not known.", hint)
    for number, entry in enumerate(suite.cases, 1):
        _check(entry, f"{path}, cases {number}")
    try:
        suite_thresholds(suite)
    except UsageError as error:
        raise SuiteError(f"{path}, thresholds: {error}", error.hint) from error
    return suite


def suite_thresholds(suite: Suite) -> list[Rule]:
    """Of the `[thresholds]` table; they are about this suite's cases only. Raises UsageError."""
    return rules(suite.thresholds, f"suite {suite.name}", suite.name)


def thresholds_of(name: str, revision: str = "") -> tuple[str, list[Rule]]:
    """The name of a suite, which may be given as a file, and its thresholds. Raises UsageError.

    `revision`: take what the file said at that revision of its repository, unless the suite comes with
    accelbench.
    """
    path = suite_path(name)
    is_shipped = path.suffix != Path(name).suffix and path.is_absolute()
    if not revision or is_shipped:
        suite = load_suite(name)
        return suite.name, suite_thresholds(suite)
    try:
        text = content_at(revision, path)
        fields = parse_toml(text) if text is not None else {}
        found = msgspec.convert({"name": path.stem, **fields}, _Thresholds)
    except (ValueError, UnreadableInput) as error:
        raise SuiteError(f"{path} of {revision}: {error}", f"See {page('suites')} for an example.") from error
    return found.name, rules(found.thresholds, f"suite {found.name} of {revision}", found.name)


class _Thresholds(msgspec.Struct, frozen=True):
    """What a suite says about thresholds, whatever else it says."""

    name: str
    thresholds: dict[str, str | float] = {}


def _check(entry: Entry, where: str) -> None:
    try:
        workload = catalogue.workload_named(entry.workload)
        for backend in entry.backend or []:
            if backend not in registry.entry_names("benchbench.backends"):
                valid = registry.entry_names("benchbench.backends")
                raise UsageError(f"No backend named {backend!r}.", unknown("backends", backend, valid))
        for axes in [*entry.cpu, *entry.accelerator]:
            check_params(workload, axes)
        _check_doubled(workload, entry.double)
        for world in entry.world or []:
            parse_world(world)
    except UsageError as error:
        raise SuiteError(f"{where}: {error}", error.hint) from error


def _check_doubled(workload: WorkloadKind, name: str) -> None:
    """Raise UsageError for what is no parameter, or no whole number."""
    fields = workload.fields()
    if name and type(fields.get(name)) is not int:
        sizes = [each for each, default in fields.items() if type(default) is int]
        raise UsageError(f"{name!r} cannot be doubled.", unknown("sizes", name, sizes))


def check_params(workload: WorkloadKind, axes: Mapping[str, list[Scalar] | Scalar]) -> None:
    """Raise UsageError for a parameter the workload does not have, or of another type."""
    fields = workload.fields()
    for name, values in ((name, values) for key, values in axes.items() for name in tied(key)):
        if name not in fields:
            hint = unknown("parameters", name, list(fields))
            raise UsageError(f"{workload.__name__} has no parameter {name!r}.", hint)
        for value in values if isinstance(values, list) else [values]:
            if type(value) is not type(fields[name]):
                wanted = type(fields[name]).__name__
                raise UsageError(
                    f"{name} = {value!r} should be of type {wanted}.", f"Default: {fields[name]}."
                )
            if isinstance(value, int | float) and not abs(value) <= LARGEST_IN_TOML:
                raise UsageError(
                    f"{name} = {str(value)[:20]}… is beyond {LARGEST_IN_TOML}.", "Choose a smaller one."
                )


def _hint(message: str) -> str:
    """The nearest key to an unknown one."""
    found = re.search(r"unknown field `([^`]+)`(?: - at `([^`]*)`)?", message)
    if found:
        kind = Entry if found[2] and "cases" in found[2] else Suite
        return unknown("keys", found[1], list(kind.__struct_fields__))
    if "strategy" in message:
        return f"Known strategies: {', '.join(Strategy)}."
    if "cache" in message:
        return f"Known caches: {', '.join(Cache)}."
    if "dtype" in message:
        return f"Known dtypes: {', '.join(Dtype)}."
    return f"See {page('suites')} for every key."
