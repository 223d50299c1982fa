"""Interface of exporters: they convert a document to the content of files, without reading or
writing files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.documents.run import RunReport


class Format(ABC):
    """Output format. Its exporter returns file name → content, texts in UTF-8."""

    extension: ClassVar[str]  # file extension, without the dot


class Exporter(Format):
    """Format for any document."""

    pictures: ClassVar[bool] = False  # True: a file per plot; False: one text

    @abstractmethod
    def export(self, document: Document) -> dict[str, bytes]:
        """Return the content of each file by name: one file, or one per plot for pictures."""


class RunExporter(Format):
    """Format for a run and its verdicts, read by another program."""

    ci: ClassVar[bool] = True  # True: for CI services, written by `--out`

    @abstractmethod
    def export(self, report: RunReport) -> dict[str, bytes]:
        """Return the content of each file by name."""
