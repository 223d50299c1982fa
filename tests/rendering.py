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
    """The one text of the document in a format."""
    (content,) = EXPORTERS[name]().export(document).values()
    return content.decode()


def on_a_terminal(document: Document, width: int) -> str:
    """The same on a terminal of some width, without colours."""
    return Terminal(width).render(document)


def picture(document: Document) -> str:
    """The one plot of the document as SVG."""
    (content,) = Svg().export(document).values()
    return content.decode()


def commands_in(text: str) -> list[str]:
    """Lines that a CI service would take for a command, as actions/runner and Azure's agent read them."""
    lines = text.splitlines()
    return [
        each for each in lines if re.match(r"\s*::[\w-]+( [^:]*)?::", each) or re.search(r"##\w*\[", each)
    ]


def columns_of(document: Document, number: int = 0) -> dict[str, tuple[str, ...]]:
    """The columns of a table as text, by their name; of no row, of those that end before."""
    known, table = marks(document), document.tables[number]
    return {
        column.name: tuple(cell_text(row[index], known) for row in table.rows)
        for index, column in enumerate(table.columns)
    }
