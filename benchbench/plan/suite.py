"""Suites: TOML → Suite, or an error that names file, key and the valid values; what the command line narrows.

A suite's axes are unfolded into points here; its thresholds say how much slower a case may become, and who
said so.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from benchbench import registry
from benchbench.errors import SuiteError, UnreadableInput, UsageError, page, unknown
from benchbench.launch import catalogue
from benchbench.launch.catalogue import WorkloadKind
from benchbench.launch.own_models import OwnModel
from benchbench.machine.variables import check_variable
from benchbench.model.case import Cache, Case, Dtype, Phase, Scalar
from benchbench.model.options import TIE, number_of_threads, tied
from benchbench.model.placement import NAMES, Strategy
from benchbench.model.run import RunInfo
from benchbench.plan.revision import content_at
from benchbench.reading import LARGEST_IN_TOML, parse_toml, read_toml
from benchbench.timing.policy import POLICIES

Axes = Mapping[str, list[Scalar] | Scalar]  # a key may tie names: `m=n=k`
MOST_CASES = 10_000  # a day, at eight seconds each
MOST_DEVICES = 1024
WORLD_HINT = "Write --world 2, --world 1,2,4, --world cuda:0+cuda:1 or --world cpu+cpu."


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One workload and its axes. Each table of `cpu` or `accelerator` is a product of its lists."""

    workload: str
    dtype: list[Dtype] | None = None  # None: the suite's
    mode: list[str] | None = None  # None: what each backend's users usually run
    backend: list[str] | None = None  # None: every backend found
    cache: list[Cache] = msgspec.field(default_factory=lambda: [Cache.HOT])
    world: list[int | str] | None = None  # how many compute a step together, or which; None: as needed
    strategy: list[Strategy] | None = None  # how they divide it; None: every way that there is
    threads: list[int] | None = None  # CPU threads, a case with each; None: as many as `--threads` says
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


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern`: part of a case's id, or one with * and ?. `suite`: of its cases only; empty: of all."""

    pattern: str
    value: float  # 0.05: 5%
    source: str
    suite: str = ""

    def names(self, suite: str, case: str) -> bool:
        """Whether the rule is about this case."""
        return self.suite in ("", suite) and fnmatchcase(case, f"*{self.pattern}*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A fraction, and where it comes from."""

    value: float
    source: str


DEFAULT = Rule("", 0.05, "default")  # sessions of one machine differ by some per cent


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line narrows or overrides; empty means all the suite says."""

    workloads: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    backends: tuple[str, ...] = ()  # that were named: of others, those that are not installed are not told
    devices: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    modes: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    params: dict[str, list[Scalar]] = field(default_factory=dict)
    environments: tuple[Mapping[str, str], ...] = ({},)  # each case is planned in every one
    worlds: tuple[str, ...] = ()  # numbers of devices, or names of them
    strategies: tuple[Strategy, ...] = ()
    threads: tuple[int, ...] = ()  # several make cases; one is a setting, but of what compares several
    takes_lossy: bool = False  # engines that lose precision compete, of a user's model
    launched: bool = False  # by a launcher: each rank sees the devices that it was given, the first not all
    hosts: int = 1  # on which the devices of a world of several lie


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """So many devices from any that is chosen on; with `kind`, from the first of that kind on; or `names`."""

    devices: int
    kind: str = ""
    names: tuple[str, ...] = ()

    @property
    def first(self) -> str:
        """The name or kind of its first device, empty where any will do."""
        return self.names[0] if self.names else self.kind


def folders() -> list[Path]:
    """Where suites are looked for: here, then those that come with accelbench."""
    package = Path(__file__).parent.parent
    places = [Path("suites"), package / "bundled_suites", package.parent / "suites"]
    return [place for place in places if os.path.isdir(place)]


def suite_names() -> list[str]:
    """The names of all suites that can be run by name."""
    return sorted({path.stem for place in folders() for path in place.glob("*.toml")})


OWN_SUITE = "own"  # of the user's models
DEFAULTS = "defaults"  # of workloads that no suite names


def own_suite(models: Sequence[str]) -> Suite:
    """The suite of a user's models, each at its own sizes and in its own dtype."""
    kinds = {name: catalogue.workload_named(name) for name in models}
    entries = [
        Entry(workload=name, dtype=[kind.dtype] if isinstance(kind, OwnModel) else None)
        for name, kind in kinds.items()
    ]
    return Suite(description="models of yours", cases=entries, name=OWN_SUITE)


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


def _check(entry: Entry, where: str) -> None:
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
        present = catalogue.former_names().get(entry.workload)
        hint = f"It was renamed: {present}" if present else error.hint
        raise SuiteError(f"{where}: {error}", hint) from error


def check_params(workload: WorkloadKind, axes: Axes) -> None:
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


def suite_thresholds(suite: Suite) -> list[Rule]:
    """The rules of its `[thresholds]` table, about this suite's cases only. Raises UsageError."""
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


def threshold(suite: str, case: str, rules: Iterable[Rule]) -> Threshold:
    """The threshold of a case: the first of `rules` that names it, else the default."""
    found = next((rule for rule in rules if rule.names(suite, case)), DEFAULT)
    return Threshold(found.value, found.source)


def rules(table: Mapping[str, str | float], source: str, suite: str = "") -> list[Rule]:
    """The rules of a `[thresholds]` table. Raises UsageError for a value that is no fraction."""
    return [
        Rule(pattern, fraction(str(value)), f"{source} {pattern!r}", suite)
        for pattern, value in table.items()
    ]


def fraction(text: str) -> float:
    """`5%` and `0.05` → 0.05. Raises UsageError."""
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found < 1:
        raise UsageError(f"{text!r} is not between 0% and 100%.", "Write three per cent as 3% or 0.03.")
    return found


def select(suites: Sequence[Suite], selection: Selection) -> list[tuple[str, Entry]]:
    """(suite's name, entry) for what the command line leaves of the suites. Raises UsageError.

    A workload named on the command line that no suite holds, or none on CPUs or on accelerators, is added
    there at its default size.
    """
    entries = [
        (suite.name, entry if entry.dtype else _changed(entry, dtype=suite.dtype))
        for suite in suites
        for entry in suite.cases
        if not selection.workloads or entry.workload in selection.workloads
    ]
    for name in selection.workloads:
        catalogue.workload_named(name)
        held = [entry for _, entry in entries if entry.workload == name]
        cpu: list[Axes] = [] if any(entry.cpu for entry in held) else [{}]
        accelerator: list[Axes] = [] if any(entry.accelerator for entry in held) else [{}]
        if cpu or accelerator:
            usual = Entry(workload=name, dtype=[Dtype.FLOAT32], cpu=cpu, accelerator=accelerator)
            entries.append((DEFAULTS, usual))
    return _overridden(_of_phases(entries, selection.phases), selection)


def _of_phases(entries: list[tuple[str, Entry]], phases: Sequence[Phase]) -> list[tuple[str, Entry]]:
    """The entries whose step is of such a phase. Raises UsageError where none is."""
    kinds = {entry.workload: entry_workload(entry) for _, entry in entries}
    found = [each for each in entries if not phases or kinds[each[1].workload].phase in phases]
    if not found and entries:
        models = [kind for kind in kinds.values() if isinstance(kind, OwnModel)]
        there = ", ".join(dict.fromkeys(kind.phase for kind in kinds.values()))
        raise UsageError(
            f"Nothing that was chosen has a step of the phase {' or '.join(phases)}.",
            models[0].how_to_train if models and Phase.TRAIN in phases else f"What was chosen has {there}.",
        )
    return found


def _overridden(entries: list[tuple[str, Entry]], selection: Selection) -> list[tuple[str, Entry]]:
    known = {name for _, entry in entries for name in entry_workload(entry).fields()}
    for name in (name for key in selection.params for name in tied(key)):
        if name not in known:
            hint = unknown("parameters", name, sorted(known))
            raise UsageError(f"No selected workload has a parameter {name!r}.", hint)
    return [(suite, _override(entry, selection)) for suite, entry in entries]


def _override(entry: Entry, selection: Selection) -> Entry:
    workload = entry_workload(entry)
    own = of_fields(selection.params, workload.fields())
    check_params(workload, own)
    return _changed(
        entry,
        dtype=list(selection.dtypes) or entry.dtype,
        mode=list(selection.modes) or entry.mode,
        cache=list(selection.caches) or entry.cache,
        world=list(selection.worlds) or entry.world,
        strategy=list(selection.strategies) or entry.strategy,
        threads=chosen_threads(entry.threads, selection.threads),
        cpu=[overridden(axes, own) for axes in entry.cpu],
        accelerator=[overridden(axes, own) for axes in entry.accelerator],
    )


def chosen_threads(own: list[int] | None, asked: tuple[int, ...]) -> list[int] | None:
    """The numbers of threads that make cases of their own; a single one is the setting of the whole run."""
    return list(asked) if len(asked) > 1 or (asked and own) else own


def sizes_left_behind(
    suites: Sequence[Suite], selection: Selection, planned: Sequence[Case]
) -> Iterator[str]:
    """`gemm: n=512 k=512 stay while m changes: …`: what is as it was beside a size that was as large."""
    found: dict[tuple[str, ...], None] = {}
    for entry in (entry for suite in suites for entry in suite.cases):
        workload = entry_workload(entry)
        own = of_fields(selection.params, workload.fields())
        for axes in [*entry.cpu, *entry.accelerator]:
            names = left_behind(axes, own, workload.fields())
            found |= {(entry.workload, *each): None for each in names}
    for workload_name, key, *others in found:
        cases = [case for case in planned if case.workload == workload_name]
        kept = dict.fromkeys(f"{other}={case.params[other]}" for case in cases for other in others)
        if kept:
            together = TIE.join((key, *others))
            yield f"{workload_name}: {' '.join(kept)} stay while {key} changes: -p {together}=… changes all"


def implied_sizes(info: RunInfo) -> Iterator[str]:
    """`resnet50_infer: sizes of the suite quick: image=128 (default 224)`.

    For each workload that was chosen by name, and whose sizes are those of a suite that nobody named.
    """
    if not any(word.startswith(("-w", "--workload")) for word in info.command):
        return
    typed = {part for word in info.command for part in word.rpartition("=")[2].split(",")}
    sizes: dict[tuple[str, str], dict[str, None]] = {}
    for case in info.plan:
        if not case.is_call and case.suite not in (*typed, OWN_SUITE):
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


def _changed(entry: Entry, **changes: object) -> Entry:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Entry(**{**fields, **changes})


def environments(chosen: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], ...]:
    """Every combination of the values; a variable with the value "" is left as it is. Raises UsageError."""
    for name in chosen:
        check_variable(name)
    check_count(math.prod(map(len, chosen.values())))
    combinations = itertools.product(*chosen.values())
    return tuple(
        {name: value for name, value in zip(chosen, values, strict=True) if value} for values in combinations
    )


def points(axes: Axes) -> Iterator[dict[str, Scalar]]:
    """The product of the lists; names that are tied have the same value at every point."""
    lists = [values if isinstance(values, list) else [values] for values in axes.values()]
    for point in itertools.product(*lists):
        yield {name: value for key, value in zip(axes, point, strict=True) for name in tied(key)}


def point_count(axes: Axes) -> int:
    """How many points there are, none of them made."""
    return math.prod(len(values) if isinstance(values, list) else 1 for values in axes.values())


def check_count(count: int) -> None:
    """Raise UsageError for more cases than a run can have."""
    if count > MOST_CASES:
        hint = "Narrow it with -w, -b, -d, --dtype or -p, or divide the suite."
        raise UsageError(f"{count:,} cases are asked for; a run has at most {MOST_CASES:,}.", hint)


def overridden(axes: Axes, own: Axes) -> dict[str, list[Scalar] | Scalar]:
    """`axes` with `own` in place of what these name."""
    named = {name for key in own for name in tied(key)}
    left = {TIE.join(name for name in tied(key) if name not in named): axes[key] for key in axes}
    return {**{key: values for key, values in left.items() if key}, **own}


def of_fields(params: Mapping[str, list[Scalar]], fields: Collection[str]) -> dict[str, list[Scalar]]:
    """The parameters that a workload with these fields has."""
    own = {TIE.join(name for name in tied(key) if name in fields): values for key, values in params.items()}
    return {key: values for key, values in own.items() if key}


def left_behind(axes: Axes, own: Axes, fields: Mapping[str, Scalar]) -> list[tuple[str, ...]]:
    """A key of `own`, then the sizes that were as large and stay; `fields`: with their defaults."""
    changed = {name for key in own for name in tied(key)}
    found = []
    for point in itertools.islice(points(axes), MOST_CASES):
        sizes = {**fields, **point}
        for key in own:
            size = sizes[tied(key)[0]]
            same = [name for name in sizes if name not in changed and _equal(sizes[name], size)]
            found += [(key, *same)] if same else []
    return found


def _equal(one: Scalar, other: Scalar) -> bool:
    """Whether two sizes are equal; that both are 1 says nothing."""
    return type(one) is int and type(other) is int and one == other != 1


def parse_world(text: int | str) -> WorldSpec:
    """`2`, `cuda:0+cuda:1`, or a kind so often as there are devices: `cpu+cpu`. Raises UsageError."""
    words = str(text).split(NAMES)
    if len(words) == 1 and words[0].isascii() and words[0].removeprefix("-").isdigit():
        return WorldSpec(devices=_checked(int(words[0])))
    kinds = {word.partition(":")[0] for word in words}
    if len(kinds) > 1 or not min(kinds)[:1].isalpha():
        raise UsageError(f"{text!r} is neither a number of devices nor devices of one kind.", WORLD_HINT)
    if set(words) == kinds:
        return WorldSpec(devices=_checked(len(words)), kind=words[0])
    if len(set(words)) < len(words) or not all(word.partition(":")[2].isdecimal() for word in words):
        raise UsageError(f"{text!r} does not name different devices of one kind.", WORLD_HINT)
    return WorldSpec(devices=_checked(len(words)), names=tuple(words))


def _checked(devices: int) -> int:
    """Raises UsageError."""
    if not 1 <= devices <= MOST_DEVICES:
        raise UsageError(
            f"A world of {devices} devices cannot be measured.",
            f"Give 1 to {MOST_DEVICES}, as in --world 1,2,4.",
        )
    return devices


def names_apart(names: Sequence[str]) -> tuple[str, ...]:
    """The names, empty where each device follows the one before: then the first and their number say it."""
    numbers = [int(name.partition(":")[2]) for name in names]
    return tuple(names) if any(after != before + 1 for before, after in pairwise(numbers)) else ()
