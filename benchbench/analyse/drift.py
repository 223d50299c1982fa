"""Whether steps became slower or faster while a run went on: a trend over its rounds. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from benchbench.model.note import Note, NoteKind, note
from benchbench.stats import median

LEAST_ROUNDS = 3  # of a case that counts
MOST_ROUNDS = 200  # of a case whose pairs are looked at: a run may have 10,000
SIGNIFICANCE = 0.03  # two-sided, of a run
NOTABLE = 0.01  # of a step: what is compared at a threshold of 3 % hardly depends on less

Process = tuple[int, float]  # its round, and the logarithm of its step


@dataclass(frozen=True, slots=True)
class Drift:
    """`change`: of the logarithm of a step from the first round to the last, in the median of `cases`."""

    change: float
    cases: int

    @property
    def note(self) -> Note:
        """`steps became 4.10 % slower from the first round to the last, in 12 cases together`."""
        what = "slower" if self.change > 0 else "faster"
        return note(NoteKind.DRIFTED, share=abs(math.expm1(self.change)), what=what, cases=self.cases)


def drift(cases: Iterable[Sequence[Process]]) -> Drift | None:
    """A trend that all cases of a run show together; None where chance explains it, or it is small.

    The seasonal Kendall test (Hirsch, Slack & Smith 1982) with cases for seasons, by ranks within a case:
    neither a case's level, nor its noise, nor a wild process matters. The size is the median over cases of
    Sen's slope, times the rounds between the first and the last.
    """
    counted = [sorted(case) for case in cases if len(case) >= LEAST_ROUNDS]
    score = sum(_score(case) for case in counted)
    variance = sum(len(case) * (len(case) - 1) * (2 * len(case) + 5) / 18 for case in counted)
    if not counted or abs(score) - 1 < _LIMIT * math.sqrt(variance):
        return None
    change = median([_slope(case) * (case[-1][0] - case[0][0]) for case in counted])
    return Drift(change, len(counted)) if abs(change) >= NOTABLE else None


_LIMIT = NormalDist().inv_cdf(1 - SIGNIFICANCE / 2)


def _score(case: Sequence[Process]) -> int:
    """Kendall's S: pairs of rounds of which the later is slower, less those of which it is faster."""
    score, earlier = 0, list[float]()
    for _, log in case:
        score += bisect_left(earlier, log) - (len(earlier) - bisect_right(earlier, log))
        insort(earlier, log)
    return score


def _slope(case: Sequence[Process]) -> float:
    """Sen's: the median change per round of all pairs (Sen 1968), of `MOST_ROUNDS` evenly spread rounds."""
    import numpy as np

    rounds, logs = np.array(case[:: -(-len(case) // MOST_ROUNDS)], dtype=float).T
    first, second = np.triu_indices(len(rounds), 1)
    return float(np.median((logs[second] - logs[first]) / (rounds[second] - rounds[first])))
