"""The numbers of a report one by one, for tools that keep a series of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchbench.analyse.metrics import METRICS, Metric, Row
from benchbench.documents.run import Report
from benchbench.format import visible

# FLOP/s and bytes/s are missing: with counted work, they say what latency says.
LABELS = {
    "latency_s": "latency",
    "items_per_s": "throughput",
    "cold_s": "cold start",
    "peak_device_bytes": "peak device memory",
    "peak_host_bytes": "peak host memory",
    "energy_j": "energy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One metric of one case, with its 95 % interval where it has one; its texts are safe to show.

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


def measures(report: Report) -> list[Measure]:
    """Case by case, of all cases that have a number."""
    rows: list[dict[Any, Any]] = report.rows.to_dict("records")
    counts = Counter(row["case"] for row in rows)
    metrics = [metric for metric in METRICS if metric.name in LABELS]
    return [
        _measure(row, metric, alone=counts[row["case"]] == 1)
        for row in rows
        for metric in metrics
        if row[metric.name] is not None
    ]


def _measure(row: Row, metric: Metric, *, alone: bool) -> Measure:
    low, high = _interval(row, metric.name)
    return Measure(
        case=visible(row["case"] if alone else f"{row['suite']}: {row['case']}"),
        label=LABELS[metric.name],
        metric=metric,
        unit=f"{visible(row['item'])}/s" if metric.name == "items_per_s" else metric.unit,
        value=row[metric.name],
        low=low,
        high=high,
        row=row,
    )


def _interval(row: Row, name: str) -> tuple[float | None, float | None]:
    low, high = row["latency_low_s"], row["latency_high_s"]
    if low is None or high is None or name not in ("latency_s", "items_per_s"):
        return None, None
    if name == "latency_s":
        return low, high
    items = row["items_per_s"] * row["latency_s"]
    return items / high, items / low
