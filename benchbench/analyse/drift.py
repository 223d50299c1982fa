"""Whether the speed of all cases changed together while a run went on. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance

from benchbench.model.note import Note, NoteKind, note
from benchbench.stats import mean, median

LEAST_ROUNDS = 3  # of a case that counts
MOST_ROUNDS = 200  # of a case whose pairs are looked at: a run may have 10,000
SIGNIFICANCE = 0.03  # of a run's trend, two-sided
UNEVEN_SIGNIFICANCE = 0.01  # of rounds that differ in all cases together
NOTABLE = 0.01  # of a step: what is compared at a threshold of 3 % hardly depends on less

Process = tuple[int, float]  # its round, and the logarithm of its step


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the speed of `cases` changed together, in the median of them, as a logarithm of a step.

    `change`: of a `trend` from the first round to the last, else from the fastest round to the slowest.
    `variance`: of the run's level about that of another hour, known with so many `degrees` of freedom.
    """

    change: float
    cases: int
    trend: bool
    variance: float
    degrees: float

    @property
    def note(self) -> Note:
        """`drifted: steps became 4.10 % slower …`, or `uneven: the slowest round took 4.10 % longer …`."""
        share = abs(math.expm1(self.change))
        if not self.trend:
            return note(NoteKind.UNEVEN_ROUNDS, share=share, cases=self.cases)
        return note(
            NoteKind.DRIFTED, share=share, what="slower" if self.change > 0 else "faster", cases=self.cases
        )


def drift(cases: Iterable[Sequence[Process]]) -> Drift | None:
    """A change that all cases of a run show together; None where chance explains it, or it is small.

    By ranks within a case: neither a case's level, nor its noise, nor a wild process matters.
    """
    counted = [each for case in cases if len(each := _by_round(case)) >= LEAST_ROUNDS]
    for test in (_trend, _uneven):
        if counted and (found := test(counted)) and abs(found.change) >= NOTABLE:
            return found
    return None


def _by_round(case: Sequence[Process]) -> list[Process]:
    """A value a round, in order: a case that two suites share has two processes in one."""
    found: dict[int, list[float]] = {}
    for number, log in case:
        found.setdefault(number, []).append(log)
    return [(number, mean(logs)) for number, logs in sorted(found.items())]


def _trend(cases: Sequence[Sequence[Process]]) -> Drift | None:
    """Slower or faster from round to round: the seasonal Kendall test (Hirsch, Slack & Smith 1982).

    Cases stand for seasons. The size is the median over cases of Sen's slope, times the rounds between the
    first and the last. The run is taken for a random walk: the mean of one that ends D from where it began
    has the variance D²/3 about that place, since ∫W of a unit walk has the variance 1/3.
    """
    score = sum(_score(case) for case in cases)
    spread = sum(len(case) * (len(case) - 1) * (2 * len(case) + 5) / 18 for case in cases)
    if abs(score) - 1 < _LIMIT * math.sqrt(spread):
        return None
    change = median([_slope(case) * (case[-1][0] - case[0][0]) for case in cases])
    return Drift(change=change, cases=len(cases), trend=True, variance=change**2 / 3, degrees=1.0)


def _uneven(cases: Sequence[Sequence[Process]]) -> Drift | None:
    """Rounds that differ, whatever their order: the test of Friedman (1937) with cases for blocks.

    Of the rounds that all cases have. Another hour is taken to differ from this one as much as rounds do,
    which are minutes apart.
    """
    shared = set.intersection(*({number for number, _ in case} for case in cases))
    if len(shared) < LEAST_ROUNDS:
        return None
    rows = [[log for number, log in case if number in shared] for case in cases]
    if _friedman_p(rows) >= UNEVEN_SIGNIFICANCE:
        return None
    means = map(mean, rows)
    around_mean = [[log - middle for log in row] for row, middle in zip(rows, means, strict=True)]
    levels = [median(column) for column in zip(*around_mean, strict=True)]
    return Drift(
        change=max(levels) - min(levels),
        cases=len(rows),
        trend=False,
        variance=variance(levels),
        degrees=len(levels) - 1.0,
    )


def _friedman_p(rows: Sequence[Sequence[float]]) -> float:
    """The probability that columns are alike; 1 where all values of each row are equal."""
    ranks = [_doubled_ranks(row) for row in rows]
    middle = len(rows[0])
    total = sum((rank - middle) ** 2 for row in ranks for rank in row)
    columns = sum((sum(column) - len(rows) * middle) ** 2 for column in zip(*ranks, strict=True))
    return _chi_square_p((middle - 1) * columns / total, middle - 1) if total else 1.0


def _doubled_ranks(row: Sequence[float]) -> list[int]:
    """Twice the rank of each, from 1/2: equal values share theirs, and the mean is the number of values."""
    order = sorted(row)
    return [bisect_left(order, log) + bisect_right(order, log) for log in row]


def _chi_square_p(value: float, degrees: int) -> float:
    """The probability that χ² exceeds `value` (Wilson & Hilferty 1931): at 1 % within a twentieth of it."""
    spread = 2 / (9 * degrees)
    return 1 - NormalDist().cdf(((value / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


_LIMIT = NormalDist().inv_cdf(1 - SIGNIFICANCE / 2)


def _score(case: Sequence[Process]) -> int:
    """Kendall's S: pairs of rounds of which the later is slower, less those of which it is faster."""
    score, earlier = 0, list[float]()
    for _, log in case:
        score += bisect_left(earlier, log) - (len(earlier) - bisect_right(earlier, log))
        insort(earlier, log)
    return score


def _slope(case: Sequence[Process]) -> float:
    """Sen's slope (1968): the median change per round of all pairs, of `MOST_ROUNDS` evenly spread rounds."""
    import numpy as np

    rounds, logs = np.array(case[:: -(-len(case) // MOST_ROUNDS)], dtype=float).T
    first, second = np.triu_indices(len(rounds), 1)
    return float(np.median((logs[second] - logs[first]) / (rounds[second] - rounds[first])))
