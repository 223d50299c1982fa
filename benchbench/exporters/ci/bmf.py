"""Bencher Metric Format: `{benchmark: {measure: {value, lower_value, upper_value}}}`."""

from __future__ import annotations

import hashlib
import json
from typing import ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci._measures import Measure, measures

NAME_LIMIT = 1024  # characters of a benchmark's name; of a measure's slug 64, which labels stay far below
NANO = 1e9  # Bencher's own measure `latency` is in nanoseconds


class Bmf(RunExporter):
    """Read by `bencher run --adapter json --file FILE`."""

    extension: ClassVar[str] = "json"

    def export(self, report: RunReport) -> dict[str, bytes]:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for each in measures(report):
            found.setdefault(_name(each.case), {})[each.label.replace(" ", "-")] = _values(each)
        text = json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False)
        return {"report.json": f"{text}\n".encode()}


def _name(case: str) -> str:
    """The name, cut where it is too long, and still unlike any other."""
    if len(case) <= NAME_LIMIT:
        return case
    digest = hashlib.sha256(case.encode()).hexdigest()[:12]
    return f"{case[: NAME_LIMIT - len(digest) - 1]}…{digest}"


def _values(measure: Measure) -> dict[str, float]:
    scale = NANO if measure.metric.name == "latency_s" else 1
    values = {"value": measure.value, "lower_value": measure.low, "upper_value": measure.high}
    return {name: scale * value for name, value in values.items() if value is not None}
