"""Two stored runs of different hours: how much these differ, as sessions of the machine tell. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.judging.change_points import change_points
from benchbench.judging.comparison import BetweenSessions
from benchbench.judging.session_cases import BaselineMatch, match_sessions, session_cases, session_variance
from benchbench.judging.sessions import ENOUGH, day_means, session_deviation
from benchbench.model.options import Variance


def between_sessions(
    sessions: Sequence[Digest], ref: Digest, new: Digest, metric: Metric, variance: Variance
) -> Mapping[str, BetweenSessions]:
    """By case, how much `sessions` of the machine differ, oldest first; of those known on enough days.

    The two runs tell nothing of it. Days before the last change of a case's level are left out where enough
    follow: they were of other code. The variance is shared by all cases, by the same rule as in a check.
    """
    others = [each for each in sessions if each.id not in (ref.id, new.id) and each.partner is None]
    sides = session_cases(others, new, strict=False)
    none = CaseDigest()
    matches = (
        _of_one_level(match_sessions(case, known, new.cases.get(case, none), metric))
        for case, known in sides.items()
    )
    tested = [each for each in matches if each.verdict is None and len(each.days) >= ENOUGH]
    prior = session_variance(tested, variance).prior
    found = {}
    for each in tested:
        deviation = session_deviation(each.days, each.logs, 0.0, prior)
        degrees = deviation.difference.degrees
        found[each.case] = BetweenSessions(deviation.further**2, degrees, len(each.days))
    return found


def _of_one_level(match: BaselineMatch) -> BaselineMatch:
    """The match with the days since the case's level changed last; with all where these are too few.

    All of them hold the change as well, so the case is taken to vary more. Unknown, it would alarm: by chance
    some case of many seems to have changed.
    """
    if len(match.days) <= ENOUGH:
        return match
    changes = change_points([math.exp(place) for place in day_means(match.days)]).changes
    first = changes[-1].index if changes and len(match.days) - changes[-1].index >= ENOUGH else 0
    return replace(match, days=match.days[first:], dates=match.dates[first:])
