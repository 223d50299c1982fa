"""Functions on lists of floats. No framework, no file, no clock; scipy only where a report needs it."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchbench.arrays import Floats

LARGE_P = 0.1  # of a variance beside those of the others: below, it is not shrunk to them
UNRELATED_P = 0.02  # likewise: below, the others say nothing of it
EXTREME_P = 1e-3  # of one of the largest variances: below, it does not tell what is usual
MAX_LOG = 700.0  # exp of a larger logarithm overflows
NEWTON_STEPS = 30


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % interval; the ends are None where nothing can be said about the spread."""

    low: float | None
    mid: float
    high: float | None


def median(values: Sequence[float]) -> float:
    """Middle of the sorted values; raises ValueError when there are none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + 0.5 * (high - low)


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics (Hyndman & Fan 1996, type 7)."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def headline(medians: Sequence[float], confidence: float = 0.95, planned: int | None = None) -> Interval:
    """exp(mean of the logs) of the processes' medians, with a t interval over processes.

    Processes are the unit: samples within one process share its memory layout, its autotuning and its
    neighbours, so their number says nothing about another process (Kalibera & Jones 2013). Where the spread
    of the first `planned` decided how many there are, only those tell it (Stein 1945): of all of them, it
    would be too small for the cases that stopped early.
    """
    logs = [math.log(value) for value in medians]
    count = len(logs)
    centre = math.fsum(logs) / count
    mid = math.exp(centre)
    first = logs[:planned]
    if len(first) < 2:
        return Interval(None, mid, None)
    half = t_quantile((1 + confidence) / 2, len(first) - 1) * deviation(first) / math.sqrt(count)
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
        rho = math.fsum(map(operator.mul, centred, centred[lag:])) / variance
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


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of the means of two groups of logarithms, its standard error and its degrees of freedom.

    `share`: error² over the variance of a process, 1/n of each group.
    """

    mid: float
    error: float
    degrees: float
    share: float = 1.0

    @property
    def variance(self) -> float:
        """The variance of a process's logarithm."""
        return self.error**2 / self.share

    def with_variance(self, variance: float, degrees: float) -> Difference:
        """The same difference where processes vary as much, known with these degrees of freedom."""
        return replace(self, error=math.sqrt(variance * self.share), degrees=degrees)

    def half_width(self, confidence: float = 0.95) -> float:
        """Half the width of its t interval."""
        return t_quantile((1 + confidence) / 2, self.degrees) * self.error

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided: how likely so large a difference is where the true one is `bound`."""
        return t_tail((bound - self.mid) / self.error, self.degrees)

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided: how likely so small a difference is where the true one is `bound`."""
        return t_tail((self.mid - bound) / self.error, self.degrees)

    def p_either(self) -> float:
        """Two-sided: twice the smaller tail."""
        return 2 * t_tail(-abs(self.mid) / self.error, self.degrees)


def welch(
    before: Sequence[float],
    after: Sequence[float],
    least: float = 1e-4,
    planned: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Difference:
    """mean(after) − mean(before) of logarithms of processes, without assuming equal spread (Welch 1947).

    Each side's standard deviation is at least `least`: equal values must not make every difference
    significant. `planned`: those of either side that were measured whatever they showed. They alone tell the
    spread where it decided how many followed (Stein 1945). Raises ValueError where a side has less than two.
    """
    first = planned or (before, after)
    variances = [max(least, deviation(side)) ** 2 for side in first]
    weights = [1 / len(before), 1 / len(after)]
    share = sum(weights)
    parts = [variance * weight for variance, weight in zip(variances, weights, strict=True)]
    if planned:  # the side that varied less by chance got fewer processes: its variance must not weigh more
        parts = max(parts, [variance * share / 2 for variance in variances], key=sum)
    square = sum(parts)
    # Welch–Satterthwaite; from shares, since squares of variances can underflow
    shares = [(part / square) ** 2 / (len(side) - 1) for part, side in zip(parts, first, strict=True)]
    return Difference(mean(after) - mean(before), math.sqrt(square), 1 / sum(shares), share)


def paired(pairs: Sequence[tuple[float, float]], least: float = 1e-4) -> Difference:
    """The mean of after − before over pairs of logarithms, of interleaved processes.

    What both of a pair met cancels. The differences' standard deviation is at least `least`. Raises
    ValueError for fewer than two pairs.
    """
    changes = [after - before for before, after in pairs]
    count = len(changes)
    error = max(least, deviation(changes)) / math.sqrt(count)
    return Difference(mean(changes), error, count - 1, 1 / count)


def mean(values: Sequence[float]) -> float:
    """Arithmetic, correctly rounded."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Standard deviation, n − 1; raises ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError("one value has no spread")
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def bounded_exp(log: float) -> float:
    """exp(log), with the logarithm limited to ±`MAX_LOG`, so that it neither overflows nor becomes 0."""
    return math.exp(max(-MAX_LOG, min(MAX_LOG, log)))


def t_tail(value: float, degrees: float) -> float:
    """P(T ≤ value) of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(degrees, value))


def holm(ps: Sequence[float], fewest: int = 1) -> list[float]:
    """Adjusted p values in the given order: all those below α are right together at level α (Holm 1979).

    Each is multiplied by `fewest` at least.
    """
    adjusted = [0.0] * len(ps)
    floor = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        floor = max(floor, min(1.0, max(len(ps) - rank, fewest) * ps[index]))
        adjusted[index] = floor
    return adjusted


def discovery_level(ps: Sequence[float], level: float) -> float:
    """The p up to which hypotheses are rejected: of the rejected, `level` are wrong at most (expected share).

    Benjamini & Hochberg (1995): `level` k/m with the largest k of m whose k-th smallest p reaches it; with
    none, `level`/m, which no p reaches. Where nothing differs, anything is rejected with probability `level`.
    """
    count = len(ps)
    reached = [rank for rank, p in enumerate(sorted(ps), 1) if p <= level * rank / count]
    return level * max(reached, default=1) / max(count, 1)


def tost(difference: Difference, margin: float) -> float:
    """p of two one-sided tests that the true difference lies within ±`margin` (Schuirmann 1987).

    It is below 0.05 exactly where the 90 % interval lies within.
    """
    return max(difference.p_above(-margin), difference.p_below(margin))


def detectable(difference: Difference, level: float, power: float = 0.8) -> float:
    """The true difference that a one-sided test at `level` finds with this power: noncentral t, exact."""
    from scipy.special import nctdtrinc

    critical = t_quantile(1 - level, difference.degrees)
    return float(nctdtrinc(difference.degrees, 1 - power, critical)) * difference.error


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """What all cases tell of the variance of each: s₀², known with d₀ degrees of freedom (Smyth 2004).

    d₀ is infinite where the cases differ no more than chance has it. `most`: the degrees of freedom that all
    cases have together, beyond which none can be known.
    """

    variance: float
    degrees: float
    max_degrees: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """What is taken for a case with variance `own`, known with `degrees`: both, shrunk.

        max(s², (d₀ s₀² + d s²) / (d₀ + d)) and min(d₀ + d, `most`) degrees of freedom. Never less than its
        own s²: a few cases that are noisier than the rest would alarm (studies/adaptive_rounds.py).
        """
        weight = degrees / (self.degrees + degrees)  # 0 where the cases do not differ
        moderated = weight * own + (1 - weight) * self.variance
        return max(own, moderated), max(degrees, min(self.degrees + degrees, self.max_degrees))

    def moderate(self, own: float, degrees: float) -> tuple[float, float]:
        """As `posterior`, but an own variance is kept only where it is significantly larger than the others'.

        At `LARGE_P`: a wild case has its own variance (Phipson et al. 2016), and an ordinary one that happens
        to be large is shrunk. At `UNRELATED_P` it is known with its own degrees of freedom alone: the others
        say nothing of it. For claims that are corrected for several looks, and by false discovery rate: there
        it keeps the error (studies/ranking.py) and finds more.
        """
        p = self.p_of(own, degrees)
        if p < UNRELATED_P:
            return own, degrees
        known = max(degrees, min(self.degrees + degrees, self.max_degrees))
        if p < LARGE_P:
            return own, known
        weight = degrees / (self.degrees + degrees)
        return weight * own + (1 - weight) * self.variance, known

    def p_of(self, own: float, degrees: float) -> float:
        """How likely a case's variance is so large by chance: of F, or of χ² where cases do not differ."""
        from scipy.special import chdtrc, fdtrc

        excess = own / self.variance
        if math.isinf(self.degrees):
            return float(chdtrc(degrees, excess * degrees))
        return float(fdtrc(degrees, self.degrees, excess))


def robust_prior(
    variances: Sequence[float], degrees: Sequence[float], likeness: float = 0.0
) -> VariancePrior:
    """The `variance_prior` of the variances that are not wild."""
    calm = typical_indices(variances, degrees)
    return variance_prior([variances[each] for each in calm], [degrees[each] for each in calm], likeness)


def typical_indices(variances: Sequence[float], degrees: Sequence[float]) -> list[int]:
    """Which variances tell what is usual: all but the few that are wild beside the rest.

    Wild are those of the largest tenth that are as large by chance with `EXTREME_P`, beside all others.
    """
    order = sorted(range(len(variances)), key=variances.__getitem__)
    rest = order[: len(order) - math.ceil(len(order) / 10)]
    if len(rest) < 2:
        return order
    beside = variance_prior([variances[each] for each in rest], [degrees[each] for each in rest])
    largest = order[len(rest) :]
    return rest + [each for each in largest if beside.p_of(variances[each], degrees[each]) >= EXTREME_P]


def variance_prior(
    variances: Sequence[float], degrees: Sequence[float], likeness: float = 0.0
) -> VariancePrior:
    """What two cases or more, whose variances are above 0, tell of each other's.

    They are taken to be drawn from a scaled inverse χ² distribution, whose size s₀² and degrees of freedom d₀
    follow from the mean and the variance of their logarithms. `likeness`: the mean square ρ² of the
    correlation between cases. Of m cases the variance of their mean variance is 1 + (m − 1) ρ² times as large
    as if they were independent.
    """
    import numpy as np

    size, prior = _fit_prior(np.array(variances), np.array(degrees))
    most = math.fsum(degrees) / (1 + (len(variances) - 1) * likeness)
    return VariancePrior(size, prior, most)


def _fit_prior(variances: Floats, degrees: Floats) -> tuple[float, float]:
    """s₀² and d₀."""
    import numpy as np
    from scipy.special import digamma, polygamma

    logs = np.log(variances) - digamma(degrees / 2) + np.log(degrees / 2)
    excess = float(logs.var(ddof=1) - polygamma(1, degrees / 2).mean())
    if excess <= 0:
        return math.exp(logs.mean()), math.inf
    half = _trigamma_inverse(excess)
    return math.exp(logs.mean() + float(digamma(half)) - math.log(half)), 2 * half


def _trigamma_inverse(value: float) -> float:
    """The inverse of the trigamma function, by Newton's method from below (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    found = 0.5 + 1 / value
    for _ in range(NEWTON_STEPS):
        trigamma = float(polygamma(1, found))
        found += trigamma * (1 - trigamma / value) / float(polygamma(2, found))
    return found
