"""What an exporter is: a document in, the content of files out. It writes no file and reads none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.documents.run import Report


class DocumentExporter(ABC):
    """A format that any document can be rendered in."""

    extension: ClassVar[str]  # of its files, without the dot

    @abstractmethod
    def export(self, document: Document) -> dict[str, bytes]:
        """File name → content, text in UTF-8. A format of text gives one file, plots give several."""


class Exporter(ABC):
    """One output format of a run."""

    extension: ClassVar[str]  # of its files, without the dot
    ci: ClassVar[bool] = False  # for a CI system rather than for people: `--out` writes it

    @abstractmethod
    def export(self, report: Report) -> dict[str, bytes]:
        """File name → content, text in UTF-8. A format of text gives one file, plots give several."""
