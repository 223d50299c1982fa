"""The time that a run is likely to take from here: its estimates, and how much slower this machine is now."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from benchbench.model.measurement import Failure
from benchbench.model.record import Record

TRUST_S = 5.0  # how much the estimates' level is believed, as seconds of processes that confirm it
MEMORY_S = 60.0  # of expected time that the level is told by: a machine's load may change
FURTHER = 0.15  # of the planned rounds' time, in rounds of works that stay undecided


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds that a process of a case is estimated to take: the run's first, which compiles, and a later."""

    first_s: float
    later_s: float


class TimeLeft:
    """Seconds left of a run, or of two sides that are interleaved.

    A case is expected to take what it took last, and before that its estimate. Both are scaled by the level:
    how long processes took lately over what was expected of them, by a mean of logarithms weighted by
    expected time. So a machine that becomes busy is noticed within a few processes, and also before the first
    of them, when preparing takes longer than it should.
    """

    def __init__(
        self,
        sides: Sequence[Mapping[str, Expected]],
        rounds: int,
        *,
        preparing_s: float = 0.0,
        budget_s: float = 0.0,
        further: float = 0.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`sides`: case id → its estimates. `preparing_s`: of imports, references, verification.

        `further`: of the planned time, in rounds that some works will get beyond the planned ones.
        """
        self._estimates = {
            (side, name): each for side, cases in enumerate(sides) for name, each in cases.items()
        }
        self._left = dict.fromkeys(self._estimates, rounds)
        self._rounds = rounds
        self._base = dict[tuple[int, str], float]()  # of measured cases: what they took at a level of 1
        self._preparing_s = preparing_s
        self._prepared = not preparing_s
        self._budget_s = budget_s
        self._further = further
        self._clock = clock
        self._began = self._last = clock()
        self._spent_s = 0.0
        self._log_level, self._weight_s = 0.0, TRUST_S
        self.is_further = False  # whether rounds are made beyond the planned ones
        self._first: tuple[object, ...] = ()  # the computation that is timed before all is prepared

    def add(self, record: Record, side: int = 0, *, earlier: bool = False) -> None:
        """A process is done. `earlier`: in a part of the run that was interrupted."""
        key = (side, record.case.id)
        self.is_further |= record.round >= self._rounds and not self._budget_s
        wall = record.stages_s.get("wall", 0.0)
        computation = (record.case.workload, *record.case.params.items())
        if not self._prepared and not earlier:
            self._first = self._first or computation
            if computation != self._first:
                self._learn(self._overhead_s(wall), self._preparing_s)
                self._prepared = True
        if key in self._estimates:
            kind = self._estimates[key]
            estimate_s = kind.later_s if key in self._base else kind.first_s
            expected_s = self._base.get(key, estimate_s)
            self._learn(wall, expected_s)
            later = kind.later_s / kind.first_s if key not in self._base and kind.first_s else 1.0
            self._base[key] = later * wall / math.exp(self._log_level)
            failed = isinstance(record.outcome, Failure)
            self._left[key] = 0 if failed else max(self._left[key] - 1, 0)
        if earlier:
            self._began -= wall  # of a budget it is spent
        self._spent_s += wall
        self._last = self._clock()

    @property
    def done(self) -> int:
        """Records made, including those that a failure makes needless."""
        return len(self._left) * self._rounds - sum(self._left.values())

    @property
    def remaining_s(self) -> float:
        """The seconds that everything is likely to take from here."""
        now = self._clock()
        log_level, preparing_s = self._log_level, 0.0
        if not self._prepared:
            overhead = self._overhead_s()
            expected = self._preparing_s
            if overhead > expected * math.exp(log_level):
                log_level, _ = _learnt(log_level, self._weight_s, overhead, expected)
            preparing_s = max(expected * math.exp(log_level) - overhead, 0.0)
        level = math.exp(log_level)
        processes = {
            key: left * level * self._base.get(key, self._estimates[key].later_s)
            for key, left in self._left.items()
        }
        firsts = sum(
            level * (each.first_s - each.later_s)
            for key, each in self._estimates.items()
            if self._left[key] and key not in self._base
        )
        planned = sum(processes.values()) + firsts
        if self._prepared and (waiting := sum(self._left.values())):
            planned -= min(now - self._last, planned / waiting)  # the process that is under way
        planned *= 1.0 + self._further * sum(self._left.values()) / max(len(self._left) * self._rounds, 1)
        return max(planned + preparing_s, self._budget_s - (now - self._began), 0.0)

    def _overhead_s(self, wall: float = 0.0) -> float:
        """Seconds so far that no process took; `wall`: of one that is not counted yet."""
        return max(self._clock() - self._began - self._spent_s - wall, 0.0)

    def _learn(self, took_s: float, expected_s: float) -> None:
        """Move the level towards what took so long where `expected_s` was expected at a level of 1."""
        self._log_level, self._weight_s = _learnt(self._log_level, self._weight_s, took_s, expected_s)


def _learnt(log_level: float, weight_s: float, took_s: float, expected_s: float) -> tuple[float, float]:
    """The level with one more observation, and the weight of all; no observation may weigh more than half."""
    if took_s <= 0 or expected_s <= 0:
        return log_level, weight_s
    own = min(expected_s, weight_s)
    moved = log_level + own / (weight_s + own) * (math.log(took_s / expected_s) - log_level)
    return moved, min(weight_s + expected_s, MEMORY_S)
