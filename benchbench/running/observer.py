"""Who follows a run: the interface that is called as cases are measured; a line per record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.format import seconds, visible
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.profile import Profiled
from benchbench.model.record import Record
from benchbench.model.run import RunInfo

SHOWN = 3  # operators in a profile's line


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """How far a run came. `stages_s`: wall seconds of what no single case caused, by name."""

    info: RunInfo
    records: Sequence[Record]
    wall_s: float
    stages_s: Mapping[str, float]


class RunObserver:
    """Ignores everything: a subclass overrides what it wants to know."""

    def note(self, text: str) -> None:
        """A sentence that is worth keeping."""

    def stage(self, text: str) -> None:
        """What is under way now."""

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """What will be measured: one run, or the two sides of a comparison."""

    def resume(self, records: Sequence[Record]) -> None:
        """The run was begun earlier, and has these already."""

    def heat(self, cases: Sequence[tuple[int, Case]], number: int) -> None:
        """Heat `number`, from 0, of these cases begins, each with its side as in `record`."""

    def progress(self, place: int, state: str) -> None:
        """A case of the heat, by its place in `cases`, is now `preparing`, `timing` or `checking`."""

    def record(self, record: Record, side: int) -> None:
        """A case was measured once more and is stored; `side`: the place of its run in `begin`."""

    def profile(self, profile: Profiled) -> None:
        """A case was profiled, or could not be."""

    def end(self, runs: Sequence[RunProgress]) -> None:
        """End: everything is measured, or an exception stops the run."""


class Callbacks(RunObserver):
    """Hands on records and stages."""

    def __init__(
        self, on_record: Callable[[Record], None] | None, on_stage: Callable[[str], None] | None
    ) -> None:
        self._on_record = on_record
        self._on_stage = on_stage

    def stage(self, text: str) -> None:
        if self._on_stage:
            self._on_stage(text)

    def record(self, record: Record, side: int) -> None:
        if self._on_record:
            self._on_record(record)


def line(record: Record) -> str:
    """The record as a line of text."""
    name = visible(record.case.id)
    outcome = record.outcome
    if isinstance(outcome, Failure):
        return f"{outcome.status:<14} {name}  {visible(outcome.message)}"
    unsteady = "" if outcome.steady else "  (still warming up)"
    return f"{outcome.ending:<14} {name}  {seconds(step_s(outcome))}, round {record.round + 1}{unsteady}"


def profile_line(found: Profiled) -> str:
    """The profile as a line of text: the operators that took longest, or why there is none."""
    name, outcome = visible(found.case.id), found.outcome
    if isinstance(outcome, Failure):
        return f"{'no profile':<14} {name}  {visible(outcome.message)}"
    on_device = outcome.on_device
    shares = [
        (each.device_self_s if on_device else each.host_self_s) / outcome.wall_s for each in outcome.operators
    ]
    top = ", ".join(
        f"{visible(each.name)} {share:.0%}"
        for each, share in list(zip(outcome.operators, shares, strict=True))[:SHOWN]
    )
    return f"{'profiled':<14} {name}  {top}"
