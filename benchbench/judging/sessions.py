"""Variation between the sessions of a baseline, and how far a new run deviates from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from benchbench.judging.variance import HOUR_S
from benchbench.reading import unix_time
from benchbench.stats import Difference, deviation, mean

DAY_S = 20 * HOUR_S  # shorter than 24 h: a nightly job that starts a few hours early counts as another day
MIN_SESSIONS = 5  # days with sessions; if there are fewer, an assumed spread replaces the missing ones
# Standard deviation between sessions of a machine, as a fraction. Shared: the smallest of nine benchmark
# series on hosted CI runners (7 to 27 %). Dedicated: 586 JMH benchmarks on a dedicated server have 1.2 % in
# the median and 2.8 % in the upper quartile between processes (Traini et al. 2022).
ASSUMED_SHARED, ASSUMED_DEDICATED = 0.07, 0.02
MIN_DEVIATION = 1e-4  # standard deviation: equal values must not make every difference significant
ASSUMED_MEMORY = 0.02  # upper limit for memory metrics, which hardly depend on other programs

LogsByHour = Sequence[Sequence[float]]  # one day: for each hour, the logarithms of its processes


class SessionPrior(Protocol):
    """Knowledge from all cases of a check about the variance between the sessions of one case."""

    def posterior(self, variance: float, degrees: float) -> tuple[float, float]:
        """Variance and degrees of freedom to assume for a case, given the case's own."""


@dataclass(frozen=True, slots=True)
class SessionDeviation:
    """Deviation of a run from the sessions of `days` days, and the deviation expected of a further session.

    `spread`: measured standard deviation of a session's logarithm; None for one session.
    `predicted_deviation`: the standard deviation that the test uses, which includes the assumed spread while
    there are fewer than `MIN_SESSIONS` days. `process_variance`: variance of the logarithms of processes
    within an hour. `stored_variance`: contribution of the sessions' processes to the squared error.
    """

    difference: Difference
    spread: float | None
    days: int
    predicted_deviation: float
    process_variance: float
    stored_variance: float

    @property
    def is_provisional(self) -> bool:
        """Whether the error includes an assumed spread because days are missing."""
        return self.days < MIN_SESSIONS


def session_deviation(
    days: Sequence[LogsByHour], new: Sequence[float], assumed: float, prior: SessionPrior | None = None
) -> SessionDeviation:
    """Deviation of the run `new` (logarithms of its processes) from the sessions of `days`.

    The run counts as one hour of a further day. Hours are nested in days: the mean of a day with H hours has
    the variance σ_d² + σ_h²/H and a new run has σ_d² + σ_h², so the difference σ_h² (1 − 1/H) is added. The
    difference from the mean of K days has the error s √(1 + 1/K) and K − 1 degrees of freedom. From
    `MIN_SESSIONS` days on, `prior` moderates s and its degrees of freedom. Below, each missing day is taken
    to deviate by `assumed`, with the degrees of freedom of `MIN_SESSIONS` days. If the error that the
    processes alone explain is larger, it is used instead. Raises ValueError if there is no session, or one
    without a value.
    """
    if not (new and days and all(day and all(day) for day in days)):
        raise ValueError("a session without a value")
    count = len(days)
    hour_means = [[mean(logs) for logs in day] for day in days]
    day_values = [mean(day) for day in hour_means]
    measured_between = deviation(day_values) ** 2 if count > 1 else 0.0
    averaged_out = pooled_variance(hour_means)[0] * (1 - mean([1 / len(day) for day in days]))
    between_days, degrees_between = _variance_between_days(measured_between, count, assumed, prior)
    variance, degrees = pooled_variance([*(logs for day in days for logs in day), new])
    process_variance = max(variance, MIN_DEVIATION**2) if degrees else 0.0
    stored_variance = process_variance * sum(1 / sum(map(len, day)) for day in days) / count**2
    error = math.sqrt(
        max(between_days * (1 + 1 / count) + averaged_out, process_variance / len(new) + stored_variance)
    )
    return SessionDeviation(
        difference=Difference(mean(new) - mean(day_values), error, degrees_between),
        spread=math.sqrt(measured_between + averaged_out) if count > 1 else None,
        days=count,
        predicted_deviation=math.sqrt(between_days + averaged_out),
        process_variance=process_variance,
        stored_variance=stored_variance,
    )


def day_means(days: Sequence[LogsByHour]) -> list[float]:
    """Mean logarithm of each day: the mean of its hours' means."""
    return [mean([mean(logs) for logs in day]) for day in days]


def _variance_between_days(
    variance: float, count: int, assumed: float, prior: SessionPrior | None
) -> tuple[float, float]:
    """Variance between days and its degrees of freedom, from the measured `variance` of `count` days.

    Each day missing to `MIN_SESSIONS` contributes `assumed`². The degrees of freedom are then those of
    `MIN_SESSIONS` days, so that an additional day never makes a check less sensitive.
    """
    if missing_days := max(MIN_SESSIONS - count, 0):
        variance = ((count - 1) * variance + missing_days * assumed**2) / (MIN_SESSIONS - 1)
        return max(variance, MIN_DEVIATION**2), MIN_SESSIONS - 1
    variance = max(variance, MIN_DEVIATION**2)
    return prior.posterior(variance, count - 1) if prior else (variance, count - 1)


def days_of(started: Sequence[str]) -> list[int]:
    """Number of each session's day, from 0. A day lasts `DAY_S` from its first session on."""
    return _number_by_time(started, DAY_S)


def hours_of(started: Sequence[str]) -> list[int]:
    """Number of each session's hour, from 0. An hour begins with its first session."""
    return _number_by_time(started, HOUR_S)


def _number_by_time(started: Sequence[str], length_s: float) -> list[int]:
    numbers, group, first = dict[int, int](), -1, -math.inf
    for index in sorted(range(len(started)), key=lambda number: (_start_time(started[number]), number)):
        now = _start_time(started[index])
        if not now - first < length_s:  # also true if the time is unknown (inf − inf is nan)
            group, first = group + 1, now
        numbers[index] = group
    return [numbers[index] for index in range(len(started))]


def _start_time(text: str) -> float:
    try:
        return unix_time(text)
    except ValueError:
        return math.inf


def pooled_variance(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Variance within groups, and its degrees of freedom."""
    several = [values for values in groups if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    squares = math.fsum((len(values) - 1) * deviation(values) ** 2 for values in several)
    return (squares / degrees if degrees else 0.0), degrees


DayMeans = Sequence[float]  # of one case: the mean logarithm of each day
MIN_KURTOSIS_COUNT = 5  # values; the test of the kurtosis needs as many


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


def moments(values: DayMeans) -> Moments:
    centre = mean(values)
    offsets = [value - centre for value in values]
    return Moments(
        count=len(values),
        square=mean([offset * offset for offset in offsets]),
        cube=mean([offset * offset * offset for offset in offsets]),
        fourth=mean([(offset * offset) ** 2 for offset in offsets]),
    )


def equal_variance_p(cases: Sequence[Moments], squared_correlation: float) -> float:
    """p value of the hypothesis that sessions are normal with the same variance in every case.

    The statistic is the kurtosis of all cases pooled, which unequal variances increase as heavy tails do.
    `squared_correlation`: mean ρ² between cases. The fourth powers, without the part that the squares
    explain, correlate by ρ⁴. Returns 1 if nothing varies.
    """
    count = sum(case.count for case in cases)
    square = math.fsum(case.count * case.square for case in cases) / count
    fourth = math.fsum(case.count * case.fourth for case in cases) / count
    independent = count / (1 + (len(cases) - 1) * squared_correlation**2)
    return _kurtosis_p(fourth / square**2, independent) if square else 1.0


def normality_p(cases: Sequence[Moments], squared_correlation: float) -> float:
    """p value of the hypothesis that sessions are normal, with any variance in each case.

    The statistic is the mean kurtosis of the cases, weighted by their variances: an outlying session
    increases both, so for t₃ the weights double the power. The mean 3 (K − 1)/(K + 1) and the variance of the
    kurtosis of K normal values are exact (Fisher 1930). `squared_correlation`: mean ρ² between cases.
    """
    varying = [case for case in cases if case.square]
    if not varying:
        return 1.0
    excess = math.fsum(case.square * (case.kurtosis - _kurtosis_mean(case.count)) for case in varying)
    total = math.fsum(case.square for case in varying)
    squares = math.fsum(case.square**2 for case in varying)
    variance = math.fsum(case.square**2 * _kurtosis_variance(case.count) for case in varying)
    inflation = 1 + squared_correlation * (total**2 / squares - 1)
    return NormalDist().cdf(-excess / math.sqrt(variance * inflation))


def symmetry_p(cases: Sequence[Moments], squared_correlation: float) -> float:
    """p value of the hypothesis that sessions are normal, against a skew towards large values.

    The skewness of K normal values has the mean 0 and the variance 6 (K − 2)/((K + 1)(K + 3)) (Fisher 1930).
    The statistic is the mean skewness weighted by standard deviations: for log-normal and exponential
    sessions this has more power than equal weights or weights by variance. Third powers correlate by ρ³
    between cases, so using `squared_correlation` (mean ρ²) is conservative.
    """
    varying = [case for case in cases if case.square]
    if not varying:
        return 1.0
    weighted = math.fsum(math.sqrt(case.square) * case.skewness for case in varying)
    total = math.fsum(math.sqrt(case.square) for case in varying)
    squares = math.fsum(case.square for case in varying)
    variance = math.fsum(case.square * _skewness_variance(case.count) for case in varying)
    inflation = 1 + squared_correlation * (total**2 / squares - 1)
    return NormalDist().cdf(-weighted / math.sqrt(variance * inflation))


def _skewness_variance(count: float) -> float:
    k = count
    return 6 * (k - 2) / ((k + 1) * (k + 3))


def _kurtosis_mean(count: float) -> float:
    return 3 * (count - 1) / (count + 1)


def _kurtosis_variance(count: float) -> float:
    k = count
    return 24 * k * (k - 2) * (k - 3) / ((k + 1) ** 2 * (k + 3) * (k + 5))


def _kurtosis_p(kurtosis: float, count: float) -> float:
    """One-sided p of a kurtosis of `count` normal values (Anscombe & Glynn 1983, as scipy.kurtosistest)."""
    n = count
    if n < MIN_KURTOSIS_COUNT:
        return 1.0
    x = (kurtosis - _kurtosis_mean(n)) / math.sqrt(_kurtosis_variance(n))
    skew = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9))
    skew *= math.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / skew * (2 / skew + math.sqrt(1 + 4 / skew**2))
    denominator = 1 + x * math.sqrt(2 / (a - 4))
    if denominator <= 0:  # far lighter tails than normal, where the approximation ends
        return 1.0
    z = (1 - 2 / (9 * a) - ((1 - 2 / a) / denominator) ** (1 / 3)) / math.sqrt(2 / (9 * a))
    return NormalDist().cdf(-z)


OUTLIER_P = 0.02  # below this p of the F test, a case keeps its own, larger variance
MIN_OWN_SHARE = 0.6  # of its own variance, which a case keeps at least: the F test misses some


@dataclass(frozen=True, slots=True)
class CommonVariance:
    """Prior if sessions vary equally in every case: the pooled variance and its degrees of freedom."""

    variance: float
    degrees: float

    def posterior(self, variance: float, degrees: float) -> tuple[float, float]:
        """Pooled variance, or the case's own if that is significantly larger (F test at `OUTLIER_P`).

        At least `MIN_OWN_SHARE` of its own: otherwise the few cases that do vary more raise false alarms.
        """
        from scipy.special import fdtrc

        is_outlier = fdtrc(degrees, self.degrees, variance / self.variance) < OUTLIER_P
        return (variance if is_outlier else max(self.variance, MIN_OWN_SHARE * variance)), max(
            degrees, self.degrees
        )


@dataclass(frozen=True, slots=True)
class HeavyTails:
    """Prior if some sessions are outliers, so that a further session of any case may be one.

    Every case has at least the pooled variance, and at most `MIN_SESSIONS` − 1 degrees of freedom: the tails
    are then about as heavy as those of sessions with a t₃ distribution.
    """

    variance: float

    def posterior(self, variance: float, degrees: float) -> tuple[float, float]:
        return max(variance, self.variance), min(degrees, MIN_SESSIONS - 1)
