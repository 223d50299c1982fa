"""What an exporter is: a document in, the content of files out. It writes no file and reads none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from benchbench.documents.document import Document
    from benchbench.documents.run import RunReport


class Format(ABC):
    """An output format. Its exporter gives file name → content, text in UTF-8."""

    extension: ClassVar[str]  # of its files, without the dot


class Exporter(Format):
    """A format that any document can be rendered in."""

    pictures: ClassVar[bool] = False  # a file per plot, not one text

    @abstractmethod
    def export(self, document: Document) -> dict[str, bytes]:
        """The content of each file by its name: one file, or one for each plot where it makes pictures."""


class RunExporter(Format):
    """A format of a run and its verdicts, for a program of others."""

    ci: ClassVar[bool] = True  # read by a CI service: `--out` writes it

    @abstractmethod
    def export(self, report: RunReport) -> dict[str, bytes]:
        """The content of each file by its name."""
