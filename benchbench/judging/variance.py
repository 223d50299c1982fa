"""How much processes of unchanged code differ, over all cases, and which change that lets one see. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from benchbench.analyse.drift import Drift
from benchbench.model.options import Variance
from benchbench.stats import LARGE_P, Difference, mean, median, t_quantile, variance_prior

HOUR_S = 3600.0  # runs begun within it share temperature and neighbours
FEW = (3, 4)  # processes that may all be in one of two modes: five are in one case of sixteen
MODES_P = 1e-3  # of groups of normal values that are as clustered
LEAST_P = 0.01  # of one group: values may be equal because they were rounded
LEAST_RANGE = 1e-4  # of a group's logarithms: below, what clusters does not matter


def shared_variance(differences: Sequence[Difference]) -> list[Difference]:
    """With the error and the degrees of freedom that all cases together give each (moderated t)."""
    if len(differences) < 2:
        return list(differences)
    prior = variance_prior([each.variance for each in differences], [each.degrees for each in differences])
    return [each.with_variance(*prior.posterior(each.variance, each.degrees)) for each in differences]


def judged_together(
    differences: Sequence[Difference], groups: Iterable[Sequence[float]], variance: Variance
) -> list[Difference]:
    """Each with the variance that all cases tell, if that is asked for; `groups`: as of `in_modes`."""
    if variance is Variance.OWN:
        return list(differences)
    return (at_least_the_mean if in_modes(groups) else shared_variance)(differences)


def at_least_the_mean(differences: Sequence[Difference]) -> list[Difference]:
    """Each with at least the mean variance of all, and its own degrees of freedom."""
    typical = mean([each.variance for each in differences])
    return [each.with_variance(max(typical, each.variance), each.degrees) for each in differences]


def allowing_for(drifts: Sequence[Drift], differences: Sequence[Difference]) -> list[Difference]:
    """With what runs that drifted add to the error of each (Welch–Satterthwaite)."""
    return [_widened(each, drifts) for each in differences] if drifts else list(differences)


def of_two_sessions(difference: Difference, variance: float, degrees: float) -> Difference:
    """The difference of runs of two sessions, each of which is off by `variance`, known with `degrees`.

    What sessions differ by holds what their processes do: the larger error of both counts.
    """
    error = math.sqrt(2 * variance)
    return replace(difference, error=error, degrees=degrees) if error > difference.error else difference


def _widened(difference: Difference, drifts: Sequence[Drift]) -> Difference:
    parts = [(difference.error**2, difference.degrees), *((each.variance, each.degrees) for each in drifts)]
    square = math.fsum(variance for variance, _ in parts)
    degrees = 1 / math.fsum((variance / square) ** 2 / known for variance, known in parts)
    return replace(difference, error=math.sqrt(square), degrees=degrees)


def in_modes(groups: Iterable[Sequence[float]]) -> bool:
    """Whether few processes cluster as those of a case in two modes do: two alike, and one far from them.

    Of three or four values the spread says little then, since all may be in one mode. The first three of each
    group count. Of three normal values the direction of their deviations is uniform, so the smaller gap is
    at most the share u of the range with p = 1 − 6/π · atan((1 − 2u)/√3). Fisher's method joins the groups.
    """
    from scipy.special import chdtrc

    ps = [_cluster_p(group[:3]) for group in groups if len(group) in FEW]
    known = [p for p in ps if p is not None]
    total = -2 * math.fsum(math.log(max(p, LEAST_P)) for p in known)
    return bool(known) and float(chdtrc(2 * len(known), total)) < MODES_P


def larger_variances(
    differences: Iterable[tuple[Hashable, Difference]], usual: float
) -> dict[Hashable, tuple[float, float]]:
    """Pooled variance and degrees of freedom of each group that varies significantly more than is usual.

    Pooling finds a group of which single pairs hide their variance: of three processes in two modes, all are
    in the same one in a quarter of the cases. The F test is at `LARGE_P`, with the degrees of all groups for
    `usual`. It tests the median variance, which a single wild pair does not make large. A group that is alone
    varies as usual.
    """
    from scipy.special import fdtrc

    groups: dict[Hashable, list[Difference]] = {}
    for group, difference in differences:
        groups.setdefault(group, []).append(difference)
    degrees = {group: math.fsum(each.degrees for each in members) for group, members in groups.items()}
    total = math.fsum(degrees.values())
    return {
        group: (math.fsum(each.variance * each.degrees for each in members) / degrees[group], degrees[group])
        for group, members in groups.items()
        if min(len(groups), len(members)) > 1
        and fdtrc(degrees[group], total, median([each.variance for each in members]) / usual) < LARGE_P
    }


def _cluster_p(three: Sequence[float]) -> float | None:
    low, middle, high = sorted(three)
    if high - low < LEAST_RANGE:
        return None
    share = min(middle - low, high - middle) / (high - low)
    return 1 - 6 / math.pi * math.atan((1 - 2 * share) / math.sqrt(3))


POWER = 0.8
POINTS = 32  # of the quadrature over a variance: its error in the power is below 0.01
PRECISION = 1e-3  # of the change, relative


def visible_change(margin: float, error: float, degrees: float, levels: tuple[float, ...]) -> float:
    """As a logarithm, for tests of new processes at `levels`, one-sided, all of which have to call it slower.

    A test calls what is significant and at least `margin`. Each has an error of its own, as uncertain as the
    one that is known, so the power is integrated over σ² = error² ν/χ²(ν) and over the errors of the tests to
    come.
    """
    return _relative(_rounded(margin / error), _rounded(degrees), levels) * error


def _rounded(value: float) -> float:
    """As many digits as anybody sees, to compute each once."""
    return float(f"{value:.3g}")


@cache
def _relative(margin: float, degrees: float, levels: tuple[float, ...]) -> float:
    """`visible_change` in units of the error."""
    import numpy as np
    from scipy.special import gammaincinv, ndtr

    shares = (np.arange(POINTS) + 0.5) / POINTS
    roots = np.sqrt(gammaincinv(degrees / 2, shares) * 2 / degrees)
    known, to_come = roots[:, None], roots[None, :]
    needed = [np.maximum(margin * known, t_quantile(1 - level, degrees) * to_come) for level in levels]

    def power(change: float) -> float:
        called = 1.0
        for bar in needed:
            called = called * ndtr(change * known - bar).mean(axis=1)
        return float(np.mean(called))

    return _reached(power, POWER)


def _reached(power: Callable[[float], float], wanted: float) -> float:
    """The change with this power, which grows with it."""
    low, high = 0.0, 1.0
    while power(high) < wanted:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= wanted else (middle, high)
    return high
