"""A document as text, as the command line prints it to a file."""

import re

from benchbench.documents.document import Document
from benchbench.exporters._text import cell_text, marks
from benchbench.exporters.base import Exporter
from benchbench.exporters.csv import Csv
from benchbench.exporters.html import Html
from benchbench.exporters.json import Json
from benchbench.exporters.markdown import Markdown
from benchbench.exporters.svg import Svg
from benchbench.exporters.terminal import Terminal

EXPORTERS: dict[str, type[Exporter]] = {
    "terminal": Terminal,
    "markdown": Markdown,
    "csv": Csv,
    "json": Json,
    "html": Html,
}
TEXTS = ("terminal", "markdown", "csv", "json")


def rendered(document: Document, name: str = "terminal") -> str:
    (content,) = EXPORTERS[name]().export(document).values()
    return content.decode()


def on_a_terminal(document: Document, width: int) -> str:
    """The document on a terminal of `width` characters, without colours."""
    return Terminal(width).render(document)


def picture(document: Document) -> str:
    (content,) = Svg().export(document).values()
    return content.decode()


def commands_in(text: str) -> list[str]:
    """Lines that actions/runner or Azure's agent would read as a command."""
    lines = text.splitlines()
    return [
        line for line in lines if re.match(r"\s*::[\w-]+( [^:]*)?::", line) or re.search(r"##\w*\[", line)
    ]


def columns_of(document: Document, number: int = 0) -> dict[str, tuple[str, ...]]:
    """Column name → its cells as text."""
    footnotes, table = marks(document), document.tables[number]
    return {
        column.name: tuple(cell_text(row[index], footnotes) for row in table.rows)
        for index, column in enumerate(table.columns)
    }
