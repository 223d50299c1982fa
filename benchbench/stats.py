"""Statistics of lists of floats, without frameworks, files or clocks. SciPy is imported on first use."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchbench.arrays import Floats

LARGE_P = 0.1  # a variance less likely than this beside the others is not shrunk
UNRELATED_P = 0.02  # a variance less likely than this is not related to the others at all
EXTREME_P = 1e-3  # a large variance less likely than this does not contribute to the typical one
MAX_LOG = 700.0  # exp of a larger logarithm overflows
NEWTON_STEPS = 30
MIN_DEVIATION = 1e-4  # of logarithms: equal values must not make every difference significant
MAD_TO_DEVIATION = 1.4826  # for normal data (Iglewicz & Hoaglin 1993)
POWER = 0.8  # of the smallest detectable change


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval; the ends are None if the spread is unknown."""

    low: float | None
    mid: float
    high: float | None


def median(values: Sequence[float]) -> float:
    """Middle of the sorted values. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + 0.5 * (high - low)


def quantile(values: Sequence[float], q: float) -> float:
    """Quantile by linear interpolation between order statistics (Hyndman & Fan 1996, type 7)."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def headline(medians: Sequence[float], planned: int | None = None) -> Interval:
    """Geometric mean of the processes' medians, with a 95 % t interval over processes.

    Processes are the unit: samples of one process share its memory layout, its autotuning and its
    neighbours, so their number does not predict another process (Kalibera & Jones 2013). If the spread of
    the first `planned` processes decided the number of further ones, only these determine the interval
    (Stein 1945). With all of them it would be too narrow for the cases that stopped early.
    """
    logs = [math.log(value) for value in medians]
    count = len(logs)
    centre = math.fsum(logs) / count
    mid = math.exp(centre)
    first = logs[:planned]
    if len(first) < 2:
        return Interval(None, mid, None)
    half = t_quantile(0.975, len(first) - 1) * deviation(first) / math.sqrt(count)
    return Interval(mid / math.exp(half), mid, mid * math.exp(half))


@cache
def t_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation, unscaled."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def effective_count(values: Sequence[float]) -> float:
    """Number of independent values equivalent to an autocorrelated series: n / (1 + 2 Σ ρₖ), up to ρₖ ≤ 0.

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
        rho = math.fsum(map(operator.mul, centred, centred[lag:])) / variance
        if rho <= 0:
            break
        total += rho
    return count / (1 + 2 * total)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Order-statistic interval of the median, with ranks for the effective sample size.

    The ranks come from Binomial(n_eff, 1/2) (David & Nagaraja 2003, 7.1) and are mapped to the n values as
    quantiles. No distribution is assumed.
    """
    n_eff = max(1, math.floor(effective_count(values)))
    rank = _binomial_rank(n_eff, (1 - confidence) / 2)
    if rank == 0:  # too few values for this confidence: return the whole range
        return min(values), max(values)
    tail = (rank - 0.5) / n_eff
    return quantile(values, tail), quantile(values, 1 - tail)


@cache
def _binomial_rank(n: int, tail: float) -> int:
    """Largest r with P(Binomial(n, 1/2) < r) ≤ tail."""
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


@dataclass(frozen=True, slots=True)
class LogEstimate:
    """An estimated logarithm with its standard error and degrees of freedom."""

    mid: float
    error: float
    degrees: float

    def half_width(self, confidence: float = 0.95) -> float:
        """Half the width of the t interval."""
        return t_quantile((1 + confidence) / 2, self.degrees) * self.error


@dataclass(frozen=True, slots=True)
class Difference(LogEstimate):
    """Difference of the means of two groups of logarithms.

    `share`: error² divided by the variance of a process; the sum of 1/n over the groups.
    """

    share: float = 1.0

    @property
    def variance(self) -> float:
        """Variance of a process's logarithm."""
        return self.error**2 / self.share

    def with_variance(self, variance: float, degrees: float) -> Difference:
        """The same difference with this variance of processes and these degrees of freedom."""
        return replace(self, error=math.sqrt(variance * self.share), degrees=degrees)

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p: probability of so large a difference if the true one is `bound`."""
        return t_tail((bound - self.mid) / self.error, self.degrees)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p: probability of so small a difference if the true one is `bound`."""
        return t_tail((self.mid - bound) / self.error, self.degrees)

    def p_either(self) -> float:
        """Two-sided p: twice the smaller tail."""
        return 2 * t_tail(-abs(self.mid) / self.error, self.degrees)


def welch(
    before: Sequence[float],
    after: Sequence[float],
    planned: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Difference:
    """mean(after) − mean(before) of processes' logarithms, for unequal variances (Welch 1947).

    Each side's standard deviation is at least `MIN_DEVIATION`. `planned`: values of each side that were
    measured in any case. If they decided how many followed, only they determine the variance (Stein 1945).
    Raises ValueError if a side has fewer than two values.
    """
    first = planned or (before, after)
    variances = [max(MIN_DEVIATION, deviation(side)) ** 2 for side in first]
    weights = [1 / len(before), 1 / len(after)]
    share = sum(weights)
    parts = [variance * weight for variance, weight in zip(variances, weights, strict=True)]
    if planned:  # the side that varied less by chance has fewer processes, but must not weigh more
        parts = max(parts, [variance * share / 2 for variance in variances], key=sum)
    error, degrees = summed_error([(part, len(side) - 1) for part, side in zip(parts, first, strict=True)])
    return Difference(mean(after) - mean(before), error, degrees, share)


def summed_error(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Error and degrees of freedom of a sum of independent `parts`, each a variance with its degrees.

    Welch–Satterthwaite, from shares of the variance, whose squares do not underflow.
    """
    total = math.fsum(variance for variance, _ in parts)
    return math.sqrt(total), 1 / math.fsum((variance / total) ** 2 / degrees for variance, degrees in parts)


def paired(pairs: Sequence[tuple[float, float]]) -> Difference:
    """Mean of after − before over pairs of logarithms of interleaved processes.

    Effects on both processes of a pair cancel. The standard deviation of the differences is at least
    `MIN_DEVIATION`. Raises ValueError for fewer than two pairs.
    """
    changes = [after - before for before, after in pairs]
    count = len(changes)
    error = max(MIN_DEVIATION, deviation(changes)) / math.sqrt(count)
    return Difference(mean(changes), error, count - 1, 1 / count)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, correctly rounded."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Standard deviation with n − 1. Raises ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError("one value has no spread")
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def bounded_exp(log: float) -> float:
    """exp(log), with the logarithm limited to ±`MAX_LOG`, so that it neither overflows nor becomes 0."""
    return math.exp(max(-MAX_LOG, min(MAX_LOG, log)))


def t_tail(value: float, degrees: float) -> float:
    """P(T ≤ value) of Student's t distribution."""
    from scipy.special import stdtr

    return float(stdtr(degrees, value))


def holm(ps: Sequence[float], min_family: int = 1) -> list[float]:
    """Holm's adjusted p values in the given order (Holm 1979).

    Rejections of all those below α are all correct with probability 1 − α. Each p is multiplied by at least
    `min_family`.
    """
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, max(len(ps) - rank, min_family) * ps[index]))
        adjusted[index] = largest
    return adjusted


def discovery_level(ps: Sequence[float], level: float) -> float:
    """Largest p that is rejected, for an expected share of at most `level` of wrong rejections.

    Benjamini & Hochberg (1995): `level` k/m with the largest k of m whose k-th smallest p reaches it. If
    there is none, `level`/m, which no p reaches. If nothing differs, anything is rejected with probability
    `level`.
    """
    count = len(ps)
    ranks = [rank for rank, p in enumerate(sorted(ps), 1) if p <= level * rank / count]
    return level * max(ranks, default=1) / max(count, 1)


def tost(difference: Difference, margin: float) -> float:
    """p of two one-sided tests that the true difference lies within ±`margin` (Schuirmann 1987).

    It is below 0.05 exactly if the 90 % interval lies within the margin.
    """
    return max(difference.p_above(-margin), difference.p_below(margin))


def detectable(difference: Difference, level: float) -> float:
    """True difference that a one-sided test at `level` finds with `POWER` (noncentral t, exact)."""
    from scipy.special import nctdtrinc

    critical = t_quantile(1 - level, difference.degrees)
    return float(nctdtrinc(difference.degrees, 1 - POWER, critical)) * difference.error


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """Prior of a case's variance from all cases: s₀² with d₀ degrees of freedom (Smyth 2004).

    d₀ is infinite if the cases differ no more than by chance. `max_degrees`: degrees of freedom of all
    cases together, an upper limit.
    """

    variance: float
    degrees: float
    max_degrees: float

    def posterior(self, variance: float, degrees: float) -> tuple[float, float]:
        """Moderated variance and degrees of freedom of a case, given its own `variance` and `degrees`.

        max(s², (d₀ s₀² + d s²) / (d₀ + d)) with min(d₀ + d, `max_degrees`) degrees of freedom. It is never
        below the own s²: a few cases noisier than the rest would cause false alarms
        (studies/adaptive_rounds.py).
        """
        weight = degrees / (self.degrees + degrees)  # 0 if the cases do not differ
        moderated = weight * variance + (1 - weight) * self.variance
        return max(variance, moderated), max(degrees, min(self.degrees + degrees, self.max_degrees))

    def moderate(self, variance: float, degrees: float) -> tuple[float, float]:
        """As `posterior`, but the own variance is kept only if it is significantly larger than the others'.

        At `LARGE_P` an outlying case keeps its own variance (Phipson et al. 2016), while one that is large
        by chance is shrunk. At `UNRELATED_P` it also keeps its own degrees of freedom. For claims that are
        corrected for several looks and by false discovery rate, this keeps the error (studies/ranking.py)
        and finds more.
        """
        p = self.p_of(variance, degrees)
        if p < UNRELATED_P:
            return variance, degrees
        pooled_degrees = max(degrees, min(self.degrees + degrees, self.max_degrees))
        if p < LARGE_P:
            return variance, pooled_degrees
        weight = degrees / (self.degrees + degrees)
        return weight * variance + (1 - weight) * self.variance, pooled_degrees

    def p_of(self, variance: float, degrees: float) -> float:
        """p of so large a variance: F distribution, or χ² if the cases do not differ."""
        from scipy.special import chdtrc, fdtrc

        excess = variance / self.variance
        if math.isinf(self.degrees):
            return float(chdtrc(degrees, excess * degrees))
        return float(fdtrc(degrees, self.degrees, excess))


def robust_prior(
    variances: Sequence[float], degrees: Sequence[float], squared_correlation: float = 0.0
) -> VariancePrior:
    """The `variance_prior` without extreme variances."""
    typical = typical_indices(variances, degrees)
    return variance_prior(
        [variances[index] for index in typical], [degrees[index] for index in typical], squared_correlation
    )


def typical_indices(variances: Sequence[float], degrees: Sequence[float]) -> list[int]:
    """Indices of all variances except the few extreme ones.

    Extreme are those of the largest tenth whose p, relative to all others, is below `EXTREME_P`.
    """
    order = sorted(range(len(variances)), key=variances.__getitem__)
    smaller = order[: len(order) - math.ceil(len(order) / 10)]
    if len(smaller) < 2:
        return order
    prior = variance_prior([variances[index] for index in smaller], [degrees[index] for index in smaller])
    largest = order[len(smaller) :]
    return smaller + [index for index in largest if prior.p_of(variances[index], degrees[index]) >= EXTREME_P]


def variance_prior(
    variances: Sequence[float], degrees: Sequence[float], squared_correlation: float = 0.0
) -> VariancePrior:
    """Prior from the variances of two or more cases, which are above 0.

    The variances are modelled by a scaled inverse χ² distribution, whose scale s₀² and degrees of freedom
    d₀ follow from the mean and the variance of their logarithms. `squared_correlation`: mean ρ² between
    cases. With m cases the variance of their mean variance is 1 + (m − 1) ρ² times that of independent
    cases.
    """
    import numpy as np

    scale, prior = _fit_prior(np.array(variances), np.array(degrees))
    max_degrees = math.fsum(degrees) / (1 + (len(variances) - 1) * squared_correlation)
    return VariancePrior(scale, prior, max_degrees)


def _fit_prior(variances: Floats, degrees: Floats) -> tuple[float, float]:
    """Scale s₀² and degrees of freedom d₀."""
    import numpy as np
    from scipy.special import digamma, polygamma

    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    excess = float(logs.var(ddof=1) - polygamma(1, degrees / 2).mean())
    if excess <= 0:
        return math.exp(logs.mean()), math.inf
    half = _trigamma_inverse(excess)
    return math.exp(logs.mean() + float(digamma(half)) - math.log(half)), 2 * half


def _trigamma_inverse(value: float) -> float:
    """Inverse of the trigamma function, by Newton's method from below (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    estimate = 0.5 + 1 / value
    for _ in range(NEWTON_STEPS):
        trigamma = float(polygamma(1, estimate))
        estimate += trigamma * (1 - trigamma / value) / float(polygamma(2, estimate))
    return estimate
