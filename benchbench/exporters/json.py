"""JSON for programs: what a document holds for them, SI base units. Strict: no NaN, no infinity."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from benchbench.documents.document import Document
from benchbench.exporters.base import Exporter


class Json(Exporter):
    """The document's data, as it is."""

    extension: ClassVar[str] = "json"

    def export(self, document: Document) -> dict[str, bytes]:
        """The document's data as one JSON value; absent numbers are null."""
        return {f"{document.name}.json": json_text(document.data, indent=2)}


def json_text(data: Any, indent: int) -> bytes:
    """JSON in ASCII that is no command to a CI service: nothing of it acts where it is printed."""
    text = json.dumps(data, indent=indent, allow_nan=False).replace("##", r"#\u0023")
    return f"{text}\n".encode()
