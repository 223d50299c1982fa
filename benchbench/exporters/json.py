"""JSON for programs: what a document holds for them, SI base units. Strict: no NaN, no infinity."""

from __future__ import annotations

import json
from typing import ClassVar

from benchbench.documents.document import Document
from benchbench.exporters.base import Exporter


class Json(Exporter):
    """The document's data, as it is."""

    extension: ClassVar[str] = "json"

    def export(self, document: Document) -> dict[str, bytes]:
        """One value; absent ones are null. In ASCII: no character of it acts on a terminal."""
        text = json.dumps(document.data, indent=2, allow_nan=False)
        return {f"{document.name}.json": f"{text}\n".encode()}
