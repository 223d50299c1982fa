"""The plots as SVG."""

from __future__ import annotations

from typing import ClassVar

from benchbench.documents.run import Report
from benchbench.exporters import _plots
from benchbench.exporters.base import Exporter


class Svg(Exporter):
    """`throughput.svg` and `latency.svg`."""

    extension: ClassVar[str] = "svg"

    def export(self, report: Report) -> dict[str, bytes]:
        """Both plots; the same report gives the same bytes."""
        return _plots.files(report, self.extension)
