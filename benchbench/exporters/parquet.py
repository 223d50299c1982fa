"""Parquet for whoever analyses many runs: the cases of a run, and all blocks, with units in the metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, ClassVar

from benchbench.analyse.rows import COLUMNS, NUMBERS, UNITS, case_key
from benchbench.documents.run import RunReport
from benchbench.errors import UsageError
from benchbench.exporters.base import RunExporter
from benchbench.exporters.csv import HEADINGS, joined
from benchbench.model.measurement import Measurement

BLOCKS = ("run", "suite", "case", "round", "block", "step_s")
WHOLE = ("round", "block")  # numbers of a block that are counts


class Parquet(RunExporter):
    """`rows.parquet` has a row for each case, `blocks.parquet` one for each block that was timed.

    They are joined by `run`, `suite` and `case`, so that the files of many runs can be read as one table.
    """

    extension: ClassVar[str] = "parquet"
    ci: ClassVar[bool] = False

    def export(self, report: RunReport) -> dict[str, bytes]:
        """Numbers are float64 in SI base units, and null where there is none. Raises UsageError."""
        run = report.run.info.id
        rows = [{"run": run} | row for row in report.data["rows"]]
        known = {case_key(row.case) for row in report.rows}
        blocks = [
            {"run": run, "suite": record.case.suite, "case": record.case.id}
            | {"round": record.round, "block": number, "step_s": step}
            for record in report.run.records
            if isinstance(record.outcome, Measurement) and case_key(record.case) in known
            for number, step in enumerate(record.outcome.steps_s)
        ]
        return {
            "rows.parquet": _file(rows, ("run", *COLUMNS), NUMBERS),
            "blocks.parquet": _file(blocks, BLOCKS, ("step_s",)),
        }


def _file(rows: Sequence[Mapping[str, Any]], names: Sequence[str], numbers: Sequence[str]) -> bytes:
    """A table of the columns `names`, each a number, a count or a text whatever its values are."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UsageError("Parquet needs pyarrow.", "pip install pyarrow") from None
    columns, fields = [], []
    for name in names:
        values = [row[name] for row in rows]
        kind = pa.float64() if name in numbers else pa.int64() if name in WHOLE else pa.string()
        if kind == pa.string():
            values = [joined(value) for value in values]
        unit = UNITS.get(name, "s" if name == "step_s" else "")
        fields.append(pa.field(name, kind, metadata={"unit": HEADINGS.get(unit, unit)} if unit else None))
        columns.append(pa.array(values, kind))
    out = BytesIO()
    parquet.write_table(pa.table(columns, schema=pa.schema(fields)), out)
    return out.getvalue()
