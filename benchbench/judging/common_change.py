"""The change that all cases of a session have in common, and cases relative to it. Pure.

A session may be slow in every case, since its machine was. That says nothing of one case beside the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import DISTURBED, CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.judging.comparison import LEAST_CASES
from benchbench.judging.session_cases import BaselineMatch
from benchbench.judging.sessions import day_means
from benchbench.stats import deviation, mad, mean, median

LEAST_A_DAY = 3  # cases: a median of fewer follows any of them
MAD_TO_DEVIATION = 1.4826  # of normal values
TOGETHER = "all cases together"  # stands for a case's name


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonChange:
    """Logarithms by which the cases of each day, and of the run, are off their usual places together.

    `places`: the median of each case's days. A median over cases does not follow the few that changed by
    themselves, and a median over days not the few days that were slow. `share`: of these changes, the part
    that chance does not explain. Only that is removed: where cases are off independently, removing their
    median would add its error.
    """

    metric: Metric
    places: Mapping[str, float]
    days: Mapping[int, float]
    run: float
    share: float

    def of(self, run: Digest) -> float:
        """The common change of another run of these cases."""
        logs = {case: run.cases[case].logs(self.metric) for case in self.places if case in run.cases}
        return median([mean(own) - self.places[case] for case, own in logs.items() if own])


def common_change(matches: Sequence[BaselineMatch]) -> CommonChange | None:
    """The common change of one metric; None where too few cases tell it, or it cannot depend on the hour."""
    told = [match for match in matches if match.verdict is None and not match.new.disturbance(match.metric)]
    if len(told) < LEAST_CASES or told[0].metric.name not in DISTURBED:
        return None
    places = {match.case: median(day_means(match.days)) for match in told}
    by_date: dict[int, list[float]] = {}
    for match in told:
        for date, day in zip(match.dates, day_means(match.days), strict=True):
            by_date.setdefault(date, []).append(day - places[match.case])
    offsets = {date: own for date, own in sorted(by_date.items()) if len(own) >= LEAST_A_DAY}
    of_run = [mean(match.logs) - places[match.case] for match in told]
    return CommonChange(
        metric=told[0].metric,
        places=places,
        days={date: median(own) for date, own in offsets.items()},
        run=median(of_run),
        share=_share([*offsets.values(), of_run]),
    )


def _share(offsets: Sequence[Sequence[float]]) -> float:
    """The part of the variance of the sessions' medians that chance does not explain (James & Stein 1961).

    The median of n normal values has π/2 times the variance of their mean. Chance is that of the median
    session, since in one run many cases may have changed.
    """
    if len(offsets) < 2:
        return 1.0
    chance = median([math.pi / 2 * (MAD_TO_DEVIATION * mad(own)) ** 2 / len(own) for own in offsets])
    variance = deviation([median(own) for own in offsets]) ** 2
    return max(0.0, 1 - chance / variance) if variance else 0.0


def relative(match: BaselineMatch, change: CommonChange, run: float) -> BaselineMatch:
    """The match without the common change of its days, and without that of its run."""
    changes = [change.share * change.days.get(date, 0.0) for date in match.dates]
    return replace(
        match,
        logs=[log - change.share * run for log in match.logs],
        days=[
            [[log - common for log in hour] for hour in day]
            for common, day in zip(changes, match.days, strict=True)
        ],
    )


def together(change: CommonChange, run: float) -> BaselineMatch:
    """A match of all cases, as if they were one: the geometric mean of their usual places, changed."""
    level = mean(list(change.places.values()))
    return BaselineMatch(
        case=TOGETHER,
        metric=change.metric,
        sides=(),
        new=CaseDigest(),
        logs=[level + run],
        days=[[[level + common]] for common in change.days.values()],
        dates=tuple(change.days),
        verdict=None,
        reason="",
    )
