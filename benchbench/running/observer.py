"""The observer of a run, which is called as cases are measured, and records as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.format import seconds, visible
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.profile import Profiled
from benchbench.model.run import Record, RunInfo

MAX_OPERATORS = 3  # in a profile's line


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """The progress of a run at its end. `stages_s`: wall seconds shared by all cases, by stage."""

    info: RunInfo
    records: Sequence[Record]
    wall_s: float
    stages_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """A measured pair of a bisection. `change`: ratio of the metric, or None if a side failed.

    `span`: labels of the first and the last version that could have caused the step before this pair.
    """

    number: int
    case: str
    version: str
    beside: str
    change: float | None
    span: tuple[str, str] | None = None


class RunObserver:
    """Ignores all events. A subclass overrides the events that it needs."""

    def note(self, text: str) -> None:
        """Receive a message to the user."""

    def stage(self, text: str) -> None:
        """Receive the name of the current activity."""

    def begin(self, infos: Sequence[RunInfo]) -> None:
        """Measurement begins, of one run or of the two sides of a comparison."""

    def resume(self, records: Sequence[Record]) -> None:
        """The run is resumed and already has these records."""

    def heat(self, cases: Sequence[tuple[int, Case]], number: int) -> None:
        """Heat `number`, counted from 0, begins. `cases`: (side, case), with sides as in `record`."""

    def progress(self, place: int, state: str) -> None:
        """A case of the heat is now `preparing`, `timing` or `checking`. `place`: its index in `cases`."""

    def record(self, record: Record, side: int) -> None:
        """A record was stored. `side`: the index of its run in `begin`."""

    def pair(self, pair: MeasuredPair) -> None:
        """A pair of a bisection was measured and stored."""

    def profile(self, profile: Profiled) -> None:
        """A case was profiled, or could not be."""

    def end(self, runs: Sequence[RunProgress]) -> None:
        """The run has ended, complete or by an exception."""


class Callbacks(RunObserver):
    """Passes records and stages to functions."""

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
    reason = f"  {visible(outcome.unverified)}" if outcome.unverified else ""
    time = f"{seconds(step_s(outcome))}, round {record.round + 1}"
    return f"{outcome.ending:<14} {name}  {time}{unsteady}{reason}"


def profile_line(profile: Profiled) -> str:
    """The profile as a line of text: the slowest operators, or why there is none."""
    name, outcome = visible(profile.case.id), profile.outcome
    if isinstance(outcome, Failure):
        return f"{'no profile':<14} {name}  {visible(outcome.message)}"
    on_device = outcome.on_device
    slowest = [
        (operator.name, operator.device_self_s if on_device else operator.host_self_s)
        for operator in outcome.operators[:MAX_OPERATORS]
    ]
    top = ", ".join(f"{visible(name)} {self_s / outcome.wall_s:.0%}" for name, self_s in slowest)
    return f"{'profiled':<14} {name}  {top}"
