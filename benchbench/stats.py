"""Functions on lists of floats. No framework, no file, no clock; scipy only where a report needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % interval; the ends are None where nothing can be said about the spread."""

    low: float | None
    mid: float
    high: float | None


def median(values: Sequence[float]) -> float:
    """Middle of the sorted values; raises ValueError when there are none."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics (Hyndman & Fan 1996, type 7)."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def headline(medians: Sequence[float], confidence: float = 0.95) -> Interval:
    """exp(mean of the logs) of the processes' medians, with a t interval over processes.

    Processes are the unit: samples within one process share its memory layout, its autotuning and its
    neighbours, so their number says nothing about another process (Kalibera & Jones 2013).
    """
    logs = [math.log(value) for value in medians]
    count = len(logs)
    centre = math.fsum(logs) / count
    mid = math.exp(centre)
    if count < 2:
        return Interval(None, mid, None)
    deviation = math.sqrt(math.fsum((value - centre) ** 2 for value in logs) / (count - 1))
    half = t_quantile((1 + confidence) / 2, count - 1) * deviation / math.sqrt(count)
    return Interval(mid / math.exp(half), mid, mid * math.exp(half))


@cache
def t_quantile(probability: float, degrees: float) -> float:
    """Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation, unscaled."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def effective_count(values: Sequence[float]) -> float:
    """How many independent values an autocorrelated series is worth: n / (1 + 2 Σ ρₖ), until ρₖ ≤ 0.

    Geyer's (1992) initial positive sequence, cut at the first correlation that is not positive.
    """
    count = len(values)
    mean = math.fsum(values) / count
    centred = [value - mean for value in values]
    variance = math.fsum(value * value for value in centred)
    if variance == 0:
        return float(count)
    total = 0.0
    for lag in range(1, count // 2):
        rho = math.fsum(centred[i] * centred[i + lag] for i in range(count - lag)) / variance
        if rho <= 0:
            break
        total += rho
    return count / (1 + 2 * total)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Order-statistic interval of the median, its ranks taken at the effective sample size.

    The ranks come from Binomial(n_eff, 1/2) (David & Nagaraja 2003, 7.1) and are mapped to the n values
    at hand as quantiles. No distribution is assumed.
    """
    n_eff = max(1, math.floor(effective_count(values)))
    rank = _binomial_rank(n_eff, (1 - confidence) / 2)
    if rank == 0:  # too few for this confidence: the whole range is all that can be said
        return min(values), max(values)
    tail = (rank - 0.5) / n_eff
    return quantile(values, tail), quantile(values, 1 - tail)


@cache
def _binomial_rank(n: int, tail: float) -> int:
    """The largest r with P(Binomial(n, 1/2) < r) ≤ tail."""
    cumulative, rank = 0.0, 0
    probability = 0.5**n if n < 1000 else 0.0
    if probability == 0.0:  # underflow: the normal approximation is exact to the rank there
        return max(0, math.floor((n + 1 - _normal_quantile(1 - tail) * math.sqrt(n)) / 2))
    while cumulative + probability <= tail:
        cumulative += probability
        probability *= (n - rank) / (rank + 1)
        rank += 1
    return rank


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)
