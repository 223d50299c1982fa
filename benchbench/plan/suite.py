"""Read suites from TOML, and narrow them by the options of the command line.

This module expands a suite's axes into points, and collects thresholds with their sources.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from benchbench import registry
from benchbench.errors import SuiteError, UnreadableInput, UsageError, page, unknown
from benchbench.launch import catalogue
from benchbench.launch.catalogue import WorkloadKind
from benchbench.launch.user_models import UserModel
from benchbench.machine.variables import check_variable
from benchbench.model.case import Cache, Dtype, Phase, Scalar
from benchbench.model.options import OPTIONS, TIE, Rule, number_of_threads, tied_names
from benchbench.model.placement import NAME_SEPARATOR, Strategy
from benchbench.model.run import RunInfo
from benchbench.plan.revision import content_at
from benchbench.reading import LARGEST_IN_TOML, parse_toml, read_toml
from benchbench.timing.policy import POLICIES

Axes = Mapping[str, list[Scalar] | Scalar]  # a key may tie names: `m=n=k`
MOST_CASES = 10_000  # a day, at eight seconds per case
MOST_DEVICES = 1024
WORLD_HINT = "Write --world 2, --world 1,2,4, --world cuda:0+cuda:1 or --world cpu+cpu."


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One workload and its axes. Each table of `cpu` or `accelerator` is a product of its lists."""

    workload: str
    dtype: list[Dtype] | None = None  # None: those of the suite
    mode: list[str] | None = None  # None: the default mode of each backend
    backend: list[str] | None = None  # None: every available backend
    cache: list[Cache] = msgspec.field(default_factory=lambda: [Cache.HOT])
    world: list[int | str] | None = None  # number or names of devices that share a step; None: the workload's
    strategy: list[Strategy] | None = None  # how devices divide a step; None: every supported strategy
    threads: list[int] | None = None  # CPU threads, a case for each; None: as in `--threads`
    cpu: list[Axes] = msgspec.field(default_factory=lambda: [{}])
    accelerator: list[Axes] = msgspec.field(default_factory=lambda: [{}])


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cases to measure, independent of targets and devices."""

    description: str
    cases: list[Entry]
    name: str = ""
    policy: str = "default"
    dtype: list[Dtype] = msgspec.field(default_factory=lambda: [Dtype.FLOAT32])
    thresholds: dict[str, str | float] = msgspec.field(
        default_factory=dict
    )  # for `check`: pattern → fraction


@dataclass(frozen=True, slots=True)
class Selection:
    """Options that narrow or override a suite; empty means no change."""

    workloads: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    backends: tuple[str, ...] = ()  # named ones are reported even if they are not installed
    devices: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    modes: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    params: dict[str, list[Scalar]] = field(default_factory=dict)
    environments: tuple[Mapping[str, str], ...] = ({},)  # each case is planned for all of them
    worlds: tuple[str, ...] = ()  # numbers of devices, or names of them
    strategies: tuple[Strategy, ...] = ()
    threads: tuple[
        int, ...
    ] = ()  # several numbers create cases; one is a setting, unless the suite compares several
    takes_lossy: bool = False  # include lossy engines for a user's model
    launched: bool = False  # started by a launcher, so the first rank may not see all devices
    hosts: int = 1  # number of hosts of a world of several devices


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """Number of devices of a world, optionally starting at the first device of `kind`, or exactly `names`."""

    devices: int
    kind: str = ""
    names: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """Name or kind of the first device; empty for any."""
        return self.names[0] if self.names else self.kind


def folders() -> list[Path]:
    """Folders with suites: in the working folder, then those of accelbench."""
    package = Path(__file__).parent.parent
    candidates = [Path("suites"), package / "bundled_suites", package.parent / "suites"]
    return [folder for folder in candidates if os.path.isdir(folder)]


def suite_names() -> list[str]:
    """Names of all suites in these folders."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.toml")})


MODEL_SUITE = "own"  # suite of the user's models
DEFAULTS = "defaults"  # suite of workloads that no suite contains


def model_suite(models: Sequence[str]) -> Suite:
    """Create the suite of a user's models, with their default sizes and dtypes."""
    kinds = {name: catalogue.workload_named(name) for name in models}
    entries = [
        Entry(workload=name, dtype=[kind.dtype] if isinstance(kind, UserModel) else None)
        for name, kind in kinds.items()
    ]
    return Suite(description="your models", cases=entries, name=MODEL_SUITE)


def suite_path(name: str) -> Path:
    """File of a suite given by name or path. Raises UsageError."""
    path = Path(name)
    if path.suffix == ".toml":
        return path
    files = [folder / f"{name}.toml" for folder in folders() if os.path.isfile(folder / f"{name}.toml")]
    if not files or path.name != name:
        raise UsageError(f"No suite named {name!r}.", unknown("suites", name, suite_names()))
    return files[0]


def load_suite(name: str) -> Suite:
    """Load a suite by name or path. Raises SuiteError, UsageError."""
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


def _check(entry: Entry, location: str) -> None:
    try:
        workload = catalogue.workload_named(entry.workload)
        for backend in entry.backend or []:
            if backend not in registry.entry_names("benchbench.backends"):
                valid = registry.entry_names("benchbench.backends")
                raise UsageError(f"No backend named {backend!r}.", unknown("backends", backend, valid))
        for axes in [*entry.cpu, *entry.accelerator]:
            check_params(workload, axes)
        for world in entry.world or []:
            parse_world(world)
        for threads in entry.threads or []:
            number_of_threads(str(threads))
    except UsageError as error:
        raise SuiteError(f"{location}: {error}", error.hint) from error


def check_params(workload: WorkloadKind, axes: Axes) -> None:
    """Raise UsageError for an unknown parameter or a value of the wrong type."""
    fields = workload.fields()
    for name, values in ((name, values) for key, values in axes.items() for name in tied_names(key)):
        if name not in fields:
            hint = unknown("parameters", name, list(fields))
            raise UsageError(f"{workload.__name__} has no parameter {name!r}.", hint)
        for value in values if isinstance(values, list) else [values]:
            if type(value) is not type(fields[name]):
                expected = type(fields[name]).__name__
                raise UsageError(
                    f"{name} = {value!r} should be of type {expected}.", f"Default: {fields[name]}."
                )
            if isinstance(value, int | float) and not abs(value) <= LARGEST_IN_TOML:
                raise UsageError(
                    f"{name} = {str(value)[:20]}… is beyond {LARGEST_IN_TOML}.", "Choose a smaller one."
                )


def _hint(message: str) -> str:
    """Suggest the nearest valid key or values."""
    match = re.search(r"unknown field `([^`]+)`(?: - at `([^`]*)`)?", message)
    if match:
        kind = Entry if match[2] and "cases" in match[2] else Suite
        return unknown("keys", match[1], list(kind.__struct_fields__))
    if "strategy" in message:
        return f"Known strategies: {', '.join(Strategy)}."
    if "cache" in message:
        return f"Known caches: {', '.join(Cache)}."
    if "dtype" in message:
        return f"Known dtypes: {', '.join(Dtype)}."
    return f"See {page('suites')} for every key."


def suite_thresholds(suite: Suite) -> list[Rule]:
    """Rules of the suite's `[thresholds]` table, for its cases only. Raises UsageError."""
    return rules(suite.thresholds, f"suite {suite.name}", suite.name)


def thresholds_of(name: str, revision: str = "") -> tuple[str, list[Rule]]:
    """Name and thresholds of a suite, given by name or file. Raises UsageError.

    `revision`: read the file at that revision of its repository, unless the suite belongs to accelbench.
    """
    path = suite_path(name)
    is_shipped = path.suffix != Path(name).suffix and path.is_absolute()
    if not revision or is_shipped:
        suite = load_suite(name)
        return suite.name, suite_thresholds(suite)
    try:
        text = content_at(revision, path)
        fields = parse_toml(text) if text is not None else {}
        suite_fields = msgspec.convert({"name": path.stem, **fields}, _Thresholds)
    except (ValueError, UnreadableInput) as error:
        raise SuiteError(f"{path} of {revision}: {error}", f"See {page('suites')} for an example.") from error
    return suite_fields.name, rules(
        suite_fields.thresholds, f"suite {suite_fields.name} of {revision}", suite_fields.name
    )


class _Thresholds(msgspec.Struct, frozen=True):
    """The fields of a suite that thresholds need."""

    name: str
    thresholds: dict[str, str | float] = {}


def rules(table: Mapping[str, str | float], source: str, suite: str = "") -> list[Rule]:
    """Rules of a `[thresholds]` table. Raises UsageError for an invalid fraction."""
    return [
        Rule(pattern, fraction(str(value)), f"{source} {pattern!r}", suite)
        for pattern, value in table.items()
    ]


def fraction(text: str) -> float:
    """Parse `5%` or `0.05`. Raises UsageError."""
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"{text!r} is not between 0% and 100%.", "Write three per cent as 3% or 0.03.")
    return value


def select(suites: Sequence[Suite], selection: Selection) -> list[tuple[str, Entry]]:
    """Select (suite's name, entry) by the options of the command line. Raises UsageError.

    A named workload that the suites do not have for CPUs or for accelerators is added there at its default
    size.
    """
    entries = [
        (suite.name, entry if entry.dtype else _with_changes(entry, dtype=suite.dtype))
        for suite in suites
        for entry in suite.cases
        if not selection.workloads or entry.workload in selection.workloads
    ]
    for name in selection.workloads:
        catalogue.workload_named(name)
        matching = [entry for _, entry in entries if entry.workload == name]
        cpu: list[Axes] = [] if any(entry.cpu for entry in matching) else [{}]
        accelerator: list[Axes] = [] if any(entry.accelerator for entry in matching) else [{}]
        if cpu or accelerator:
            default_entry = Entry(workload=name, dtype=[Dtype.FLOAT32], cpu=cpu, accelerator=accelerator)
            entries.append((DEFAULTS, default_entry))
    return _override_entries(_of_phases(entries, selection.phases), selection)


def _of_phases(entries: list[tuple[str, Entry]], phases: Sequence[Phase]) -> list[tuple[str, Entry]]:
    """Entries with one of the phases. Raises UsageError if there are none."""
    kinds = {entry.workload: entry_workload(entry) for _, entry in entries}
    matching = [
        suite_and_entry
        for suite_and_entry in entries
        if not phases or kinds[suite_and_entry[1].workload].phase in phases
    ]
    if not matching and entries:
        models = [kind for kind in kinds.values() if isinstance(kind, UserModel)]
        phases_present = ", ".join(dict.fromkeys(kind.phase for kind in kinds.values()))
        raise UsageError(
            f"None of the selected workloads has the phase {' or '.join(phases)}.",
            models[0].training_hint if models and Phase.TRAIN in phases else f"They have {phases_present}.",
        )
    return matching


def _override_entries(entries: list[tuple[str, Entry]], selection: Selection) -> list[tuple[str, Entry]]:
    parameter_names = {name for _, entry in entries for name in entry_workload(entry).fields()}
    for name in (name for key in selection.params for name in tied_names(key)):
        if name not in parameter_names:
            hint = _parameter_hint(name, sorted(parameter_names))
            raise UsageError(f"No selected workload has a parameter {name!r}.", hint)
    return [(suite, _override(entry, selection)) for suite, entry in entries]


def _parameter_hint(name: str, parameters: list[str]) -> str:
    """Hint for an unknown parameter: another option's name, a workload's, or the most similar parameter."""
    if name in catalogue.workload_names():
        return f"{name} is a workload: -w {name} selects it. {unknown('parameters', name, parameters)}"
    options = [flag.names for option in OPTIONS.values() for flag in option.flags]
    for names in options:
        if name in {flag_name.lstrip("-") for flag_name in names}:
            return f"{name} is an option of its own: {names[-1]}. Known parameters: {', '.join(parameters)}."
    return unknown("parameters", name, parameters)


def _override(entry: Entry, selection: Selection) -> Entry:
    workload = entry_workload(entry)
    params = select_params(selection.params, workload.fields())
    check_params(workload, params)
    return _with_changes(
        entry,
        dtype=list(selection.dtypes) or entry.dtype,
        mode=list(selection.modes) or entry.mode,
        cache=list(selection.caches) or entry.cache,
        world=list(selection.worlds) or entry.world,
        strategy=list(selection.strategies) or entry.strategy,
        threads=chosen_threads(entry.threads, selection.threads),
        cpu=[override_axes(axes, params) for axes in entry.cpu],
        accelerator=[override_axes(axes, params) for axes in entry.accelerator],
    )


def chosen_threads(suite_threads: list[int] | None, requested: tuple[int, ...]) -> list[int] | None:
    """Numbers of threads that create cases; a single one is a setting of the run."""
    return list(requested) if len(requested) > 1 or (requested and suite_threads) else suite_threads


def implied_sizes(info: RunInfo) -> Iterator[str]:
    """Name the sizes that come from a suite which the user did not name.

    For workloads selected by name: `resnet50_infer: sizes of the suite quick: image=128 (default 224)`.
    """
    if not any(word.startswith(("-w", "--workload")) for word in info.command):
        return
    typed = {part for word in info.command for part in word.rpartition("=")[2].split(",")}
    sizes: dict[tuple[str, str], dict[str, None]] = {}
    for case in info.plan:
        if not case.is_call and case.suite not in (*typed, MODEL_SUITE):
            changed = sizes.setdefault((case.workload, case.suite), {})
            for name, default in _defaults(case.workload).items():
                if name not in typed_names(info.command) and case.params.get(name, default) != default:
                    changed[f"{name}={case.params[name]} (default {default})"] = None
    for (workload, suite), changed in sizes.items():
        if changed:
            yield f"{workload}: sizes of the suite {suite}: {', '.join(changed)}"


def _defaults(workload: str) -> dict[str, Scalar]:
    """The default sizes of a workload; none if it no longer exists."""
    with suppress(UsageError):
        return catalogue.workload_named(workload).fields()
    return {}


def typed_names(command: Sequence[str]) -> set[str]:
    """The parameters that a command sets: `-p m=n=64` sets m and n."""
    return {name for word in command for name in word.split("=")[:-1]}


def entry_workload(entry: Entry) -> WorkloadKind:
    return catalogue.workload_named(entry.workload)


def _with_changes(entry: Entry, **changes: object) -> Entry:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Entry(**{**fields, **changes})


def environments(values_by_name: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], ...]:
    """Combinations of the values of variables; the value "" leaves a variable unset. Raises UsageError."""
    for name in values_by_name:
        check_variable(name)
    check_count(math.prod(map(len, values_by_name.values())))
    combinations = itertools.product(*values_by_name.values())
    return tuple(
        {name: value for name, value in zip(values_by_name, values, strict=True) if value}
        for values in combinations
    )


def points(axes: Axes) -> Iterator[dict[str, Scalar]]:
    """Yield the product of the lists; tied names have the same value at every point."""
    lists = [values if isinstance(values, list) else [values] for values in axes.values()]
    for point in itertools.product(*lists):
        yield {name: value for key, value in zip(axes, point, strict=True) for name in tied_names(key)}


def point_count(axes: Axes) -> int:
    """Number of points, without creating them."""
    return math.prod(len(values) if isinstance(values, list) else 1 for values in axes.values())


def check_count(count: int) -> None:
    """Raise UsageError for too many cases."""
    if count > MOST_CASES:
        hint = "Narrow it with -w, -b, -d, --dtype or -p, or divide the suite."
        raise UsageError(f"The selection has {count:,} cases; a run can have {MOST_CASES:,}.", hint)


def override_axes(axes: Axes, overrides: Axes) -> dict[str, list[Scalar] | Scalar]:
    """Replace the values of `axes` by `overrides`."""
    changed_names = {name for key in overrides for name in tied_names(key)}
    remaining = {
        TIE.join(name for name in tied_names(key) if name not in changed_names): axes[key] for key in axes
    }
    return {**{key: values for key, values in remaining.items() if key}, **overrides}


def select_params(params: Mapping[str, list[Scalar]], fields: Collection[str]) -> dict[str, list[Scalar]]:
    """Select the parameters that a workload with these fields has."""
    params_of_workload = {
        TIE.join(name for name in tied_names(key) if name in fields): values for key, values in params.items()
    }
    return {key: values for key, values in params_of_workload.items() if key}


def parse_world(text: int | str) -> WorldSpec:
    """Parse `2`, `cuda:0+cuda:1`, or a kind repeated per device: `cpu+cpu`. Raises UsageError."""
    words = str(text).split(NAME_SEPARATOR)
    if len(words) == 1 and words[0].isascii() and words[0].removeprefix("-").isdigit():
        return WorldSpec(devices=_checked_count(int(words[0])))
    kinds = {word.partition(":")[0] for word in words}
    if len(kinds) > 1 or not min(kinds)[:1].isalpha():
        raise UsageError(f"{text!r} is neither a number of devices nor devices of one kind.", WORLD_HINT)
    if set(words) == kinds:
        return WorldSpec(devices=_checked_count(len(words)), kind=words[0])
    if len(set(words)) < len(words) or not all(word.partition(":")[2].isdecimal() for word in words):
        raise UsageError(f"{text!r} does not name different devices of one kind.", WORLD_HINT)
    return WorldSpec(devices=_checked_count(len(words)), names=tuple(words))


def _checked_count(devices: int) -> int:
    if not 1 <= devices <= MOST_DEVICES:
        raise UsageError(
            f"A world of {devices} devices cannot be measured.",
            f"Give 1 to {MOST_DEVICES}, as in --world 1,2,4.",
        )
    return devices


def nonadjacent_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names, or none if the devices are consecutive: then the first one and their number suffice."""
    numbers = [int(name.partition(":")[2]) for name in names]
    return tuple(names) if any(after != before + 1 for before, after in pairwise(numbers)) else ()
