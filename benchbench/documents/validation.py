"""What is wrong with stored files, as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchbench.documents.document import Content, Document, table
from benchbench.validating.faults import Fault, Validation


def validation_document(found: Validation) -> Document:
    """A row per fault, with its file and line."""
    files = f"{found.files} file{'s' * (found.files != 1)}"
    faults = f"{len(found.faults) or 'no'} fault{'s' * (len(found.faults) != 1)}"
    rows: list[dict[str, Content]] = [{"where": _place(each), "fault": each.text} for each in found.faults]
    return Document(
        name="validation",
        title="Validation",
        facts=(f"{faults} in {files}",),
        tables=(table(rows),) if rows else (),
        notes=tuple(f"{_place(each)}: {each.text}" for each in found.remarks),
        data={
            "files": found.files,
            "faults": [_fields(each) for each in found.faults],
            "remarks": [_fields(each) for each in found.remarks],
        },
    )


def _place(fault: Fault) -> str:
    return f"{fault.path}:{fault.line}" if fault.line else str(fault.path)


def _fields(fault: Fault) -> dict[str, Any]:
    return {**asdict(fault), "path": str(fault.path)}
