"""What several days and machines come to: a mean, and an error that knows how far these differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.judging.sessions import ENOUGH, Hours
from benchbench.stats import Difference, deviation, mean, t_quantile

LEAST = 1e-4  # a standard deviation: equal values must not make every difference significant


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLog:
    """The mean of a logarithm over days, its standard error, and the degrees of freedom of t."""

    mid: float
    error: float
    degrees: float

    def plus(self, log: float) -> MeanLog:
        """Of the same, multiplied by what is known exactly."""
        return MeanLog(mid=self.mid + log, error=self.error, degrees=self.degrees)

    def half_width(self, confidence: float = 0.95) -> float:
        """Of its t interval."""
        return t_quantile((1 + confidence) / 2, self.degrees) * self.error


def mean_log(days: Sequence[Hours], assumed: float) -> MeanLog:
    """Over days that may be of several machines of one type; each is the mean of its hours.

    With fewer than `ENOUGH` days each missing one counts as differing by `assumed`, as in the gate
    (judging/sessions.py). Where the processes alone explain more, their error counts. Raises ValueError for
    none.
    """
    if not days:
        raise ValueError("no day")
    places = [mean([mean(hour) for hour in day]) for day in days]
    between = filled_variance(deviation(places) ** 2 if len(places) > 1 else 0.0, len(places) - 1, assumed)
    within, degrees = _within([hour for day in days for hour in day])
    own = within * sum(1 / sum(map(len, day)) for day in days) / len(days) ** 2
    square = max(between / len(days), LEAST**2)
    if own > square:
        return MeanLog(mid=mean(places), error=math.sqrt(own), degrees=degrees)
    return MeanLog(mid=mean(places), error=math.sqrt(square), degrees=max(len(days), ENOUGH) - 1)


def filled_variance(variance: float, degrees: float, assumed: float) -> float:
    """A variance known with some degrees of freedom, those missing to `ENOUGH` − 1 taken as assumed."""
    missing = max(ENOUGH - 1 - degrees, 0.0)
    return (degrees * variance + missing * assumed**2) / (degrees + missing)


def gap(best: MeanLog, other: MeanLog) -> Difference:
    """other − best, of hardware whose days have nothing in common (Welch 1947)."""
    square = best.error**2 + other.error**2
    shares = (best.error**2 / square) ** 2 / best.degrees + (other.error**2 / square) ** 2 / other.degrees
    return Difference(other.mid - best.mid, math.sqrt(square), 1 / shares)


def _within(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The variance of processes within an hour, and its degrees of freedom."""
    several = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in several)
    squares = math.fsum((len(group) - 1) * deviation(group) ** 2 for group in several)
    return (squares / degrees if degrees else 0.0), degrees
