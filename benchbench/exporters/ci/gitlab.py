"""GitLab metrics report: OpenMetrics text. GitLab compares values as text, so few digits are written."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci._measures import Measure, measures

DIGITS = 2  # with more, noise alone would show every value as changed
UNITS = {"s": "seconds", "B": "bytes", "J": "joules"}  # OpenMetrics wants base units by their names


class Gitlab(RunExporter):
    """A gauge per metric, a sample per case."""

    extension: ClassVar[str] = "txt"

    def export(self, report: RunReport) -> dict[str, bytes]:
        """The measures as OpenMetrics text, grouped by metric as that format demands."""
        found = measures(report)
        lines: list[str] = []
        for metric in dict.fromkeys(each.metric for each in found):
            name, unit = f"accelbench_{metric.series}", UNITS.get(metric.unit)
            samples = [_sample(name, each) for each in found if each.metric is metric]
            lines += [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else []), *samples]
        return {"report.txt": "\n".join([*lines, "# EOF\n"]).encode()}


def _sample(name: str, measure: Measure) -> str:
    # A `#` begins a comment for GitLab, also within quotes.
    case = measure.case.replace("#", "\\x23").replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}{{case="{case}"}} {Decimal(f"{measure.value:.{DIGITS - 1}e}"):f}'
