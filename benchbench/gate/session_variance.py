"""How much sessions differ, told by all cases of a check. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from benchbench.analyse.digest import DISTURBED
from benchbench.comparing.variance import VariancePrior, variance_prior
from benchbench.gate.match import BaselineMatch
from benchbench.gate.spread import ENOUGH, LEAST, day_means
from benchbench.model.options import Variance
from benchbench.stats import deviation, mean

HEAVY_P = 0.003  # of normal sessions: less likely ones are said to have heavy tails
DOUBTFUL_P = 0.05  # less likely ones do not tell of each other's cases

Places = Sequence[float]  # of a case: the mean logarithm of each day


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionVariance:
    """Of one metric. `prior`: what all cases tell of each, None where each is judged alone.

    `heavy_tails`: some sessions are much further from the rest than normal ones are, so that sessions do not
    tell where a further one may be. What is slower than those is provisional.
    """

    prior: VariancePrior | None = None
    heavy_tails: bool = False


ALONE = SessionVariance()


def session_variance(matches: Sequence[BaselineMatch], variance: Variance) -> SessionVariance:
    """By the cases that have sessions of `ENOUGH` days: fewer stand on an assumption of their own."""
    tested = [each for each in matches if each.verdict is None and len(each.days) >= ENOUGH]
    if variance is Variance.OWN or not tested:
        return ALONE
    places = [day_means(each.days) for each in tested]
    alike = likeness([each.dates for each in tested], places)
    normal = normal_p(places, alike) if tested[0].metric.name in DISTURBED else 1.0
    if normal < HEAVY_P:
        return SessionVariance(heavy_tails=True)
    if normal < DOUBTFUL_P or len(tested) < 2:
        return ALONE
    squares = [max(deviation(each), LEAST) ** 2 for each in places]
    return SessionVariance(prior=variance_prior(squares, [len(each) - 1 for each in places], alike))


def likeness(dates: Sequence[tuple[int, ...]], places: Sequence[Places]) -> float:
    """The mean square of the correlation between cases over the days they share, 0 of independent ones.

    Of the cases that have the commonest `dates`. K independent normal values correlate by chance with a mean
    square of 1/(K − 1), which is taken off.
    """
    import numpy as np

    commonest = max(dict.fromkeys(dates), key=dates.count)
    rows = np.array([row for own, row in zip(dates, places, strict=True) if own == commonest])
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > LEAST] / lengths[lengths > LEAST, None]
    count, chance = len(units), 1 / (len(commonest) - 1)
    if count < 2:
        return 0.0
    square = (float(((units.T @ units) ** 2).sum()) - count) / (count * (count - 1))
    return max(0.0, (square - chance) / (1 - chance))


def normal_p(places: Sequence[Places], alike: float) -> float:
    """How likely normal sessions are to have as large a kurtosis, in the mean over the cases.

    Of K normal values it has the mean 3 (K − 1)/(K + 1), and a variance that is exact too (Fisher 1930).
    """
    spread = [each for each in places if deviation(each) > LEAST]
    excess = math.fsum(_kurtosis(each) - 3 * (len(each) - 1) / (len(each) + 1) for each in spread)
    variance = math.fsum(_kurtosis_variance(len(each)) for each in spread) * (1 + (len(spread) - 1) * alike)
    return NormalDist().cdf(-excess / math.sqrt(variance)) if spread else 1.0


def _kurtosis(values: Places) -> float:
    squares = [(value - mean(values)) ** 2 for value in values]
    return mean([square**2 for square in squares]) / mean(squares) ** 2


def _kurtosis_variance(count: int) -> float:
    k = count
    return 24 * k * (k - 2) * (k - 3) / ((k + 1) ** 2 * (k + 3) * (k + 5))
