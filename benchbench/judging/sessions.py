"""How far sessions of a baseline differ: by days and hours, as normal values do or not. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from benchbench.judging.variance import HOUR_S
from benchbench.reading import unix_time
from benchbench.stats import Difference, deviation, mean

DAY_S = 20 * HOUR_S  # of a session: a nightly job that starts a few hours early is still another day
ENOUGH = 5  # sessions; with fewer, an assumed spread stands in for those that are missing
# Standard deviation between sessions of a machine, as a fraction. Shared: the least of nine benchmark series
# on hosted CI runners, 7 to 27 %. Dedicated: between processes of 586 JMH benchmarks on a server of their own
# (Traini et al. 2022) it is 1.2 % in the median and 2.8 % in the upper quartile.
ASSUMED_SHARED, ASSUMED_DEDICATED = 0.07, 0.02
LEAST = 1e-4  # a standard deviation: equal values must not make every difference significant
ASSUMED_MEMORY = 0.02  # at most: what a program allocates hardly depends on who else works on the machine

Hours = Sequence[Sequence[float]]  # of one day: the logarithms of the processes of each hour


class SessionPrior(Protocol):
    """What all cases of a check say about how much the sessions of one case differ."""

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """The variance and degrees of freedom to assume for a case that has `own` and `degrees` by itself."""


@dataclass(frozen=True, slots=True)
class SessionDeviation:
    """How far a run deviates from the sessions of `days` days, and by how much further sessions would.

    `spread`: standard deviation of a further session's logarithm, None for one session. `further`: the same
    with the assumed spread in it where the sessions are fewer than `ENOUGH`. `process_variance`: of the
    logarithms of processes within an hour; `stored_variance`: what those of the sessions add to the error.
    """

    difference: Difference
    spread: float | None
    days: int
    further: float
    process_variance: float
    stored_variance: float

    @property
    def provisional(self) -> bool:
        """Whether the error stands on an assumed spread, not only on what was measured."""
        return self.days < ENOUGH


def session_deviation(
    days: Sequence[Hours], new: Sequence[float], assumed: float, prior: SessionPrior | None = None
) -> SessionDeviation:
    """`new` against sessions, as one hour of one further day.

    Hours are nested in days. The mean of a day of H hours has the variance σ_d² + σ_h²/H, a new run
    σ_d² + σ_h², so what several hours a day average away is added again. The difference from the mean of K
    days has the error s √(1 + 1/K) and t of K − 1 degrees of freedom. With `ENOUGH` days, s and its degrees
    of freedom are what the `prior`, of all cases, makes of them. Below, each missing one counts as differing
    by `assumed`, with the degrees of `ENOUGH`. Where processes alone explain more, their error counts. Raises
    ValueError for no session, or one without a value.
    """
    if not (new and days and all(day and all(day) for day in days)):
        raise ValueError("a session without a value")
    count = len(days)
    hours = [[mean(logs) for logs in day] for day in days]
    places = [mean(day) for day in hours]
    between = deviation(places) ** 2 if count > 1 else 0.0
    averaged = _pooled(hours)[0] * (1 - mean([1 / len(day) for day in days]))
    filled, known = _filled(between, count, assumed, prior)
    variance, degrees = _pooled([*(logs for day in days for logs in day), new])
    processes = max(variance, LEAST**2) if degrees else 0.0
    stored = processes * sum(1 / sum(map(len, day)) for day in days) / count**2
    error = math.sqrt(max(filled * (1 + 1 / count) + averaged, processes / len(new) + stored))
    return SessionDeviation(
        difference=Difference(mean(new) - mean(places), error, known),
        spread=math.sqrt(between + averaged) if count > 1 else None,
        days=count,
        further=math.sqrt(filled + averaged),
        process_variance=processes,
        stored_variance=stored,
    )


def day_means(days: Sequence[Hours]) -> list[float]:
    """The mean of each day's hours, each the mean of its processes."""
    return [mean([mean(logs) for logs in day]) for day in days]


def _filled(variance: float, count: int, assumed: float, prior: SessionPrior | None) -> tuple[float, float]:
    """The variance between `count` days, and its degrees of freedom.

    Days missing to `ENOUGH` are taken to differ as assumed. Their degrees of freedom are those of `ENOUGH`
    days, so that no further day makes a check see less.
    """
    if missing := max(ENOUGH - count, 0):
        variance = ((count - 1) * variance + missing * assumed**2) / (ENOUGH - 1)
        return max(variance, LEAST**2), ENOUGH - 1
    variance = max(variance, LEAST**2)
    return prior.posterior(variance, count - 1) if prior else (variance, count - 1)


def days_of(started: Sequence[str]) -> list[int]:
    """The day of each session, numbered from 0: a day is `DAY_S` from its first session on."""
    return _groups(started, DAY_S)


def hours_of(started: Sequence[str]) -> list[int]:
    """The hour of each session, numbered from 0: an hour begins with its first session."""
    return _groups(started, HOUR_S)


def _groups(started: Sequence[str], length_s: float) -> list[int]:
    numbers, group, first = dict[int, int](), -1, -math.inf
    for index in sorted(range(len(started)), key=lambda each: (_moment(started[each]), each)):
        now = _moment(started[index])
        if not now - first < length_s:  # also where no date is known
            group, first = group + 1, now
        numbers[index] = group
    return [numbers[index] for index in range(len(started))]


def _moment(text: str) -> float:
    try:
        return unix_time(text)
    except ValueError:
        return math.inf


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The variance within groups, and its degrees of freedom."""
    several = [values for values in groups if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    squares = math.fsum((len(values) - 1) * deviation(values) ** 2 for values in several)
    return (squares / degrees if degrees else 0.0), degrees


Places = Sequence[float]  # of a case: the mean logarithm of each day
LEAST_COUNT = 5  # values whose kurtosis can be judged


@dataclass(frozen=True, slots=True)
class Moments:
    """The mean square, cube and fourth power of `count` values about their mean."""

    count: int
    square: float
    cube: float
    fourth: float

    @property
    def skewness(self) -> float:
        """0 in the mean of normal values, above 0 where some are much larger than the rest."""
        return self.cube / (self.square * math.sqrt(self.square))

    @property
    def kurtosis(self) -> float:
        """3 of many normal values, (count − 1)/(count + 1) of that in the mean of few."""
        return self.fourth / self.square**2


def moments(values: Places) -> Moments:
    """The moments of one case's sessions."""
    centre = mean(values)
    offsets = [value - centre for value in values]
    return Moments(
        count=len(values),
        square=mean([each * each for each in offsets]),
        cube=mean([each * each * each for each in offsets]),
        fourth=mean([(each * each) ** 2 for each in offsets]),
    )


def alike_p(cases: Sequence[Moments], likeness: float) -> float:
    """How likely normal sessions that differ by the same in every case have as large a kurtosis together.

    Cases that differ unlike each other raise it as heavy tails do. 1 where nothing differs. `likeness`: the
    mean square ρ² of the correlation between cases. Fourth powers, freed of what squares tell, correlate by
    ρ⁴.
    """
    count = sum(each.count for each in cases)
    square = math.fsum(each.count * each.square for each in cases) / count
    fourth = math.fsum(each.count * each.fourth for each in cases) / count
    independent = count / (1 + (len(cases) - 1) * likeness**2)
    return _kurtosis_p(fourth / square**2, independent) if square else 1.0


def normal_p(cases: Sequence[Moments], likeness: float) -> float:
    """How likely normal sessions, whatever they differ by in each case, have such kurtoses case by case.

    Normal values have the same kurtosis whatever their variance; of heavy tails the far session makes both
    large. So kurtoses are weighted by variances: for t₃ that finds twice as many as the plain mean. K normal
    values have the mean 3 (K − 1)/(K + 1), and a variance that is exact too (Fisher 1930). `likeness`: as of
    `alike_p`.
    """
    spread = [each for each in cases if each.square]
    if not spread:
        return 1.0
    excess = math.fsum(each.square * (each.kurtosis - _kurtosis_mean(each.count)) for each in spread)
    total = math.fsum(each.square for each in spread)
    alone = math.fsum(each.square**2 for each in spread)
    variance = math.fsum(each.square**2 * _kurtosis_variance(each.count) for each in spread)
    together = 1 + likeness * (total**2 / alone - 1)
    return NormalDist().cdf(-excess / math.sqrt(variance * together))


def symmetric_p(cases: Sequence[Moments], likeness: float) -> float:
    """How likely normal sessions, whatever they differ by in each case, are as skewed to large values.

    K normal values have a mean skewness of 0, with variance 6 (K − 2)/((K + 1)(K + 3)) (Fisher 1930).
    Skewnesses are weighted by standard deviations: of log-normal and exponential sessions that finds more
    than the plain mean, or weights by variances. Third powers correlate by ρ³ between cases, so the
    `likeness` ρ² is on the safe side.
    """
    spread = [each for each in cases if each.square]
    if not spread:
        return 1.0
    skewed = math.fsum(math.sqrt(each.square) * each.skewness for each in spread)
    total = math.fsum(math.sqrt(each.square) for each in spread)
    alone = math.fsum(each.square for each in spread)
    variance = math.fsum(each.square * _skewness_variance(each.count) for each in spread)
    together = 1 + likeness * (total**2 / alone - 1)
    return NormalDist().cdf(-skewed / math.sqrt(variance * together))


def _skewness_variance(count: float) -> float:
    k = count
    return 6 * (k - 2) / ((k + 1) * (k + 3))


def _kurtosis_mean(count: float) -> float:
    return 3 * (count - 1) / (count + 1)


def _kurtosis_variance(count: float) -> float:
    k = count
    return 24 * k * (k - 2) * (k - 3) / ((k + 1) ** 2 * (k + 3) * (k + 5))


def _kurtosis_p(kurtosis: float, count: float) -> float:
    """One-sided, of `count` normal values: Anscombe & Glynn 1983, as scipy.stats.kurtosistest has it."""
    n = count
    if n < LEAST_COUNT:
        return 1.0
    x = (kurtosis - _kurtosis_mean(n)) / math.sqrt(_kurtosis_variance(n))
    skew = 6 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9))
    skew *= math.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    a = 6 + 8 / skew * (2 / skew + math.sqrt(1 + 4 / skew**2))
    root = (1 - 2 / a) / (1 + x * math.sqrt(2 / (a - 4)))
    z = (1 - 2 / (9 * a) - math.copysign(abs(root) ** (1 / 3), root)) / math.sqrt(2 / (9 * a))
    return NormalDist().cdf(-z)


OUTLYING_P = 0.02  # of a case that differs as all do: less likely ones differ by more
OWN_SHARE = 0.6  # of a case's own variance, at least: some may differ by more that cannot be told from chance


@dataclass(frozen=True, slots=True)
class CommonVariance:
    """Sessions differ equally in every case: the variance over all cases, and its degrees of freedom."""

    variance: float
    degrees: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """The variance and degrees of freedom to assume for a case that has `own` and `degrees` by itself.

        The variance is the case's own where chance would seldom make it so large. Else it is that of all, and
        at least `OWN_SHARE` of its own, since the few cases that do differ by more would raise false alarms.
        """
        from scipy.special import fdtrc

        outlying = fdtrc(degrees, self.degrees, own / self.variance) < OUTLYING_P
        return (own if outlying else max(self.variance, OWN_SHARE * own)), max(degrees, self.degrees)


@dataclass(frozen=True, slots=True)
class HeavyTails:
    """Some sessions are far from the rest, so in any case a further session may be.

    Every case has at least the variance over all cases, and `ENOUGH` − 1 degrees of freedom however many
    sessions there are: the tails are about as heavy as those of sessions with t₃.
    """

    variance: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """As of `CommonVariance`."""
        return max(own, self.variance), min(degrees, ENOUGH - 1)
