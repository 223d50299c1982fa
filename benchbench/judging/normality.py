"""Whether sessions differ as normal values do, by their fourth moments. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from benchbench.stats import mean

Places = Sequence[float]  # of a case: the mean logarithm of each day
LEAST_COUNT = 5  # values whose kurtosis can be judged


@dataclass(frozen=True, slots=True)
class Moments:
    """Of `count` values about their mean: the mean square, and the mean fourth power."""

    count: int
    square: float
    fourth: float

    @property
    def kurtosis(self) -> float:
        """3 of many normal values, (count − 1)/(count + 1) of that in the mean of few."""
        return self.fourth / self.square**2


def moments(values: Places) -> Moments:
    """Of one case."""
    centre = mean(values)
    squares = [(value - centre) ** 2 for value in values]
    return Moments(len(values), mean(squares), mean([square**2 for square in squares]))


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
