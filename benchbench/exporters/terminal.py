"""A document on a terminal of any width: what does not fit is left out and named, or becomes paragraphs.

No number and no word is broken, so that names and numbers can be copied. Alternatives have a line each, all
tables under the same columns, as many of these as fit; other tables are grids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import compress, zip_longest
from typing import TYPE_CHECKING, ClassVar

from benchbench import format as fmt
from benchbench.documents.document import Cell, Column, Document, Gauge, Layout, Table, paragraph
from benchbench.exporters._text import EMPTY, STYLES, Marks, cell_text, foot, mark_text, marks
from benchbench.exporters.base import Exporter
from benchbench.format import visible

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2  # between columns
UNWRAPPED = 10_000  # wider than any line
INDENT = 2
LEAST_BAR = 4  # characters; a shorter one tells nothing apart
BREAK = re.compile(r"((?<!\d) )")  # a number stays with its unit
BREAKS = (re.compile("( {2,})"), BREAK, re.compile("( )"), re.compile("((?<=[/,@=]))"))  # cells, words, an id
LEAST_REASON = 24  # of a line in which a reason stands beside its name


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
        below = [*foot(document), *_no_room(shared.left_out if shared else (), "choose by --columns")]
        blocks = [
            self._printed([self._sentence(each, known) for each in document.answer]),
            self._printed(self._sentences(document.facts)),
            *(self._printed(self._table(table, known, shared)) for table in document.tables),
            self._printed(self._sentences(below)),
        ]
        return "\n".join(filter(None, blocks))

    def _sentence(self, cell: Cell, known: Marks) -> Text:
        """A cell on lines of its own, the further ones indented, so that it is seen where one begins."""
        lines = fmt.at_words(cell_text(cell, known), self._width or UNWRAPPED)
        return _text("\n".join(lines), STYLES[cell.tone])

    def _sentences(self, contents: Iterable[str]) -> list[Text]:
        return [self._sentence(Cell((each,)), {}) for each in contents]

    def _printed(self, parts: Sequence[Text]) -> str:
        from rich.console import Console

        console = Console(
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
        assert isinstance(console.file, StringIO)
        for part in parts:
            if _is_plain(part, console.width):
                console.file.write(f"{part.plain}\n")  # Rich takes a tenth of a millisecond for a line
            else:
                console.print(part)
        return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())

    def _table(self, table: Table, known: Marks, shared: Sheet | None) -> list[Text]:
        """The table's title, facts, rows and notes; columns of alternatives are named above the first."""
        if shared and table.layout is Layout.ALTERNATIVES:
            heading = [shared.heading()] if table is shared.first else []
            return [*heading, _title(table, shared.width), *shared.lines(table, known)]
        title = [_title(table, self._width or UNWRAPPED)] if table.title else []
        rows = self._rows(table, known) if table.rows else []
        below = [*rows, *self._sentences(table.notes)]
        return [*title, *self._sentences(table.facts), *below] or [_line(EMPTY)]

    def _rows(self, table: Table, known: Marks) -> list[Text]:
        """The rows, and a line that names the columns without room."""
        width = self._width or UNWRAPPED
        if table.layout is Layout.PARAGRAPHS:
            return [_paragraphs(table, known, width)]
        shown = narrowed(table, known, width)
        absent = [column.name for column in _used(table).columns if column not in shown.columns]
        return [*grid(shown, known, width), *self._sentences(_no_room(absent, "use --format markdown"))]


def _no_room(columns: Sequence[str], remedy: str) -> list[str]:
    return [f"no room for {', '.join(columns)}: widen the terminal, or {remedy}"] if columns else []


def _line(content: str, style: str = "") -> Text:
    return _text(visible(content), style)


def _title(table: Table, width: int) -> Text:
    """The whole one where it fits."""
    fits = _length(visible(table.title)) <= width
    return _line(table.title if fits else table.short_title or table.title, "bold")


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

    def lines(self, table: Table, known: Marks) -> Iterator[Text]:
        """A line for each row; the last cell of a row may extend over empty columns behind it."""
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
    """Choose the columns that fit: labels shrink before columns are dropped; bars take what is left."""
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


def narrowed(table: Table, known: Marks, width: int) -> Table:
    """The table, where it is too wide without empty columns, with short cells, then without others.

    Those of the highest ranks go first; rank 0 always stays.
    """
    if _grid_width(table, known) <= width:
        return table
    shown = _used(table)
    if _grid_width(shown, known) > width:
        shown = replace(shown, rows=tuple(tuple(map(short_form, row)) for row in shown.rows))
    while _grid_width(shown, known) > width and (most := max(column.rank for column in shown.columns)):
        shown = _chosen(shown, [column.rank != most for column in shown.columns])
    return shown


def _used(table: Table) -> Table:
    """The table without the columns that are empty in all rows."""
    return _chosen(
        table, [any(str(row[index] or "") for row in table.rows) for index in range(len(table.columns))]
    )


def _chosen(table: Table, wanted: Sequence[bool]) -> Table:
    rows = tuple(tuple(compress(row, wanted)) for row in table.rows)
    return replace(table, columns=tuple(compress(table.columns, wanted)), rows=rows)


def grid(table: Table, known: Marks, width: int) -> list[Text]:
    """Columns as wide as they need; where their longest words have no room side by side, a line per cell."""
    names, rows = _headings(table), table.rows
    texts = [[cell_text(cell, known) for cell in row] for row in rows]
    widths = _widths(list(zip(names, *texts, strict=True)), width - GAP * (len(names) - 1))
    if widths is None:
        return [_stacked(names, rows, known, width)]
    tones = [[STYLES[cell.tone] if cell else "" for cell in row] for row in rows]
    shown = _grid_row(names, ["bold"] * len(names), widths)
    return [
        *shown,
        *(line for row, styles in zip(texts, tones, strict=True) for line in _grid_row(row, styles, widths)),
    ]


def _grid_row(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int]) -> Iterator[Text]:
    """The lines of a row: as many as its longest cell takes."""
    columns = [folded(text, width) for text, width in zip(texts, widths, strict=True)]
    for parts in zip_longest(*columns, fillvalue=""):
        cells = [_left(part, width + GAP) for part, width in zip(parts, widths, strict=True)]
        if any(styles):
            line = _text("")
            for cell, style in zip(cells, styles, strict=True):
                line.append(cell, style)
            line.rstrip()
            yield line
        else:
            yield _text("".join(cells).rstrip())


def short_form(cell: Cell | None) -> Cell | None:
    """The cell by its short text, where it has one."""
    return replace(cell, parts=(cell.short,)) if cell and cell.short else cell


def _headings(table: Table) -> list[str]:
    return [visible(column.name).upper() for column in table.columns]


def _grid_width(table: Table, known: Marks) -> int:
    widths = [
        max(_length(text) for text in (name, *(cell_text(row[index], known) for row in table.rows)))
        for index, name in enumerate(_headings(table))
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths in which the highest cell has the fewest lines, no word broken; None: there is no room."""
    texts = [sorted(set(column), key=_length, reverse=True) for column in columns]
    parts = [[word for text in column for word in BREAK.split(text)] for column in texts]
    words = [max(map(_length, each), default=0) for each in parts]
    if sum(words) > room:
        return None
    widths, lines = [_length(column[0]) for column in texts], 1
    while sum(widths) > room:
        lines += 1
        widths = [_narrowest(column, lines, least) for column, least in zip(texts, words, strict=True)]
    return widths


def _narrowest(texts: Sequence[str], lines: int, least: int) -> int:
    """The width, `least` or more, in which none of the texts, longest first, takes more than `lines`."""
    width = least
    for text in texts:
        if _length(text) <= width:
            break
        while len(folded(text, width)) > lines:
            width += 1
    return width


def _stacked(names: Sequence[str], rows: Sequence[Sequence[Cell | None]], known: Marks, width: int) -> Text:
    """The first cell of a row, the others with their names below it."""
    shown = _text("")
    for first, *others in rows:
        texts = [
            f"{name.lower()}: {cell_text(cell, known)}"
            for name, cell in zip(names[1:], others, strict=True)
            if cell and cell.parts
        ]
        shown.append(cell_text(first, known), STYLES[first.tone] or "bold" if first else "")
        for part in folded((" " * GAP).join(texts), max(1, width - GAP)) if texts else ():
            shown.append(f"\n{' ' * GAP}{part}")
        shown.append("\n")
    shown.rstrip()
    return shown


def folded(line: str, room: int) -> list[str]:
    """The line in as many as it needs: whole cells stay together where they can, else words, else parts."""
    lines = [""]
    _fill(lines, "", line, room, BREAKS)
    return lines if lines[0] else lines[1:] or lines


def _fill(lines: list[str], gap: str, part: str, room: int, breaks: Sequence[re.Pattern[str]]) -> None:
    """Write the part at the end of the lines, broken only if it is longer than one."""
    if _length(lines[-1] + gap + part) <= room:
        lines[-1] += gap + part
    elif _length(part) <= room:
        lines.append(part)
    elif breaks:
        pieces = breaks[0].split(part)
        for before, piece in zip([gap, *pieces[1::2]], pieces[::2], strict=True):
            _fill(lines, before, piece, room, breaks[1:])
    else:
        from rich.cells import chop_cells

        lines += chop_cells(part, room)


def _is_plain(text: Text, width: int) -> bool:
    """Whether the text is shown as it is: without a style, and each line within the width."""
    unstyled = not (text.style or text.spans)
    return unstyled and all(_length(line) <= width for line in text.plain.splitlines())


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style, overflow="fold")


def _length(text: str) -> int:
    """Columns that the text takes: of ASCII as many as it has characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _right(text: str, width: int) -> str:
    return " " * (width - _length(text)) + text


def _left(text: str, width: int) -> str:
    return text + " " * (width - _length(text))
