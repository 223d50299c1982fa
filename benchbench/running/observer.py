"""The interface to whoever follows a run: called as cases are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.model.profile import Profiled
from benchbench.model.record import Record
from benchbench.model.run import RunInfo


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

    def record(self, record: Record, side: int) -> None:
        """A case was measured once more and is stored; `side`: the place of its run in `begin`."""

    def profile(self, profile: Profiled) -> None:
        """A case was profiled, or could not be."""

    def end(self, runs: Sequence[RunProgress]) -> None:
        """Nothing more will be measured: all is done, or an exception is on its way."""


class Callbacks(RunObserver):
    """Hands on records and stages."""

    def __init__(
        self, on_record: Callable[[Record], None] | None, on_stage: Callable[[str], None] | None
    ) -> None:
        self._on_record = on_record
        self._on_stage = on_stage

    def stage(self, text: str) -> None:
        """What is under way now."""
        if self._on_stage:
            self._on_stage(text)

    def record(self, record: Record, side: int) -> None:
        """A case was measured once more and is stored."""
        if self._on_record:
            self._on_record(record)
