"""JSON for programs: the document's data in SI base units. Strict, without NaN and infinity."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from benchbench.documents.document import Document
from benchbench.exporters.base import Exporter


class Json(Exporter):
    """The document's data."""

    extension: ClassVar[str] = "json"

    def export(self, document: Document) -> dict[str, bytes]:
        """Encode the document's data as one JSON value; absent numbers are null."""
        return {f"{document.name}.json": json_text(document.data, indent=2)}


def json_text(data: Any, indent: int) -> bytes:
    """JSON in ASCII, without character sequences that CI services would interpret as commands."""
    text = json.dumps(data, indent=indent, allow_nan=False).replace("##", r"#\u0023")
    return f"{text}\n".encode()
