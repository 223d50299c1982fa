"""Runs over time → one series per case, with its change points. Pure: no file, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from benchbench import format as fmt
from benchbench.errors import UsageError, unknown
from benchbench.history import History, change_points
from benchbench.machine.environment import fingerprint
from benchbench.metrics import METRICS, Metric, rows
from benchbench.model import Run

LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Point:
    """A case's value in one run."""

    run: str
    started: str
    value: float  # in the metric's unit
    version: str | None  # of the framework
    hardware: str  # fingerprint


@dataclass(frozen=True, slots=True)
class Trend:
    """A case over its runs, oldest first."""

    case: str
    metric: Metric
    points: tuple[Point, ...]
    history: History


def metric_named(name: str) -> Metric:
    """Raises UsageError."""
    known = {metric.name: metric for metric in METRICS}
    if name not in known:
        raise UsageError(f"No metric named {name!r}.", unknown("metrics", name, list(known)))
    return known[name]


def trends(
    runs: Iterable[Run], metric: Metric, patterns: Sequence[str] = (), threshold: float = 0.03
) -> list[Trend]:
    """A trend per case whose id holds or matches one of `patterns`; runs may come in any order.

    A change of hardware is a boundary: no change point is looked for across it. Runs measured in turn are
    left out: one of them may be of code long gone.
    """
    series: dict[str, list[Point]] = {}
    dated = [run for run in runs if run.info.partner is None]
    for run in sorted(dated, key=lambda each: (each.info.started, each.info.id)):
        for row in rows(run).to_dict("records"):
            value = row[metric.name]
            if value is not None and value > 0 and _wanted(row["case"], patterns):
                series.setdefault(row["case"], []).append(_point(run, row, value))
    return [_trend(case, metric, points, threshold) for case, points in series.items()]


def _wanted(case: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(pattern in case or fnmatchcase(case, pattern) for pattern in patterns)


def _point(run: Run, row: dict[Any, Any], value: float) -> Point:
    hardware = f"{fingerprint(run.info.machine)}/{row['device_name']}"
    return Point(run.info.id, run.info.started, value, row["framework_version"], hardware)


def _trend(case: str, metric: Metric, points: Sequence[Point], threshold: float) -> Trend:
    boundaries = [i for i in range(1, len(points)) if points[i].hardware != points[i - 1].hardware]
    values = [point.value for point in points]
    found = change_points(values, threshold=threshold, better=metric.better, boundaries=boundaries)
    return Trend(case, metric, tuple(points), found)


def text(found: Sequence[Trend]) -> str:
    """For people: a sparkline per case, then each change with the runs between which it lies."""
    if not found:
        return "no stored run has a value for that\n"
    return "\n".join(_paragraph(each) for each in found)


def _paragraph(trend: Trend) -> str:
    points = trend.points

    def show(value: float) -> str:
        return fmt.quantity(value, trend.metric.unit)

    spark = sparkline([point.value for point in points])
    lines = [
        f"{fmt.visible(trend.case)}  {trend.metric.name}, {len(points)} runs",
        f"  {spark}  {show(points[0].value)} → {show(points[-1].value)}",
    ]
    for change in trend.history.changes:
        before, after = points[change.index - 1], points[change.index]
        interval = f"[{change.low:.4g}, {change.high:.4g}]"
        suspect = f", {before.version} → {after.version}" if before.version != after.version else ""
        where = f"between {before.run} and {after.run}{suspect}"
        lines.append(f"  {change.direction}: {fmt.ratio(change.ratio)} {interval} {where}")
    lines += [f"  spike: {show(points[i].value)} in {points[i].run}" for i in trend.history.outliers]
    lines += [
        f"  other hardware from {points[i].run}"
        for i in range(1, len(points))
        if points[i].hardware != points[i - 1].hardware
    ]
    return "".join(f"{line}\n" for line in lines)


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The last `width` values as heights, on a logarithmic scale."""
    logs = [math.log(value) for value in values[-width:]]
    low, high = min(logs), max(logs)
    span = high - low or 1.0
    return "".join(LEVELS[min(int((value - low) / span * len(LEVELS)), len(LEVELS) - 1)] for value in logs)


def fields(found: Sequence[Trend]) -> list[dict[str, Any]]:
    """For programs."""
    from dataclasses import asdict

    return [
        {
            "case": each.case,
            "metric": each.metric.name,
            "unit": each.metric.unit,
            "points": [asdict(point) for point in each.points],
            "changes": [
                {
                    **asdict(change),
                    "after_run": each.points[change.index - 1].run,
                    "run": each.points[change.index].run,
                }
                for change in each.history.changes
            ],
            "outliers": [each.points[index].run for index in each.history.outliers],
        }
        for each in found
    ]
