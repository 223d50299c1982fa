"""Files for benchmark-action/github-action-benchmark: customSmallerIsBetter and customBiggerIsBetter."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci._measures import Measure, measures
from benchbench.format import visible

FILES = {"lower": "smaller-is-better.json", "higher": "bigger-is-better.json"}


class GhaBenchmark(RunExporter):
    """Latency, cold start, memory and energy; throughput."""

    extension: ClassVar[str] = "json"

    def export(self, report: RunReport) -> dict[str, bytes]:
        """Two lists of `{name, unit, value, range, extra}`."""
        all_measures = measures(report)
        return {
            name: _text([_entry(measure) for measure in all_measures if measure.metric.better == better])
            for better, name in FILES.items()
        }


def _entry(measure: Measure) -> dict[str, Any]:
    row = measure.row
    about = f"{row.case.backend} {row.framework_version or ''} on {row.device_name or row.case.device}"
    count = f"processes: {row.rounds}, samples: {row.samples}"
    entry = {"name": f"{measure.case} {measure.label}", "unit": measure.unit, "value": measure.value}
    if measure.low is not None and measure.high is not None:
        entry["range"] = f"95 %: {measure.low:.4g} to {measure.high:.4g}"
    return entry | {"extra": f"{visible(about)}\n{count}"}


def _text(entries: list[dict[str, Any]]) -> bytes:
    return f"{json.dumps(entries, indent=2, allow_nan=False, ensure_ascii=False)}\n".encode()
