"""Variance of processes of unchanged code, pooled over cases, and the smallest detectable change. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from benchbench.analyse.doubts import Drift
from benchbench.stats import (
    LARGE_P,
    POWER,
    Difference,
    mean,
    median,
    summed_error,
    t_quantile,
    variance_prior,
)

HOUR_S = 3600.0  # runs started within it share temperature and neighbours
CLUSTER_COUNTS = (3, 4)  # processes that may all be in one of two modes; five are in one case of sixteen
MODES_P = 1e-3  # below this joint p the processes of a run are taken to be clustered
MIN_CLUSTER_P = 0.01  # of one group: values may also be equal because they were rounded
MIN_RANGE = 1e-4  # of a group's logarithms; clusters within a smaller range do not matter


def shared_variance(differences: Sequence[Difference]) -> list[Difference]:
    """Differences whose variances are moderated by those of all cases (moderated t, Smyth 2004)."""
    if len(differences) < 2:
        return list(differences)
    prior = variance_prior(
        [difference.variance for difference in differences],
        [difference.degrees for difference in differences],
    )
    return [
        difference.with_variance(*prior.posterior(difference.variance, difference.degrees))
        for difference in differences
    ]


def moderated(differences: Sequence[Difference], groups: Iterable[Sequence[float]]) -> list[Difference]:
    """Differences with the variances that all cases give them.

    `groups`: the logarithms of each case's processes, as for `are_clustered`.
    """
    return (at_least_the_mean if are_clustered(groups) else shared_variance)(differences)


def at_least_the_mean(differences: Sequence[Difference]) -> list[Difference]:
    """Differences with at least the mean variance of all, and their own degrees of freedom."""
    mean_variance = mean([difference.variance for difference in differences])
    return [
        difference.with_variance(max(mean_variance, difference.variance), difference.degrees)
        for difference in differences
    ]


def add_drifts(drifts: Sequence[Drift], differences: Sequence[Difference]) -> list[Difference]:
    """Differences whose errors include the drift of the runs (Welch–Satterthwaite)."""
    return [_add_drift(difference, drifts) for difference in differences] if drifts else list(differences)


def add_session_variance(difference: Difference, variance: float, degrees: float) -> Difference:
    """The difference of two runs of different sessions, each of which deviates by `variance`.

    The variance between sessions includes that between processes, so the larger of both errors is used.
    """
    error = math.sqrt(2 * variance)
    return replace(difference, error=error, degrees=degrees) if error > difference.error else difference


def _add_drift(difference: Difference, drifts: Sequence[Drift]) -> Difference:
    of_drifts = [(drift.variance, drift.degrees) for drift in drifts]
    error, degrees = summed_error([(difference.error**2, difference.degrees), *of_drifts])
    return replace(difference, error=error, degrees=degrees)


def are_clustered(groups: Iterable[Sequence[float]]) -> bool:
    """True if few processes are clustered as in a case with two modes: two close together and one far away.

    The spread of three or four values says little then, since all may be in one mode. The first three values
    of each group are used. For three normal values the direction of their deviations is uniform, so the
    smaller gap is at most the share u of the range with p = 1 − 6/π · atan((1 − 2u)/√3). Fisher's method
    combines the groups.
    """
    from scipy.special import chdtrc

    ps = [_cluster_p(group[:3]) for group in groups if len(group) in CLUSTER_COUNTS]
    cluster_ps = [p for p in ps if p is not None]
    total = -2 * math.fsum(math.log(max(p, MIN_CLUSTER_P)) for p in cluster_ps)
    return bool(cluster_ps) and float(chdtrc(2 * len(cluster_ps), total)) < MODES_P


def larger_variances(
    differences: Iterable[tuple[Hashable, Difference]], typical_variance: float
) -> dict[Hashable, tuple[float, float]]:
    """Pooled variance and degrees of freedom of each group that varies more than typical.

    Single pairs can hide the variance of a group: of three processes in two modes, all are in the same one
    in a quarter of the cases. The F test at `LARGE_P` uses the median variance of a group, which one
    outlying pair does not increase, and the degrees of freedom of all groups for `typical_variance`. A
    group with one member is left out, and so is a group without others.
    """
    from scipy.special import fdtrc

    groups: dict[Hashable, list[Difference]] = {}
    for group, difference in differences:
        groups.setdefault(group, []).append(difference)
    degrees = {group: math.fsum(member.degrees for member in members) for group, members in groups.items()}
    total = math.fsum(degrees.values())
    return {
        group: (
            math.fsum(member.variance * member.degrees for member in members) / degrees[group],
            degrees[group],
        )
        for group, members in groups.items()
        if min(len(groups), len(members)) > 1
        and fdtrc(degrees[group], total, median([member.variance for member in members]) / typical_variance)
        < LARGE_P
    }


def _cluster_p(three: Sequence[float]) -> float | None:
    """p value of three values being as clustered as these; None if their range is negligible."""
    low, middle, high = sorted(three)
    if high - low < MIN_RANGE:
        return None
    share = min(middle - low, high - middle) / (high - low)
    return 1 - 6 / math.pi * math.atan((1 - 2 * share) / math.sqrt(3))


POINTS = 32  # of the quadrature over a variance; the error in the power is below 0.01
PRECISION = 1e-3  # of the detectable change, relative


def detectable_change(margin: float, error: float, degrees: float, levels: tuple[float, ...]) -> float:
    """Smallest change (a logarithm) that tests of new processes at all of `levels` call slower with `POWER`.

    `levels`: one-sided level of each test. A test calls a change slower if it is significant and at least
    `margin`. The true error and the error of each new test are as uncertain as the known one, so the power
    is integrated over σ² = error² ν/χ²(ν) for both.
    """
    return _detectable_in_errors(_rounded(margin / error), _rounded(degrees), levels) * error


def _rounded(value: float) -> float:
    """The value with three digits, so that the cache of `_detectable_in_errors` has few entries."""
    return float(f"{value:.3g}")


@cache
def _detectable_in_errors(margin: float, degrees: float, levels: tuple[float, ...]) -> float:
    """`detectable_change` in units of the error."""
    import numpy as np
    from scipy.special import gammaincinv, ndtr

    shares = (np.arange(POINTS) + 0.5) / POINTS
    roots = np.sqrt(gammaincinv(degrees / 2, shares) * 2 / degrees)
    true_errors, new_errors = roots[:, None], roots[None, :]
    limits = [
        np.maximum(margin * true_errors, t_quantile(1 - level, degrees) * new_errors) for level in levels
    ]

    def power(change: float) -> float:
        all_called = 1.0
        for limit in limits:
            all_called = all_called * ndtr(change * true_errors - limit).mean(axis=1)
        return float(np.mean(all_called))

    return _smallest_detected(power)


def _smallest_detected(power: Callable[[float], float]) -> float:
    """The smallest change at which `power`, which increases with the change, reaches `POWER`."""
    low, high = 0.0, 1.0
    while power(high) < POWER:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
