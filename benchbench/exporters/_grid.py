"""A table as a grid on a terminal: no word is broken, so that names and numbers can be copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from benchbench.documents.document import Cell, Table
from benchbench.exporters._alternatives import GAP, folded
from benchbench.exporters._text import STYLES, Marks, cell_text
from benchbench.format import visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Row = Sequence[Cell | None]


def narrowed(table: Table, known: Marks, width: int) -> Table:
    """With short cells, then without the columns of the highest ranks, until it fits; rank 0 always stays."""
    if _needed(table, known) <= width:
        return table
    shown = replace(table, rows=tuple(tuple(map(short_form, row)) for row in table.rows))
    while _needed(shown, known) > width and (most := max(column.rank for column in shown.columns)):
        shown = _without_rank(shown, most)
    return shown


def _without_rank(table: Table, rank: int) -> Table:
    kept = [index for index, column in enumerate(table.columns) if column.rank != rank]
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[index] for index in kept), rows=rows)


def grid(table: Table, known: Marks, width: int) -> RenderableType:
    """Columns as wide as they need; where their longest words have no room side by side, a line per cell."""
    from rich.table import Table as Grid

    names, rows = _headings(table), table.rows
    columns = zip(names, *([cell_text(cell, known) for cell in row] for row in rows), strict=True)
    widths = _widths(list(columns), width - GAP * (len(names) - 1))
    if widths is None:
        return _stacked(names, rows, known, width)
    shown = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for name, column_width in zip(names, widths, strict=True):
        shown.add_column(_text(name), overflow="fold", width=column_width)
    for row in rows:
        shown.add_row(*(_text(cell_text(cell, known), cell) for cell in row))
    return shown


def short_form(cell: Cell | None) -> Cell | None:
    """Where it has one."""
    return replace(cell, parts=(cell.short,)) if cell and cell.short else cell


def _headings(table: Table) -> list[str]:
    return [visible(column.name).upper() for column in table.columns]


def _needed(table: Table, known: Marks) -> int:
    widths = [
        max(_length(text) for text in (name, *(cell_text(row[index], known) for row in table.rows)))
        for index, name in enumerate(_headings(table))
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Each has its longest word at least, and what it needs as far as there is room; None: it has not."""
    needs = [max(map(_length, texts)) for texts in columns]
    words = ([_length(word) for text in texts for word in text.split()] for texts in columns)
    widths = [max(lengths, default=0) for lengths in words]
    left = room - sum(widths)
    if left < 0:
        return None
    waiting = sorted(range(len(columns)), key=lambda index: needs[index] - widths[index])
    for done, index in enumerate(waiting):
        more = min(needs[index] - widths[index], left // (len(waiting) - done))
        widths[index] += more
        left -= more
    return widths


def _stacked(names: Sequence[str], rows: Sequence[Row], known: Marks, width: int) -> Text:
    """The first cell of a row, the others below it under their names."""
    shown = _text("")
    for first, *others in rows:
        texts = [
            f"{name.lower()}: {cell_text(cell, known)}"
            for name, cell in zip(names[1:], others, strict=True)
            if cell and cell.parts
        ]
        shown.append(cell_text(first, known), STYLES[first.tone] or "bold" if first else "")
        for part in (part for text in texts for part in folded(text, max(1, width - GAP))):
            shown.append(f"\n{' ' * GAP}{part}")
        shown.append("\n")
    shown.rstrip()
    return shown


def _text(content: str, cell: Cell | None = None) -> Text:
    from rich.text import Text

    return Text(content, style=STYLES[cell.tone] if cell else "", overflow="fold")


def _length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
