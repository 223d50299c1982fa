"""Variation between the sessions of a baseline, and how far a new run deviates from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from benchbench.judging.variance import HOUR_S
from benchbench.reading import unix_time
from benchbench.stats import MIN_DEVIATION, Difference, VariancePrior, deviation, mean, variance_prior

DAY_S = 20 * HOUR_S  # shorter than 24 h: a nightly job that starts a few hours early counts as another day
MIN_SESSIONS = 5  # days with sessions; if there are fewer, an assumed spread replaces the missing ones
# Standard deviation between sessions of a machine, as a fraction. Shared: the smallest of nine benchmark
# series on hosted CI runners (7 to 27 %). Dedicated: 586 JMH benchmarks on a dedicated server have 1.2 % in
# the median and 2.8 % in the upper quartile between processes (Traini et al. 2022).
ASSUMED_SHARED, ASSUMED_DEDICATED = 0.07, 0.02
ASSUMED_MEMORY = 0.02  # upper limit for memory metrics, which hardly depend on other programs
Days = Sequence[Sequence[float]]  # for each day, the logarithms of the processes of its session


def days_of(started: Sequence[str]) -> list[int]:
    """Number of each session's day, from 0. A day lasts `DAY_S` from its first session on."""
    numbers, day, first = dict[int, int](), -1, -math.inf
    for index in sorted(range(len(started)), key=lambda number: (_start_time(started[number]), number)):
        now = _start_time(started[index])
        if not now - first < DAY_S:  # also true if the time is unknown (inf − inf is nan)
            day, first = day + 1, now
        numbers[index] = day
    return [numbers[index] for index in range(len(started))]


def _start_time(text: str) -> float:
    try:
        return unix_time(text)
    except ValueError:
        return math.inf


@dataclass(frozen=True, slots=True)
class SessionDeviation:
    """Deviation of a run from the sessions of `days` days, and the deviation expected of a further session.

    `spread`: measured standard deviation of a session's logarithm; None for one session.
    `predicted_deviation`: the standard deviation that the test uses, which includes the assumed spread while
    there are fewer than `MIN_SESSIONS` days. `own_variance`: contribution of the run's processes to the
    squared error. `sessions_dominate`: the error comes from the sessions rather than from the processes.
    """

    difference: Difference
    spread: float | None
    days: int
    predicted_deviation: float
    own_variance: float
    sessions_dominate: bool

    @property
    def is_provisional(self) -> bool:
        """Whether the error includes an assumed spread because days are missing."""
        return self.days < MIN_SESSIONS


def session_deviation(
    days: Days, new: Sequence[float], assumed: float, shared: SharedVariance | None = None
) -> SessionDeviation:
    """Deviation of the run `new` (logarithms of its processes) from the sessions of `days`.

    The difference from the mean of K days has the error s √(1 + 1/K) and K − 1 degrees of freedom. From
    `MIN_SESSIONS` days on, s and its degrees of freedom are those of all cases, if `shared` is given. Below,
    each missing day is taken to deviate by `assumed`, with the degrees of freedom of `MIN_SESSIONS` days. If
    the error that the processes alone explain is larger, it is used instead. Raises ValueError if there is no
    session, or one without a value.
    """
    if not (new and days and all(days)):
        raise ValueError("a session without a value")
    count, day_values = len(days), day_means(days)
    day_variance = deviation(day_values) ** 2 if count > 1 else 0.0
    between_days, degrees_between = variance_between_days(day_variance, count, assumed, shared)
    variance, degrees = pooled_variance([*days, new])
    process_variance = max(variance, MIN_DEVIATION**2) if degrees else 0.0
    session_square = between_days * (1 + 1 / count)
    process_square = process_variance * (1 / len(new) + sum(1 / len(day) for day in days) / count**2)
    error = math.sqrt(max(session_square, process_square))
    return SessionDeviation(
        difference=Difference(mean(new) - mean(day_values), error, degrees_between),
        spread=math.sqrt(day_variance) if count > 1 else None,
        days=count,
        predicted_deviation=math.sqrt(between_days),
        own_variance=process_variance / len(new),
        sessions_dominate=session_square >= process_square,
    )


def day_means(days: Days) -> list[float]:
    """Mean logarithm of each day."""
    return [mean(logs) for logs in days]


def variance_between_days(
    variance: float, count: int, assumed: float, shared: SharedVariance | None = None
) -> tuple[float, float]:
    """Variance between days and its degrees of freedom, from the measured `variance` of `count` days.

    Each day missing to `MIN_SESSIONS` contributes `assumed`². The degrees of freedom are then those of
    `MIN_SESSIONS` days, so that an additional day never makes a check less sensitive.
    """
    if missing_days := max(MIN_SESSIONS - count, 0):
        variance = ((count - 1) * variance + missing_days * assumed**2) / (MIN_SESSIONS - 1)
        return max(variance, MIN_DEVIATION**2), MIN_SESSIONS - 1
    variance = max(variance, MIN_DEVIATION**2)
    return shared.of_case(variance, count - 1) if shared else (variance, count - 1)


def pooled_variance(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Variance within groups, and its degrees of freedom."""
    several = [values for values in groups if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    squares = math.fsum((len(values) - 1) * deviation(values) ** 2 for values in several)
    return (squares / degrees if degrees else 0.0), degrees


HEAVY_TAILS_P = 0.05  # for five sessions; smaller for a larger number of sessions
SKEWED_P = 0.01  # likewise


@dataclass(frozen=True, slots=True)
class SharedVariance:
    """Variance between sessions, estimated from all cases of a check.

    `heavy_tails`: some sessions are far from the rest, and a further session of any case may be. A case that
    is slower than such sessions is provisional.
    """

    prior: VariancePrior
    heavy_tails: bool = False

    def of_case(self, variance: float, degrees: float) -> tuple[float, float]:
        """Moderated variance and degrees of freedom of a case, given its own.

        With heavy tails it is at least the mean variance of all cases, with at most `MIN_SESSIONS` − 1
        degrees of freedom: the tails are then about as heavy as those of sessions with a t₃ distribution.
        """
        variance, degrees = self.prior.posterior(variance, degrees)
        return variance, min(degrees, MIN_SESSIONS - 1) if self.heavy_tails else degrees


def shared_variance(
    day_means_by_case: Sequence[Sequence[float]], squared_correlation: float
) -> SharedVariance:
    """Variance between the sessions of two or more cases (Smyth 2004).

    `day_means_by_case`: in logarithms, with the sign that makes larger values worse. On shared machines they
    are skewed towards slow. `squared_correlation`: mean ρ² between cases.
    """
    cases = [moments(means) for means in day_means_by_case]
    squares = [max(deviation(means), MIN_DEVIATION) ** 2 for means in day_means_by_case]
    extra_days = max(case.count for case in cases) - MIN_SESSIONS + 1
    is_skewed = symmetry_p(cases, squared_correlation) < SKEWED_P / extra_days
    if is_skewed or normality_p(cases, squared_correlation) < HEAVY_TAILS_P / extra_days:
        return SharedVariance(VariancePrior(mean(squares), math.inf, math.inf), heavy_tails=True)
    degrees = [case.count - 1 for case in cases]
    return SharedVariance(variance_prior(squares, degrees, squared_correlation))


def squared_correlation(
    dates: Sequence[tuple[int, ...]], day_means_by_case: Sequence[Sequence[float]]
) -> float:
    """Mean squared correlation between cases over the days that they share; 0 if they are independent.

    Only cases with the most common `dates` are used. K independent normal values correlate with a mean square
    of 1/(K − 1) by chance, which is subtracted.
    """
    import numpy as np

    common_dates = max(dict.fromkeys(dates), key=dates.count)
    rows = np.array(
        [row for case_dates, row in zip(dates, day_means_by_case, strict=True) if case_dates == common_dates]
    )
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > MIN_DEVIATION] / lengths[lengths > MIN_DEVIATION, None]
    count, chance = len(units), 1 / (len(common_dates) - 1)
    if count < 2:
        return 0.0
    mean_square = (float(((units.T @ units) ** 2).sum()) - count) / (count * (count - 1))
    return max(0.0, (mean_square - chance) / (1 - chance))


@dataclass(frozen=True, slots=True)
class Moments:
    """Second, third and fourth central moments of `count` values."""

    count: int
    square: float
    cube: float
    fourth: float

    @property
    def skewness(self) -> float:
        """Skewness: 0 on average for normal values, above 0 if some are much larger than the others."""
        return self.cube / (self.square * math.sqrt(self.square))

    @property
    def kurtosis(self) -> float:
        """Kurtosis: for `count` normal values, 3 (count − 1)/(count + 1) on average."""
        return self.fourth / self.square**2


def moments(values: Sequence[float]) -> Moments:
    centre = mean(values)
    offsets = [value - centre for value in values]
    return Moments(
        count=len(values),
        square=mean([offset * offset for offset in offsets]),
        cube=mean([offset * offset * offset for offset in offsets]),
        fourth=mean([(offset * offset) ** 2 for offset in offsets]),
    )


def normality_p(cases: Sequence[Moments], squared_correlation: float) -> float:
    """p value of the hypothesis that sessions are normal, with any variance in each case.

    The statistic is the mean kurtosis of the cases, weighted by their variances: an outlying session
    increases both, so for t₃ the weights double the power. The mean 3 (K − 1)/(K + 1) and the variance of the
    kurtosis of K normal values are exact (Fisher 1930). `squared_correlation`: mean ρ² between cases.
    """
    excesses = [
        (case.square, case.kurtosis - 3 * (k - 1) / (k + 1), _kurtosis_variance(k))
        for case in cases
        if case.square
        for k in [case.count]
    ]
    return _excess_p(excesses, squared_correlation)


def symmetry_p(cases: Sequence[Moments], squared_correlation: float) -> float:
    """p value of the hypothesis that sessions are normal, against a skew towards large values.

    The skewness of K normal values has the mean 0 and the variance 6 (K − 2)/((K + 1)(K + 3)) (Fisher 1930).
    The statistic is the mean skewness weighted by standard deviations: for log-normal and exponential
    sessions this has more power than equal weights or weights by variance. Third powers correlate by ρ³
    between cases, so using `squared_correlation` (mean ρ²) is conservative.
    """
    excesses = [
        (math.sqrt(case.square), case.skewness, 6 * (k - 2) / ((k + 1) * (k + 3)))
        for case in cases
        if case.square
        for k in [case.count]
    ]
    return _excess_p(excesses, squared_correlation)


def _kurtosis_variance(k: int) -> float:
    return 24 * k * (k - 2) * (k - 3) / ((k + 1) ** 2 * (k + 3) * (k + 5))


def _excess_p(excesses: Sequence[tuple[float, float, float]], squared_correlation: float) -> float:
    """p of a mean excess of 0, from the weight, excess and variance of each case; 1 without a case."""
    if not excesses:
        return 1.0
    weighted = math.fsum(weight * excess for weight, excess, _ in excesses)
    variance = math.fsum(weight**2 * variance for weight, _, variance in excesses)
    total, squares = (math.fsum(weight**power for weight, _, _ in excesses) for power in (1, 2))
    inflation = 1 + squared_correlation * (total**2 / squares - 1)
    return NormalDist().cdf(-weighted / math.sqrt(variance * inflation))
