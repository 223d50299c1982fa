"""The plots as PNG."""

from __future__ import annotations

from typing import ClassVar

from benchbench.documents.run import Report
from benchbench.exporters import _plots
from benchbench.exporters.base import Exporter


class Png(Exporter):
    """`throughput.png` and `latency.png`."""

    extension: ClassVar[str] = "png"

    def export(self, report: Report) -> dict[str, bytes]:
        """Both plots."""
        return _plots.files(report, self.extension)
