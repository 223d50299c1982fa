"""Estimate of the time left of a run, corrected by the measured speed of this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from benchbench.model.measurement import Failure
from benchbench.model.record import Record

PRIOR_WEIGHT_S = 5.0  # weight of the initial level 1, as seconds of processes that confirm it
MAX_WEIGHT_S = 60.0  # largest weight of all earlier observations, since a machine's load may change
FURTHER = 0.15  # expected time of further rounds of undecided works, as a share of the planned rounds' time


@dataclass(frozen=True, slots=True)
class Expected:
    """Estimated seconds of a case's first process in a run, which compiles, and of each later one."""

    first_s: float
    later_s: float


class TimeLeft:
    """Seconds left of a run, or of two interleaved sides.

    A process of a case is expected to take as long as the case's last process or, before the first one, as
    estimated. Both are scaled by the level: the ratio of measured to expected time, as a mean of logarithms
    weighted by expected time. A busy machine raises the level within a few processes, or before the first
    one if the preparation takes longer than expected.
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
        """`sides`: estimates by case id, for each side. `preparing_s`: for imports, references, verification.

        `further`: expected time of rounds beyond the planned ones, as a share of the planned time.
        """
        self._estimates = {
            (side, name): estimate for side, cases in enumerate(sides) for name, estimate in cases.items()
        }
        self._remaining = dict.fromkeys(self._estimates, rounds)  # processes
        self._rounds = rounds
        self._base_s = dict[tuple[int, str], float]()  # last time of each measured case, divided by the level
        self._preparing_s = preparing_s
        self._is_prepared = not preparing_s
        self._budget_s = budget_s
        self._further = further
        self._clock = clock
        self._start = self._last = clock()
        self._spent_s = 0.0
        self._log_level, self._weight_s = 0.0, PRIOR_WEIGHT_S
        self.is_further = False  # True during rounds beyond the planned ones
        self._first: tuple[object, ...] = ()  # computation timed before the preparation is complete

    def add(self, record: Record, side: int = 0, *, earlier: bool = False) -> None:
        """Count a finished process. `earlier`: it belongs to an interrupted part of the run."""
        key = (side, record.case.id)
        self.is_further |= record.round >= self._rounds and not self._budget_s
        wall_s = record.stages_s.get("wall", 0.0)
        computation = (record.case.workload, *record.case.params.items())
        if not self._is_prepared and not earlier:
            self._first = self._first or computation
            if computation != self._first:
                self._update_level(self._overhead_s(wall_s), self._preparing_s)
                self._is_prepared = True
        if key in self._estimates:
            estimate = self._estimates[key]
            estimate_s = estimate.later_s if key in self._base_s else estimate.first_s
            self._update_level(wall_s, self._base_s.get(key, estimate_s))
            is_first = key not in self._base_s and estimate.first_s
            later_share = estimate.later_s / estimate.first_s if is_first else 1.0
            self._base_s[key] = later_share * wall_s / math.exp(self._log_level)
            failed = isinstance(record.outcome, Failure)
            self._remaining[key] = 0 if failed else max(self._remaining[key] - 1, 0)
        if earlier:
            self._start -= wall_s  # it counts towards a budget
        self._spent_s += wall_s
        self._last = self._clock()

    @property
    def done(self) -> int:
        """Number of finished processes, including those that are omitted after a failure."""
        return len(self._remaining) * self._rounds - sum(self._remaining.values())

    @property
    def remaining_s(self) -> float:
        """Expected seconds until the run is complete."""
        now = self._clock()
        log_level, preparing_s = self._log_level, 0.0
        if not self._is_prepared:
            overhead_s = self._overhead_s()
            if overhead_s > self._preparing_s * math.exp(log_level):
                log_level, _ = _updated_level(log_level, self._weight_s, overhead_s, self._preparing_s)
            preparing_s = max(self._preparing_s * math.exp(log_level) - overhead_s, 0.0)
        level, processes = math.exp(log_level), sum(self._remaining.values())
        planned_s = 0.0
        for key, count in self._remaining.items():
            estimate = self._estimates[key]
            planned_s += count * level * self._base_s.get(key, estimate.later_s)
            if count and key not in self._base_s:
                planned_s += level * (estimate.first_s - estimate.later_s)
        if self._is_prepared and processes:
            planned_s -= min(now - self._last, planned_s / processes)  # the process that is running
        planned_s *= 1.0 + self._further * processes / max(len(self._remaining) * self._rounds, 1)
        return max(planned_s + preparing_s, self._budget_s - (now - self._start), 0.0)

    def _overhead_s(self, wall_s: float = 0.0) -> float:
        """Seconds so far outside of processes; `wall_s`: seconds of a process that is not counted yet."""
        return max(self._clock() - self._start - self._spent_s - wall_s, 0.0)

    def _update_level(self, measured_s: float, expected_s: float) -> None:
        self._log_level, self._weight_s = _updated_level(
            self._log_level, self._weight_s, measured_s, expected_s
        )


def _updated_level(
    log_level: float, weight_s: float, measured_s: float, expected_s: float
) -> tuple[float, float]:
    """The log level and its weight with one more observation, which has at most half of the weight.

    `expected_s`: time expected at level 1.
    """
    if measured_s <= 0 or expected_s <= 0:
        return log_level, weight_s
    new_weight_s = min(expected_s, weight_s)
    share = new_weight_s / (weight_s + new_weight_s)
    log_level += share * (math.log(measured_s / expected_s) - log_level)
    return log_level, min(weight_s + expected_s, MAX_WEIGHT_S)
