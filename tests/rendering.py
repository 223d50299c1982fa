"""A document as text, as the command line prints it to a file."""

import re

from benchbench.documents.document import Document
from benchbench.exporters import export
from benchbench.exporters.terminal import render
from benchbench.exporters.text import cell_text, marks

TEXTS = ("terminal", "markdown", "csv", "json")


def rendered(document: Document, name: str = "terminal") -> str:
    (content,) = export(document, name).values()
    return content.decode()


def on_a_terminal(document: Document, width: int) -> str:
    """The document on a terminal of `width` characters, without colours."""
    return render(document, width)


def picture(document: Document) -> str:
    return rendered(document, "svg")


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
