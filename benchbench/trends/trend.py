"""Runs over time → a trend per case: its series, with its change points. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.analyse.metrics import Metric
from benchbench.model.run import Run
from benchbench.stats import median
from benchbench.trends.change_points import History, change_points
from benchbench.trends.series import Point, Series, series

SEVERAL = 3  # cases that change on one day: one event, more likely of the machine than of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A case over its runs or, by a tag, over its values; `untagged`: runs left out since they lack it.

    `boundaries`: the first point that cannot be compared with those before, each time; `bars`: why.
    """

    case: str
    metric: Metric
    points: tuple[Point, ...]
    boundaries: tuple[int, ...]
    bars: tuple[str, ...]
    history: History
    by: str | None = None
    untagged: tuple[str, ...] = ()


def trends(
    runs: Iterable[Run],
    metric: Metric,
    patterns: Sequence[str] = (),
    threshold: float = 0.03,
    by: str | None = None,
) -> list[Trend]:
    """A trend per series of `series`: of case ids that hold or match one of `patterns`, by time or a tag.

    What cannot be compared is a boundary: no change point is looked for across it. The p of a change is
    adjusted for the number of series. Raises UsageError where no run has the tag.
    """
    found = series(runs, metric, patterns, by)
    return [_trend(one, metric, threshold, by, len(found)) for one in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedChange:
    """Several cases of one machine that changed on one day, the same way: one event; `ratio`: the median."""

    day: str  # ISO 8601
    direction: str
    cases: tuple[str, ...]
    ratio: float


def shared_changes(trends: Sequence[Trend]) -> list[SharedChange]:
    """Those of `SEVERAL` cases or more, oldest first."""
    days: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    for trend in trends:
        for change in trend.history.changes:
            point = trend.points[change.index]
            key = point.started[:10], point.hardware, change.direction
            days.setdefault(key, []).append((trend.case, change.ratio))
    return [
        SharedChange(
            day=day,
            direction=direction,
            cases=tuple(case for case, _ in changed),
            ratio=median([ratio for _, ratio in changed]),
        )
        for (day, _, direction), changed in sorted(days.items())
        if len(changed) >= SEVERAL
    ]


def _trend(series: Series, metric: Metric, threshold: float, by: str | None, family: int) -> Trend:
    boundaries = tuple(index for index, _ in series.bars)
    values = [point.value for point in series.points]
    return Trend(
        case=series.case,
        metric=metric,
        points=series.points,
        boundaries=boundaries,
        bars=tuple(reason for _, reason in series.bars),
        history=change_points(
            values, threshold=threshold, better=metric.better, boundaries=boundaries, family=family
        ),
        by=by,
        untagged=series.untagged,
    )
