"""Runs over time → one series per case, with its change points. Pure: no file, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.metrics import Metric
from benchbench.model.run import Run
from benchbench.store.tags import short
from benchbench.trends.change_points import Change, History, change_points
from benchbench.trends.series import Point, Series, series

LEVELS = "▁▂▃▄▅▆▇█"


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
    return [_trend(each, metric, threshold, by) for each in series(runs, metric, patterns, by)]


def _trend(found: Series, metric: Metric, threshold: float, by: str | None) -> Trend:
    hardware = [point.hardware for point in found.points]
    boundaries = [i for i, (before, after) in enumerate(pairwise(hardware), start=1) if after != before]
    values = [point.value for point in found.points]
    return Trend(
        case=found.case,
        metric=metric,
        points=found.points,
        boundaries=tuple(boundaries),
        history=change_points(values, threshold=threshold, better=metric.better, boundaries=boundaries),
        by=by,
        untagged=found.untagged,
    )


def name(point: Point) -> str:
    """What a point is called, safe to show: the tag's value, else the run."""
    return fmt.visible(point.run if point.tag is None else short(point.tag))


def text(found: Sequence[Trend]) -> str:
    """For people: a sparkline per case, then each change with the runs between which it lies."""
    if not found:
        return "no stored run has a value for that\n"
    return "\n".join(_paragraph(each) for each in found)


def _paragraph(trend: Trend) -> str:
    points = trend.points
    spark = sparkline([point.value for point in points])
    lines = [
        f"{fmt.visible(trend.case)}  {trend.metric.name}, {_count(trend)}",
        f"  {spark}  {_value(trend, points[0])} → {_value(trend, points[-1])}",
        *(f"  {_told(trend, change)}" for change in trend.history.changes),
    ]
    lines += [f"  spike: {_value(trend, points[i])} in {name(points[i])}" for i in trend.history.outliers]
    lines += [f"  other hardware from {name(points[i])}" for i in trend.boundaries]
    if trend.untagged:
        lines.append(
            f"  left out: {_runs(len(trend.untagged))} without the tag {fmt.visible(trend.by or '')}"
        )
    return "".join(f"{line}\n" for line in lines)


def _count(trend: Trend) -> str:
    runs = _runs(sum(len(point.runs) for point in trend.points))
    if trend.by is None:
        return runs
    values = len({point.tag for point in trend.points})
    return f"{values} value{'' if values == 1 else 's'} of {fmt.visible(trend.by)} in {runs}"


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _value(trend: Trend, point: Point) -> str:
    return fmt.quantity(point.value, trend.metric.unit)


def _told(trend: Trend, change: Change) -> str:
    before, after = trend.points[change.index - 1], trend.points[change.index]
    interval = f"[{change.low:.4g}, {change.high:.4g}]"
    suspect = f", {before.version} → {after.version}" if before.version != after.version else ""
    where = f"between {name(before)} and {name(after)}{fmt.visible(suspect)}"
    return f"{change.direction}: {fmt.ratio(change.ratio)} {interval} {where}"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The last `width` values as heights, on a logarithmic scale."""
    logs = [math.log(value) for value in values[-width:]]
    low, high = min(logs), max(logs)
    span = high - low or 1.0
    return "".join(LEVELS[min(int((value - low) / span * len(LEVELS)), len(LEVELS) - 1)] for value in logs)


def fields(found: Sequence[Trend]) -> list[dict[str, Any]]:
    """For programs."""
    return [
        {
            "case": each.case,
            "metric": each.metric.name,
            "unit": each.metric.unit,
            "by": each.by,
            "untagged": each.untagged,
            "points": [asdict(point) for point in each.points],
            "changes": [_change(each.points, change) for change in each.history.changes],
            "segments": [asdict(segment) for segment in each.history.segments],
            "outliers": [each.points[index].run for index in each.history.outliers],
        }
        for each in found
    ]


def _change(points: Sequence[Point], change: Change) -> dict[str, Any]:
    before, after = points[change.index - 1], points[change.index]
    return {
        **asdict(change),
        "after_run": before.run,
        "run": after.run,
        "after_tag": before.tag,
        "tag": after.tag,
    }
