"""Single numbers of a report, for tools that record a series of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchbench.analyse.metrics import METRICS, Metric
from benchbench.analyse.rows import Row
from benchbench.documents.run import RunReport
from benchbench.format import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A metric of a case, with its 95 % interval if it has one; texts are safe to show.

    `case` is unique within the report.
    """

    case: str
    label: str
    metric: Metric
    unit: str
    value: float
    low: float | None
    high: float | None
    row: Row


def measures(report: RunReport) -> list[Measure]:
    """Numbers of all cases that have one."""
    counts = Counter(row.case.id for row in report.rows)
    return [
        _measure(row, metric, value, is_unique=counts[row.case.id] == 1)
        for row in report.rows
        for metric in METRICS
        if metric.exported and (value := row.value(metric.name)) is not None
    ]


def _measure(row: Row, metric: Metric, value: float, *, is_unique: bool) -> Measure:
    interval = row.metric(metric.name)
    case = row.case.id if is_unique else f"{row.case.suite}: {row.case.id}"
    return Measure(
        case=visible(case),
        label=metric.label,
        metric=metric,
        unit=metric.unit.replace("item", visible(row.item or "item"), 1),
        value=value,
        low=interval.low,
        high=interval.high,
        row=row,
    )
