"""A document on a terminal of any width; a table whose columns do not fit is split or becomes paragraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, ClassVar

from benchbench.documents.document import Cell, Column, Document, Layout, Table, Tone, paragraph
from benchbench.exporters._text import EMPTY, Marks, cell_text, foot, marks
from benchbench.exporters.base import Exporter
from benchbench.format import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as Grid
    from rich.text import Text

COLUMN = 21  # `18.4 ms [18.1, 18.7]¹`: three columns and their labels in 80 characters
GAP = 2  # between columns
UNWRAPPED = 10_000  # wider than any line
SIDE_BY_SIDE = 100  # characters of alternatives, where the output has no width of its own
STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARNING: "yellow", Tone.BAD: "red"}


class Terminal(Exporter):
    """Text of a given width, with or without colour."""

    extension: ClassVar[str] = "txt"

    def __init__(self, width: int | None = None, *, color: bool = False) -> None:
        """`width` in character cells; without one, as of a file, only alternatives are wrapped."""
        self._width = width
        self._color = color

    def export(self, document: Document) -> dict[str, bytes]:
        """The text, as if it were to be stored."""
        return {f"{document.name}.txt": self.render(document).encode()}

    def render(self, document: Document) -> str:
        """What to print; no line ends in spaces."""
        known = marks(document)
        wide = [table for table in document.tables if table.layout is Layout.SIDE_BY_SIDE]
        widest = max((_widest(table, known) for table in wide), default=0)
        blocks = [
            self._printed(_lines(document.facts)),
            *(self._printed(self._table(table, known, widest)) for table in document.tables),
            self._printed([*_lines(foot(document)), *(_cell(each, known) for each in document.conclusions)]),
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

    def _table(self, table: Table, known: Marks, widest: int) -> list[RenderableType]:
        """Its title, facts, rows and notes; `widest`: of the alternatives of all tables."""
        title = [_line(table.title, "bold")] if table.title else []
        rows = self._rows(table, known, widest) if table.rows else []
        return [*title, *_lines(table.facts), *rows, *_lines(table.notes)] or [_line(EMPTY)]

    def _rows(self, table: Table, known: Marks, widest: int) -> Iterable[RenderableType]:
        if table.layout is Layout.SIDE_BY_SIDE:
            return self._alternatives(table, known, widest)
        if table.layout is Layout.PARAGRAPHS:
            return [_paragraphs(table, known, self._console())]
        return [_grid(table, known)]

    def _alternatives(self, table: Table, known: Marks, widest: int) -> Iterator[Grid]:
        """Each has the labels and as many of the columns as fit; all columns line up."""
        width = self._width or SIDE_BY_SIDE
        present = [index for index in range(1, len(table.columns)) if any(row[index] for row in table.rows)]
        labels = max(len(cell_text(row[0], known)) for row in table.rows)
        count = max(1, min(len(table.columns) - 1, (width - labels) // (COLUMN + GAP)))
        room = (width - labels) // count - GAP
        widths = labels, max(1, min(room, widest))
        for start in range(0, len(present), count):
            yield _side_by_side(table, present[start : start + count], widths, known)


def _line(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(visible(content), style=style, overflow="fold")


def _lines(contents: Sequence[str] | Iterator[str]) -> list[Text]:
    return [_line(each) for each in contents]


def _cell(cell: Cell | None, known: Marks) -> Text:
    return _line(cell_text(cell, known), STYLES[cell.tone] if cell else "")


def _grid(table: Table, known: Marks) -> Grid:
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in table.columns:
        grid.add_column(_line(column.name.upper()), overflow="fold")
    for row in table.rows:
        grid.add_row(*(_cell(each, known) for each in row))
    return grid


def _paragraphs(table: Table, known: Marks, console: Console) -> Text:
    """The first cell, the others beside it: a hanging indent, so that it can be scanned."""
    from rich.text import Text

    first = [_cell(row[0], known) for row in table.rows]
    indent = max(each.cell_len for each in first) + GAP
    shown = Text()
    for heading, row in zip(first, table.rows, strict=True):
        heading.pad_right(indent - heading.cell_len)
        lines = paragraph(table.columns[1:], row[1:])
        folded = [part for line in lines for part in _folded(visible(line), console, indent)]
        shown.append_text(heading).append(f"\n{' ' * indent}".join(folded) + "\n")
    shown.rstrip()
    return shown


def _folded(line: str, console: Console, indent: int) -> list[str]:
    """In the room beside the indent."""
    from rich.cells import cell_len
    from rich.text import Text

    room = max(1, console.width - indent)
    if cell_len(line) <= room:  # to wrap a short one would take longer than all else
        return [line]
    return [part.plain for part in Text(line).wrap(console, room, overflow="fold")]


def _widest(table: Table, known: Marks) -> int:
    """Of the columns but the first."""
    from rich.cells import cell_len

    texts = [cell_text(cell, known) for row in table.rows for cell in row[1:]]
    texts += [line for column in table.columns[1:] for line in _heading(column).split("\n")]
    return max(map(cell_len, texts))


def _heading(column: Column) -> str:
    return "\n".join(map(visible, column.name.split("\n")))


def _side_by_side(table: Table, indices: Sequence[int], widths: tuple[int, int], known: Marks) -> Grid:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="")
    grid.add_column("", width=widths[0])
    for index in indices:
        heading = Text(_heading(table.columns[index]), style="dim")
        grid.add_column(heading, width=widths[1], overflow="fold")
    for row in table.rows:
        cells = [_cell(row[index], known) for index in indices]
        if any(cells):
            grid.add_row(Text(cell_text(row[0], known), style="dim"), *cells)
    return grid
