"""A fleet from its options to its result: the request is checked, then begun or resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from time import monotonic

from benchbench import __version__
from benchbench.cluster.fleet import Fleet, FleetObserver, FleetResult
from benchbench.cluster.interface import Cluster
from benchbench.cluster.listener import Deadlines, Listener
from benchbench.cluster.machines import (
    Absent,
    FleetMachine,
    hardware_differences,
    look_at,
    one_of_each_kind,
    version_differences,
)
from benchbench.cluster.shares import Share, shares_left
from benchbench.cluster.stored import FleetInfo, keep_fleet, read_fleet, runs_of, suite_text
from benchbench.errors import NothingToMeasure, UsageError
from benchbench.model.options import MeasureOptions
from benchbench.plan.suite import suite_path
from benchbench.running import request
from benchbench.store import selectors
from benchbench.store.naming import FLEET, INSTEAD_OF, MACHINE, new_id


class MachineChoice(StrEnum):
    """Which machines measure: every one, or one of each accelerator type, the others standing by."""

    NODE = "node"
    ACCELERATOR_TYPE = "accelerator-type"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What to measure, and where. `resume`: the fleet to finish, `""` the newest, None a new one."""

    measure: MeasureOptions
    each: MachineChoice = MachineChoice.NODE
    resume: str | None = None
    allow_different: bool = False  # versions of accelbench
    deadlines: Deadlines = field(default_factory=Deadlines)


def measure_fleet(
    asked: FleetOptions,
    cluster: Cluster,
    results: Path,
    observer: FleetObserver,
    clock: Callable[[], float] = monotonic,
) -> FleetResult:
    """A run of each machine's share, stored in `results` as records come. `clock`: seconds, for deadlines.

    Raises UsageError, for versions of accelbench that differ too; NothingToMeasure where no machine answers;
    CannotWrite, UnreadableInput.
    """
    earlier = None if asked.resume is None else _to_finish(asked, results)
    request.request(request.with_project(asked.measure))  # a mistake is told before any machine is asked
    listener = Listener(cluster, asked.deadlines, clock)
    nodes = cluster.nodes()
    observer.note(f"asking each machine what it has: {', '.join(node.name for node in nodes) or 'none'}")
    here, absent = look_at(nodes, listener)
    _check(here, absent, asked, observer)
    if earlier:
        info = _gone_on_with(earlier, asked.measure, here)
        shares = shares_left(info.machines, info.measuring, runs_of(results, info.id))
    else:
        info = _new(asked, here, results)
        shares = [Share(machine=each.name, kind=each.kind) for each in here if each.name in info.measuring]
    if not shares:
        raise UsageError(f"The fleet {info.id} has ended: there is nothing to resume.", "Begin another.")
    keep_fleet(results, info)
    observer.note(f"fleet {info.id} measures on {', '.join(dict.fromkeys(each.machine for each in shares))}")
    there = {each.name for each in here}
    fleet = Fleet(info, [node for node in nodes if node.name in there], listener, results, observer)
    return FleetResult(info=info, shares=fleet.measure(shares), absent=tuple(absent))


def _to_finish(asked: FleetOptions, results: Path) -> FleetInfo:
    if others := asked.measure.given_and_kept:
        message = f"A fleet is resumed as it was begun: {others[0]} cannot be given again."
        raise UsageError(message, "Leave that option out.")
    return read_fleet(results, asked.resume or "")


def _check(
    here: Sequence[FleetMachine], absent: Sequence[Absent], asked: FleetOptions, observer: FleetObserver
) -> None:
    """Report in what the machines differ. Raises NothingToMeasure, UsageError."""
    for gone in absent:
        observer.note(f"{gone.name} measures nothing: {gone.reason}")
    if not here:
        raise NothingToMeasure("No machine of the cluster answered.", "ray status shows what there is.")
    for text in (*version_differences(here), *hardware_differences(here)):
        observer.note(f"machines differ in {text}")
    if others := sorted({each.has.version for each in here} - {__version__}):
        message = f"accelbench is {__version__} here, and {', '.join(others)} on some machine."
        if not asked.allow_different:
            raise UsageError(message, "Install one version; --allow-different measures all the same.")
        observer.note(message)


def _new(asked: FleetOptions, here: Sequence[FleetMachine], results: Path) -> FleetInfo:
    selectors.follow_stored(results)
    options = request.with_project(asked.measure)
    if own := sorted({FLEET, MACHINE, INSTEAD_OF} & {*options.tags}):
        raise UsageError(f"A fleet sets the tag {own[0]!r} itself.", "Choose another name.")
    paths = [suite_path(name) for name in options.suites or ("quick",)]
    measuring = here if asked.each is MachineChoice.NODE else one_of_each_kind(here)
    return FleetInfo(
        id=new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        options=dataclasses.replace(options, suites=()),
        suites=tuple((path.stem, suite_text(path)) for path in paths),
        machines=tuple(here),
        measuring=tuple(each.name for each in measuring),
    )


def _gone_on_with(earlier: FleetInfo, options: MeasureOptions, here: Sequence[FleetMachine]) -> FleetInfo:
    """The fleet with the machines that have joined since, and this command's own options."""
    known = {each.name: each for each in (*earlier.machines, *here)}
    return dataclasses.replace(
        earlier,
        machines=tuple(known.values()),
        options=options.resuming(earlier.options),
    )
