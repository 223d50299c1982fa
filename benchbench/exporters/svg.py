"""Plots as SVG."""

from __future__ import annotations

from typing import ClassVar

from benchbench.documents.document import Document
from benchbench.exporters._figure import pictures
from benchbench.exporters.base import Exporter


class Svg(Exporter):
    """A picture per plot; equal plots give equal bytes."""

    extension: ClassVar[str] = "svg"
    pictures: ClassVar[bool] = True

    def export(self, document: Document) -> dict[str, bytes]:
        return pictures(document, self.extension)
