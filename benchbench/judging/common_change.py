"""Change that all cases of a session have in common, and cases relative to it. Pure.

If the machine was slow, all cases of a session are slow. That is no difference between the cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CONTENDED_METRICS, CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.judging.comparison import MIN_CASES
from benchbench.judging.session_cases import BaselineMatch
from benchbench.judging.sessions import day_means
from benchbench.stats import deviation, mad, mean, median

MIN_CASES_PER_DAY = 3  # the median of fewer cases follows any single one
MAD_TO_DEVIATION = 1.4826  # for normal data (Iglewicz & Hoaglin 1993)
TOGETHER = "all cases together"  # used as the name of a case


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonChange:
    """Common change of all cases on each day and in the run, as logarithms.

    Changes are relative to each case's usual level. `case_levels`: median of each case's days. The median
    over cases does not follow a few cases that changed by themselves, and the median over days does not
    follow a few slow days. `explained_share`: the part of the changes that chance does not explain. Only
    this part is removed: if cases vary independently, removing their median would add its error.
    """

    metric: Metric
    case_levels: Mapping[str, float]
    days: Mapping[int, float]
    run: float
    explained_share: float

    def of_run(self, run: Digest) -> float:
        """Common change of another run of these cases."""
        logs = {case: run.cases[case].logs(self.metric) for case in self.case_levels if case in run.cases}
        return median(
            [mean(case_logs) - self.case_levels[case] for case, case_logs in logs.items() if case_logs]
        )


def common_change(matches: Sequence[BaselineMatch]) -> CommonChange | None:
    """Common change of one metric; None with too few cases, or if the metric does not depend on the hour."""
    testable = [
        match for match in matches if match.verdict is None and not match.new.disturbance(match.metric)
    ]
    if len(testable) < MIN_CASES or testable[0].metric.name not in CONTENDED_METRICS:
        return None
    levels = {match.case: median(day_means(match.days)) for match in testable}
    by_date: dict[int, list[float]] = {}
    for match in testable:
        for date, day in zip(match.dates, day_means(match.days), strict=True):
            by_date.setdefault(date, []).append(day - levels[match.case])
    offsets = {
        date: offsets_of_day
        for date, offsets_of_day in sorted(by_date.items())
        if len(offsets_of_day) >= MIN_CASES_PER_DAY
    }
    of_run = [mean(match.new_logs) - levels[match.case] for match in testable]
    return CommonChange(
        metric=testable[0].metric,
        case_levels=levels,
        days={date: median(offsets_of_day) for date, offsets_of_day in offsets.items()},
        run=median(of_run),
        explained_share=_explained_share([*offsets.values(), of_run]),
    )


def _explained_share(offsets: Sequence[Sequence[float]]) -> float:
    """Part of the variance of the sessions' medians that chance does not explain (James & Stein 1961).

    The median of n normal values has π/2 times the variance of their mean. The variance by chance is that of
    the median session, since many cases of one run may have changed.
    """
    if len(offsets) < 2:
        return 1.0
    chance = median(
        [
            math.pi / 2 * (MAD_TO_DEVIATION * mad(session_offsets)) ** 2 / len(session_offsets)
            for session_offsets in offsets
        ]
    )
    variance = deviation([median(session_offsets) for session_offsets in offsets]) ** 2
    return max(0.0, 1 - chance / variance) if variance else 0.0


def remove_common_change(match: BaselineMatch, change: CommonChange, run: float) -> BaselineMatch:
    """The match without the common change of its days and of its run."""
    changes = [change.explained_share * change.days.get(date, 0.0) for date in match.dates]
    return replace(
        match,
        new_logs=[log - change.explained_share * run for log in match.new_logs],
        days=[
            [[log - common for log in hour] for hour in day]
            for common, day in zip(changes, match.days, strict=True)
        ],
    )


def match_together(change: CommonChange, run: float) -> BaselineMatch:
    """Match of all cases as one: the geometric mean of their usual levels, times the common change."""
    level = mean(list(change.case_levels.values()))
    return BaselineMatch(
        case=TOGETHER,
        metric=change.metric,
        sessions=(),
        new=CaseDigest(),
        new_logs=[level + run],
        days=[[[level + common]] for common in change.days.values()],
        dates=tuple(change.days),
        verdict=None,
        reason="",
    )
