"""Runs over time → a trend per case: its series, with its change points. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchbench.analyse.metrics import Metric
from benchbench.model.run import Run
from benchbench.trends.change_points import History, change_points
from benchbench.trends.series import Point, Series, series


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A case over its runs or, by a tag, over its values; `untagged`: runs left out since they lack it.

    `boundaries`: the first point on other hardware, each time it changes.
    """

    case: str
    metric: Metric
    points: tuple[Point, ...]
    boundaries: tuple[int, ...]
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

    A change of hardware is a boundary: no change point is looked for across it. Raises UsageError where no
    run has the tag.
    """
    return [_trend(one, metric, threshold, by) for one in series(runs, metric, patterns, by)]


def _trend(series: Series, metric: Metric, threshold: float, by: str | None) -> Trend:
    hardware = [point.hardware for point in series.points]
    boundaries = [i for i, (before, after) in enumerate(pairwise(hardware), start=1) if after != before]
    values = [point.value for point in series.points]
    return Trend(
        case=series.case,
        metric=metric,
        points=series.points,
        boundaries=tuple(boundaries),
        history=change_points(values, threshold=threshold, better=metric.better, boundaries=boundaries),
        by=by,
        untagged=series.untagged,
    )
