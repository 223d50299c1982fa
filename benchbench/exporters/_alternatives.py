"""Alternatives on a terminal: a line each, all tables under the same columns, as many of these as fit.

No number is broken: a column without room is left out, that of the highest rank first, and named below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.documents.document import Cell, Column, Gauge, Table
from benchbench.exporters._text import STYLES, Marks, cell_text, mark_text
from benchbench.format import visible

if TYPE_CHECKING:
    from rich.text import Text

INDENT, GAP = 2, 2
LEAST_BAR = 4  # characters; a shorter one tells nothing apart
LEAST_REASON = 24  # of a line in which a reason stands beside its name


@dataclass(frozen=True, slots=True)
class Field:
    """The width of a column: of each part of its cells, of marks after them, and of all. `bar`: it is one."""

    parts: tuple[int, ...]
    after: int
    whole: int
    bar: bool = False

    def text(self, cell: Cell, known: Marks) -> str:
        """The cell in this width: numbers stand under numbers."""
        if self.bar:
            bars = [fmt.bar(part.share, self.whole) for part in cell.parts if isinstance(part, Gauge)]
            return "".join(bars).ljust(self.whole)
        pairs = zip_longest(_parts(cell), self.parts, fillvalue="")
        text = " ".join(_right(str(part), int(width)) for part, width in pairs if width)
        return _right(text + _left(_after(cell, known), self.after), self.whole)

    def heading(self, name: str) -> str:
        """Above the numbers."""
        return name.ljust(self.whole) if self.bar else _right(_left(name, len(name) + self.after), self.whole)


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is shown of tables that share their columns. `fields`: by the column's index, without the first.

    `label`: the width of the first column; `short`: whether its cells are. `left_out`: those without room.
    """

    first: Table
    columns: tuple[Column, ...]
    fields: dict[int, Field]
    label: int
    short: bool
    left_out: tuple[str, ...]
    width: int

    def heading(self) -> Text:
        """The names of the columns."""
        names = [
            " " * GAP + field.heading(visible(self.columns[index].name))
            for index, field in self.fields.items()
        ]
        return _text((" " * (INDENT + self.label) + "".join(names)).rstrip(), "dim")

    def title(self, table: Table) -> Text:
        """The whole one where it fits."""
        fits = _length(visible(table.title)) <= self.width
        return _text(visible(table.title if fits else table.short_title or table.title), "bold")

    def lines(self, table: Table, known: Marks) -> Iterator[Text]:
        """One for each row; the last cell of a row that ends before the last column may take further ones."""
        for label, *cells in table.rows:
            name = " " * INDENT + _left(_label(label, known, short=self.short), self.label)
            if _is_reason((label, *cells)):
                yield from self._reason(name, cells[0] or Cell(), known)
            else:
                yield self._line(name, cells, known)

    def _line(self, name: str, cells: Sequence[Cell | None], known: Marks) -> Text:
        line = _text(name)
        for index, field in self.fields.items():
            cell = cells[index - 1] or Cell()
            line.append(" " * GAP).append(field.text(cell, known), STYLES[cell.tone])
        line.rstrip()
        return line

    def _reason(self, name: str, cell: Cell, known: Marks) -> Iterator[Text]:
        indent = _length(name) + GAP
        if indent + LEAST_REASON > self.width:
            yield _text(name.rstrip())
            name, indent = "", INDENT + GAP
        for number, part in enumerate(folded(cell_text(cell, known), max(1, self.width - indent))):
            yield _text(_left("" if number else name, indent)).append(part, STYLES[cell.tone])


def sheet(tables: Sequence[Table], known: Marks, width: int) -> Sheet:
    """As many columns as fit: short labels come before fewer columns, and bars take what is left."""
    columns = tables[0].columns
    wide = {index: _field(tables, index, known) for index in range(1, len(columns))}
    labels = {short: _widest_label(tables, known, short=short) for short in (False, True)}
    short = _needed(labels[False], wide.values()) > width
    shown: dict[int, Field] = {}
    for index in sorted(wide, key=lambda index: columns[index].rank):
        if _needed(labels[short], [*shown.values(), wide[index]]) <= width:
            shown[index] = wide[index]
    left = width - _needed(labels[short], shown.values())
    return Sheet(
        first=tables[0],
        columns=columns,
        fields={index: _stretched(shown[index], left) for index in sorted(shown)},
        label=labels[short],
        short=short,
        left_out=tuple(columns[index].name for index in wide if index not in shown and not wide[index].bar),
        width=width,
    )


def _needed(label: int, fields: Iterable[Field]) -> int:
    return INDENT + label + sum(GAP + field.whole for field in fields)


def _stretched(field: Field, left: int) -> Field:
    if not field.bar:
        return field
    return Field(field.parts, field.after, min(field.whole + left, fmt.LONGEST_BAR), bar=True)


def _field(tables: Sequence[Table], index: int, known: Marks) -> Field:
    name = visible(tables[0].columns[index].name)
    cells = [row[index] for table in tables for row in table.rows if not _is_reason(row)]
    shown = [cell for cell in cells if cell]
    if any(isinstance(part, Gauge) for cell in shown for part in cell.parts):
        return Field((), 0, max(LEAST_BAR, _length(name)), bar=True)
    rows = [[_length(part) for part in _parts(cell)] for cell in shown]
    parts = tuple(map(max, zip_longest(*rows, fillvalue=0)))
    after = max((_length(_after(cell, known)) for cell in shown), default=0)
    spaces = max(len([width for width in parts if width]) - 1, 0)
    return Field(parts, after, max(sum(parts) + spaces, _length(name)) + after)


def _is_reason(row: Sequence[Cell | None]) -> bool:
    return len(row) > 2 and all(cell is None for cell in row[2:])


def _widest_label(tables: Sequence[Table], known: Marks, *, short: bool) -> int:
    labels = (_label(row[0], known, short=short) for table in tables for row in table.rows)
    return max(map(_length, labels), default=0)


def _label(cell: Cell | None, known: Marks, *, short: bool) -> str:
    if cell is None:
        return ""
    return visible(cell.short) + _after(cell, known) if short and cell.short else cell_text(cell, known)


def _parts(cell: Cell) -> list[str]:
    return [visible(str(part)) for part in cell.parts]


def _after(cell: Cell, known: Marks) -> str:
    return (" ?" if cell.unsure else "") + mark_text(cell, known)


def folded(line: str, room: int) -> list[str]:
    """The line in as many as it needs, broken between words where that can be."""
    from rich.console import Console

    if _length(line) <= room:  # to wrap a short one would take longer than all else
        return [line]
    return [part.plain.rstrip() for part in _text(line).wrap(Console(width=room), room, overflow="fold")]


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style, overflow="fold")


def _length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _right(text: str, width: int) -> str:
    return " " * (width - _length(text)) + text


def _left(text: str, width: int) -> str:
    return text + " " * (width - _length(text))
