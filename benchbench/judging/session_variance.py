"""How much sessions differ, estimated from all cases of a check. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import DISTURBED
from benchbench.judging.normality import Places, alike_p, moments, normal_p
from benchbench.judging.priors import CommonVariance, HeavyTails
from benchbench.judging.session_match import BaselineMatch
from benchbench.judging.sessions import ENOUGH, LEAST, SessionPrior, day_means
from benchbench.model.options import Variance
from benchbench.stats import VariancePrior, deviation, variance_prior

ALIKE_P = 0.05  # of cases that differ by the same: of less likely ones each differs by an amount of its own
HEAVY_P = 0.15  # of five normal sessions where cases are not alike, less of more of them: they tell better


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionVariance:
    """Of one metric. `prior`: what all cases tell of each, None where each is judged alone.

    `heavy_tails`: some sessions are much further from the rest than normal ones are, so that sessions do not
    tell where a further one may be. What is slower than those is provisional.
    """

    prior: SessionPrior | None = None
    heavy_tails: bool = False


ALONE = SessionVariance()


def session_variance(matches: Sequence[BaselineMatch], variance: Variance) -> SessionVariance:
    """By the cases that have sessions of `ENOUGH` days: fewer stand on an assumption of their own."""
    tested = [each for each in matches if each.verdict is None and len(each.days) >= ENOUGH]
    if variance is Variance.OWN or len(tested) < 2:
        return ALONE
    places = [day_means(each.days) for each in tested]
    alike = likeness([each.dates for each in tested], places)
    if tested[0].metric.name not in DISTURBED:  # memory: what differs at all differs by steps
        return SessionVariance(prior=_prior(places, alike))
    return estimated_from_all(places, alike)


def estimated_from_all(places: Sequence[Places], alike: float) -> SessionVariance:
    """From two or more cases of likeness `alike`: they differ equally, have heavy tails, or neither."""
    cases = [moments(each) for each in places]
    degrees = [each.count - 1 for each in cases]
    squares = [max(each.square * each.count / (each.count - 1), LEAST**2) for each in cases]
    common = math.fsum(map(operator.mul, squares, degrees)) / sum(degrees)
    if alike_p(cases, alike) >= ALIKE_P:
        known = sum(degrees) / (1 + (len(places) - 1) * alike)
        return SessionVariance(prior=CommonVariance(common, known))
    days = max(each.count for each in cases)
    if normal_p(cases, alike) < HEAVY_P / (days - ENOUGH + 1):
        return SessionVariance(prior=HeavyTails(common), heavy_tails=True)
    return SessionVariance(prior=_prior(places, alike))


def _prior(places: Sequence[Places], alike: float) -> VariancePrior:
    """Of cases whose sessions differ by more in some than in others (Smyth 2004)."""
    squares = [max(deviation(each), LEAST) ** 2 for each in places]
    return variance_prior(squares, [len(each) - 1 for each in places], alike)


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
