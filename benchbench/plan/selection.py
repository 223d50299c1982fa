"""What the command line narrows or overrides of suites. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchbench.errors import UsageError, unknown
from benchbench.launch import catalogue
from benchbench.launch.catalogue import WorkloadKind
from benchbench.model.case import Cache, Case, Dtype, Scalar
from benchbench.model.placement import VARIABLE, Strategy
from benchbench.plan import sizes
from benchbench.plan.suite import Entry, Suite, check_params


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line narrows or overrides; empty means all the suite says."""

    workloads: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    dtypes: tuple[Dtype, ...] = ()
    modes: tuple[str, ...] = ()
    caches: tuple[Cache, ...] = ()
    params: dict[str, list[Scalar]] = field(default_factory=dict)
    environments: tuple[Mapping[str, str], ...] = ({},)  # each case is planned in every one
    worlds: tuple[str, ...] = ()  # numbers of devices, or names of them
    strategies: tuple[Strategy, ...] = ()
    launched: bool = False  # by a launcher: each rank sees the devices that it was given, the first not all
    hosts: int = 1  # on which the devices of a world of several lie


def select(suites: Sequence[Suite], selection: Selection) -> list[tuple[str, Entry]]:
    """(suite's name, entry) for what the command line leaves of the suites. Raises UsageError.

    A workload named on the command line that no suite holds is added at its default size.
    """
    entries = [
        (suite.name, _defaulted(entry, suite))
        for suite in suites
        for entry in suite.cases
        if not selection.workloads or entry.workload in selection.workloads
    ]
    present = {entry.workload for _, entry in entries}
    for name in selection.workloads:
        catalogue.workload_named(name)
        if name not in present:
            entries.append(("defaults", Entry(workload=name, dtype=[Dtype.FLOAT32])))
    return _overridden(entries, selection)


def _defaulted(entry: Entry, suite: Suite) -> Entry:
    return entry if entry.dtype else _changed(entry, dtype=suite.dtype)


def _overridden(entries: list[tuple[str, Entry]], selection: Selection) -> list[tuple[str, Entry]]:
    known = {name for _, entry in entries for name in entry_workload(entry).fields()}
    for name in (name for key in selection.params for name in sizes.tied(key)):
        if name not in known:
            hint = unknown("parameters", name, sorted(known))
            raise UsageError(f"No selected workload has a parameter {name!r}.", hint)
    return [(suite, _override(entry, selection)) for suite, entry in entries]


def _override(entry: Entry, selection: Selection) -> Entry:
    workload = entry_workload(entry)
    own = sizes.of_fields(selection.params, workload.fields())
    check_params(workload, own)
    return _changed(
        entry,
        dtype=list(selection.dtypes) or entry.dtype,
        mode=list(selection.modes) or entry.mode,
        cache=list(selection.caches) or entry.cache,
        world=list(selection.worlds) or entry.world,
        strategy=list(selection.strategies) or entry.strategy,
        cpu=[sizes.overridden(axes, own) for axes in entry.cpu],
        accelerator=[sizes.overridden(axes, own) for axes in entry.accelerator],
    )


def sizes_left_behind(
    suites: Sequence[Suite], selection: Selection, planned: Sequence[Case]
) -> Iterator[str]:
    """`gemm: n=512 k=512 stay while m changes: …`: what is as it was beside a size that was as large."""
    found: dict[tuple[str, ...], None] = {}
    for entry in (entry for suite in suites for entry in suite.cases):
        workload = entry_workload(entry)
        own = sizes.of_fields(selection.params, workload.fields())
        for axes in [*entry.cpu, *entry.accelerator]:
            names = sizes.left_behind(axes, own, workload.fields())
            found |= {(entry.workload, *each): None for each in names}
    for workload_name, key, *others in found:
        cases = [case for case in planned if case.workload == workload_name]
        kept = dict.fromkeys(f"{other}={case.params[other]}" for case in cases for other in others)
        if kept:
            together = sizes.TIE.join((key, *others))
            yield f"{workload_name}: {' '.join(kept)} stay while {key} changes: -p {together}=… changes all"


def parse_environment(texts: Sequence[str]) -> dict[str, list[str]]:
    """`["XLA_FLAGS=,--xla_x"]` → the values of each variable, "" for its absence. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"Cannot read --env {text!r}.", "Write it as NAME=value or NAME=value,value.")
        found.setdefault(name, []).extend(values.split(","))
    return found


def environments(chosen: Mapping[str, Sequence[str]]) -> tuple[dict[str, str], ...]:
    """Every combination of the values; a variable with the value "" is left as it is. Raises UsageError."""
    for name in chosen:
        if not VARIABLE.fullmatch(name):
            raise UsageError(
                f"{name!r} is not the name of an environment variable.", "Write --env NAME=value."
            )
    sizes.check_count(math.prod(map(len, chosen.values())))
    combinations = itertools.product(*chosen.values())
    return tuple(
        {name: value for name, value in zip(chosen, values, strict=True) if value} for values in combinations
    )


def _changed(entry: Entry, **changes: object) -> Entry:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Entry(**{**fields, **changes})


def entry_workload(entry: Entry) -> WorkloadKind:
    return catalogue.workload_named(entry.workload)
