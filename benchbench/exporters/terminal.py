"""A document on a terminal of any width: what does not fit is left out and named, or becomes paragraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, ClassVar

from benchbench.documents.document import Cell, Document, Layout, Table, paragraph
from benchbench.exporters._alternatives import Sheet, folded, sheet
from benchbench.exporters._grid import grid, narrowed, short_form
from benchbench.exporters._text import EMPTY, STYLES, Marks, cell_text, foot, marks
from benchbench.exporters.base import Exporter
from benchbench.format import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

GAP = 2  # between columns
UNWRAPPED = 10_000  # wider than any line


class Terminal(Exporter):
    """Text of a given width, with or without colour."""

    extension: ClassVar[str] = "txt"

    def __init__(self, width: int | None = None, *, color: bool = False) -> None:
        """`width` in character cells; without one, as of a file, nothing is wrapped or left out."""
        self._width = width
        self._color = color

    def export(self, document: Document) -> dict[str, bytes]:
        """The text, as if it were to be stored."""
        return {f"{document.name}.txt": self.render(document).encode()}

    def render(self, document: Document) -> str:
        """What to print; no line ends in spaces."""
        known = marks(document)
        alike = [table for table in document.tables if table.layout is Layout.ALTERNATIVES]
        shared = sheet(alike, known, self._width or UNWRAPPED) if alike else None
        below = [*foot(document), *_without_room(shared)]
        blocks = [
            self._printed([_cell(each, known) for each in document.answer]),
            self._printed(_lines(document.facts)),
            *(self._printed(self._table(table, known, shared)) for table in document.tables),
            self._printed([*_lines(below), *(_cell(each, known) for each in document.conclusions)]),
        ]
        return "\n".join(filter(None, blocks))

    def _printed(self, parts: Sequence[RenderableType]) -> str:
        console = self._console()
        for part in parts:
            console.print(part)
        assert isinstance(console.file, StringIO)
        return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())

    def _console(self) -> Console:
        from rich.console import Console

        return Console(
            file=StringIO(),
            width=self._width or UNWRAPPED,
            force_terminal=self._color,
            color_system="standard" if self._color else None,
            no_color=not self._color,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
            _environ={},  # the caller has decided on width and colour
        )

    def _table(self, table: Table, known: Marks, shared: Sheet | None) -> list[RenderableType]:
        """Its title, facts, rows and notes; the columns of alternatives are named above the first of them."""
        if shared and table.layout is Layout.ALTERNATIVES:
            heading = [shared.heading()] if table is shared.first else []
            return [*heading, shared.title(table), *shared.lines(table, known)]
        title = [_line(table.title, "bold")] if table.title else []
        below = [*self._rows(table, known), *_lines(table.notes)] if table.rows else _lines(table.notes)
        return [*title, *_lines(table.facts), *below] or [_line(EMPTY)]

    def _rows(self, table: Table, known: Marks) -> list[RenderableType]:
        """And a line that names the columns without room."""
        width = self._width or UNWRAPPED
        if table.layout is Layout.PARAGRAPHS:
            return [_paragraphs(table, known, width)]
        shown = narrowed(table, known, width)
        absent = [column.name for column in table.columns if column not in shown.columns]
        return [grid(shown, known, width), *_lines(_no_room(absent, "use --format markdown"))]


def _without_room(shared: Sheet | None) -> list[str]:
    return _no_room(shared.left_out, "choose by --columns") if shared else []


def _no_room(columns: Sequence[str], remedy: str) -> list[str]:
    return [f"no room for {', '.join(columns)}: widen the terminal, or {remedy}"] if columns else []


def _line(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(visible(content), style=style, overflow="fold")


def _lines(contents: Sequence[str] | Iterator[str]) -> list[Text]:
    return [_line(each) for each in contents]


def _cell(cell: Cell | None, known: Marks) -> Text:
    return _line(cell_text(cell, known), STYLES[cell.tone] if cell else "")


def _paragraphs(table: Table, known: Marks, width: int) -> Text:
    """The first cell, the others beside it: a hanging indent, so that it can be scanned."""
    from rich.text import Text

    first = [_cell(row[0], known) for row in table.rows]
    indent = max(each.cell_len for each in first) + GAP
    room = max(1, width - indent)
    shown = Text()
    for heading, row in zip(first, table.rows, strict=True):
        heading.pad_right(indent - heading.cell_len)
        cells = [short_form(cell) if len(str(cell or "")) > room else cell for cell in row[1:]]
        lines = paragraph(table.columns[1:], cells)
        parts = [part for line in lines for part in folded(visible(line), room)]
        shown.append_text(heading).append(f"\n{' ' * indent}".join(parts) + "\n")
    shown.rstrip()
    return shown
