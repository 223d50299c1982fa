"""Drift: a common change of the speed of all cases during a run. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance

from benchbench.model.note import Note, NoteKind, note
from benchbench.stats import mean, median

MIN_ROUNDS = 3  # of a case that counts
MAX_ROUNDS = 200  # of a case whose pairs are used: a run may have 10,000
SIGNIFICANCE = 0.03  # two-sided level of a trend
UNEVEN_SIGNIFICANCE = 0.01  # level of differences between rounds
MIN_CHANGE = 0.01  # of a step, as a fraction: comparisons with a threshold of 3 % hardly depend on less

Process = tuple[int, float]  # round, and logarithm of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Common change of the speed of `cases`, as the median logarithm of a step.

    `change`: of a trend from the first round to the last; otherwise from the fastest round to the slowest.
    `variance`: of the run's level relative to another hour, with `degrees` of freedom.
    """

    change: float
    cases: int
    is_trend: bool
    variance: float
    degrees: float

    @property
    def note(self) -> Note:
        """`drifted: steps became 4.10 % slower …`, or `uneven: the slowest round took 4.10 % longer …`."""
        share = abs(math.expm1(self.change))
        if not self.is_trend:
            return note(NoteKind.UNEVEN_ROUNDS, share=share, cases=self.cases)
        return note(
            NoteKind.DRIFTED, share=share, what="slower" if self.change > 0 else "faster", cases=self.cases
        )


def drift(cases: Iterable[Sequence[Process]]) -> Drift | None:
    """Common change of all cases of a run; None if it is not significant or small.

    The tests use ranks within a case, so they do not depend on its level, its noise or outliers.
    """
    eligible = [values for case in cases if len(values := _mean_by_round(case)) >= MIN_ROUNDS]
    for test in (_test_trend, _test_unevenness):
        if eligible and (result := test(eligible)) and abs(result.change) >= MIN_CHANGE:
            return result
    return None


def _mean_by_round(case: Sequence[Process]) -> list[Process]:
    """Mean of each round, in order: a case in two suites has two processes per round."""
    logs_by_round: dict[int, list[float]] = {}
    for number, log in case:
        logs_by_round.setdefault(number, []).append(log)
    return [(number, mean(logs)) for number, logs in sorted(logs_by_round.items())]


def _test_trend(cases: Sequence[Sequence[Process]]) -> Drift | None:
    """Trend over the rounds, by the seasonal Kendall test (Hirsch, Slack & Smith 1982).

    Cases take the place of seasons. The size is the median over cases of Sen's slope, times the number of
    rounds from the first to the last. The run is modelled as a random walk: the mean of a walk that ends at
    distance D has the variance D²/3 relative to its start, since ∫W of a unit walk has the variance 1/3.
    """
    score = sum(_score(case) for case in cases)
    spread = sum(len(case) * (len(case) - 1) * (2 * len(case) + 5) / 18 for case in cases)
    if abs(score) - 1 < _LIMIT * math.sqrt(spread):
        return None
    change = median([_slope(case) * (case[-1][0] - case[0][0]) for case in cases])
    return Drift(change=change, cases=len(cases), is_trend=True, variance=change**2 / 3, degrees=1.0)


def _test_unevenness(cases: Sequence[Sequence[Process]]) -> Drift | None:
    """Differences between rounds in any order, by the test of Friedman (1937) with cases as blocks.

    Only rounds of all cases count. Another hour is taken to differ as much as these rounds, which are
    minutes apart.
    """
    shared = set.intersection(*({number for number, _ in case} for case in cases))
    if len(shared) < MIN_ROUNDS:
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
        is_trend=False,
        variance=variance(levels),
        degrees=len(levels) - 1.0,
    )


def _friedman_p(rows: Sequence[Sequence[float]]) -> float:
    """p of the hypothesis that the columns are equal; 1 if all values of each row are equal."""
    ranks = [_doubled_ranks(row) for row in rows]
    middle = len(rows[0])
    total = sum((rank - middle) ** 2 for row in ranks for rank in row)
    columns = sum((sum(column) - len(rows) * middle) ** 2 for column in zip(*ranks, strict=True))
    return _chi_square_p((middle - 1) * columns / total, middle - 1) if total else 1.0


def _doubled_ranks(row: Sequence[float]) -> list[int]:
    """Twice the rank of each value, counted from 1/2. Equal values share their rank."""
    order = sorted(row)
    return [bisect_left(order, log) + bisect_right(order, log) for log in row]


def _chi_square_p(value: float, degrees: int) -> float:
    """Probability that χ² exceeds `value` (Wilson & Hilferty 1931); relative error at most 1/20 at 1 %."""
    spread = 2 / (9 * degrees)
    return 1 - NormalDist().cdf(((value / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


_LIMIT = NormalDist().inv_cdf(1 - SIGNIFICANCE / 2)


def _score(case: Sequence[Process]) -> int:
    """Kendall's S: number of pairs of rounds that become slower, minus those that become faster."""
    score, earlier = 0, list[float]()
    for _, log in case:
        score += bisect_left(earlier, log) - (len(earlier) - bisect_right(earlier, log))
        insort(earlier, log)
    return score


def _slope(case: Sequence[Process]) -> float:
    """Sen's slope (1968): median change per round of all pairs of rounds.

    At most `MAX_ROUNDS` evenly spaced rounds are used.
    """
    import numpy as np

    rounds, logs = np.array(case[:: -(-len(case) // MAX_ROUNDS)], dtype=float).T
    first, second = np.triu_indices(len(rounds), 1)
    return float(np.median((logs[second] - logs[first]) / (rounds[second] - rounds[first])))
