"""A document as text, as the command line prints it to a file."""

from benchbench.documents.document import Document
from benchbench.exporters._new_csv import Csv
from benchbench.exporters._new_json import Json
from benchbench.exporters._new_markdown import Markdown
from benchbench.exporters._new_svg import Svg
from benchbench.exporters._new_terminal import Terminal
from benchbench.exporters.base import DocumentExporter

EXPORTERS: dict[str, type[DocumentExporter]] = {
    "terminal": Terminal,
    "markdown": Markdown,
    "csv": Csv,
    "json": Json,
}
TEXTS = tuple(EXPORTERS)


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
