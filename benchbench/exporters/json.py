"""JSON for programs: every row with every column, SI base units. Strict: no NaN, no infinity."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import ClassVar

from benchbench.analyse.columns import flatten
from benchbench.documents.run import Report
from benchbench.exporters.base import Exporter

SCHEMA = 1  # 1: first


class Json(Exporter):
    """An object with `schema`, `run` and `rows`."""

    extension: ClassVar[str] = "json"

    def export(self, report: Report) -> dict[str, bytes]:
        """One object; absent values are null, with the reason in the row's `notes`."""
        info = report.info
        run = {
            "id": info.id,
            "started": info.started,
            "command": info.command,
            "machine": asdict(info.machine),
            "tags": info.tags,
        }
        content = {"schema": SCHEMA, "run": run, "rows": [flatten(row) for row in report.rows]}
        text = json.dumps(content, indent=2, allow_nan=False)
        return {"report.json": f"{text}\n".encode()}
