"""Variation between sessions, for comparing two stored runs of different hours. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.judging.change_points import change_points
from benchbench.judging.comparison import SessionSpread
from benchbench.judging.session_cases import BaselineMatch, match_sessions, session_cases, session_variance
from benchbench.judging.sessions import MIN_SESSIONS, day_means, session_deviation
from benchbench.model.options import Variance


def session_spreads(
    sessions: Sequence[Digest], ref: Digest, new: Digest, metric: Metric, variance: Variance
) -> Mapping[str, SessionSpread]:
    """Variance between sessions of the machine by case id, for cases with sessions on enough days.

    `sessions`: oldest first; `ref` and `new` themselves are not used. Days before the last change of a case's
    level are left out if enough days follow, since they measured other code. The variance is shared by all
    cases, by the same rule as in a check.
    """
    other_sessions = [
        session for session in sessions if session.id not in (ref.id, new.id) and session.partner is None
    ]
    sessions_by_case = session_cases(other_sessions, new, strict=False)
    missing_case = CaseDigest()
    matches = (
        _since_last_change(match_sessions(case, case_sessions, new.cases.get(case, missing_case), metric))
        for case, case_sessions in sessions_by_case.items()
    )
    tested = [match for match in matches if match.verdict is None and len(match.days) >= MIN_SESSIONS]
    prior = session_variance(tested, variance).prior
    spreads = {}
    for match in tested:
        deviation = session_deviation(match.days, match.new_logs, 0.0, prior)
        degrees = deviation.difference.degrees
        spreads[match.case] = SessionSpread(deviation.predicted_deviation**2, degrees, len(match.days))
    return spreads


def _since_last_change(match: BaselineMatch) -> BaselineMatch:
    """The match with only the days since the last change of the case's level, if there are enough of them.

    Otherwise all days are used, and the change adds to the variance. Too few days would cause false alarms:
    by chance, one of many cases seems to have changed.
    """
    if len(match.days) <= MIN_SESSIONS:
        return match
    changes = change_points([math.exp(place) for place in day_means(match.days)]).changes
    first = changes[-1].index if changes and len(match.days) - changes[-1].index >= MIN_SESSIONS else 0
    return replace(match, days=match.days[first:], dates=match.dates[first:])
