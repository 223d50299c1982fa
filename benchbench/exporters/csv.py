"""CSV for spreadsheets: the columns of JSON; a text that a spreadsheet would run gets a quote before it."""

from __future__ import annotations

from typing import Any, ClassVar

from benchbench.analyse.columns import frame, params_text
from benchbench.documents.run import Report
from benchbench.exporters.base import Exporter
from benchbench.format import visible

FORMULA = ("=", "+", "-", "@")  # OWASP, CSV injection; tab and CR, its other two, are made visible


class Csv(Exporter):
    """One line per row."""

    extension: ClassVar[str] = "csv"

    def export(self, report: Report) -> dict[str, bytes]:
        """One table with a header; absent values are empty."""
        text = frame(report.rows).map(cell).to_csv(index=False, lineterminator="\n")
        return {"report.csv": text.encode()}


def cell(value: Any) -> Any:
    """One line, and nothing a spreadsheet would run; numbers untouched: a negative one is no formula."""
    if isinstance(value, dict):
        value = params_text(value)
    if isinstance(value, tuple):
        value = "; ".join(value)
    if not isinstance(value, str):
        return value
    text = visible(value)  # a line per row, whatever the text
    return f"'{text}" if text.startswith(FORMULA) else text
