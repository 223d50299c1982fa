"""Runs over time → a trend per case: its series, with its change points. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.analyse.metrics import Metric
from benchbench.model.run import Run
from benchbench.trends.change_points import History, change_points
from benchbench.trends.series import Point, Series, series


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

    What cannot be compared is a boundary: no change point is looked for across it. Raises UsageError where no
    run has the tag.
    """
    return [_trend(one, metric, threshold, by) for one in series(runs, metric, patterns, by)]


def _trend(series: Series, metric: Metric, threshold: float, by: str | None) -> Trend:
    boundaries = tuple(index for index, _ in series.bars)
    values = [point.value for point in series.points]
    return Trend(
        case=series.case,
        metric=metric,
        points=series.points,
        boundaries=boundaries,
        bars=tuple(reason for _, reason in series.bars),
        history=change_points(values, threshold=threshold, better=metric.better, boundaries=boundaries),
        by=by,
        untagged=series.untagged,
    )
