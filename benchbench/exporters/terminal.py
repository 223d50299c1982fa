"""Text for a terminal of any width. Content without room is left out with a note, or becomes paragraphs.

No number or word is broken, so that it can be copied. Tables of alternatives have one line per alternative
under common columns, as many as fit; other tables are grids.
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
from benchbench.exporters._text import EMPTY, STYLES, Marks, cell_text, code_lines, foot, mark_text, marks
from benchbench.exporters.base import Exporter
from benchbench.format import visible

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2  # between columns
UNWRAPPED = 10_000  # a width beyond that of any line
INDENT = 2
MIN_BAR = 4  # characters; shorter bars do not show differences
BREAK = re.compile(r"((?<!\d) )")  # keeps a number with its unit
BREAKS = (
    re.compile("( {2,})"),
    BREAK,
    re.compile("( )"),
    re.compile("((?<=[/,@=]))"),
)  # between cells, words, parts of an id
MIN_REASON = 24  # characters for a reason next to its name; below that, it has its own line


class Terminal(Exporter):
    """Text of a given width, with or without colour."""

    extension: ClassVar[str] = "txt"

    def __init__(self, width: int | None = None, *, color: bool = False) -> None:
        """Set the width in character cells. Without a width, as for files, nothing is wrapped or left out."""
        self._width = width
        self._color = color

    def export(self, document: Document) -> dict[str, bytes]:
        return {f"{document.name}.txt": self.render(document).encode()}

    def render(self, document: Document) -> str:
        """Text to print; no line ends in spaces."""
        footnote_marks = marks(document)
        alternatives = [table for table in document.tables if table.layout is Layout.ALTERNATIVES]
        shared = sheet(alternatives, footnote_marks, self._width or UNWRAPPED) if alternatives else None
        below = [*foot(document), *_no_room(shared.left_out if shared else (), "choose by --columns")]
        blocks = [
            self._printed([self._sentence(answer, footnote_marks) for answer in document.answer]),
            self._printed(self._sentences(document.facts)),
            *(self._printed(self._table(table, footnote_marks, shared)) for table in document.tables),
            self._printed(self._sentences(below)),
        ]
        return "\n".join(filter(None, blocks))

    def _sentence(self, cell: Cell, footnote_marks: Marks) -> Text:
        """Cell on separate lines, with a hanging indent. Lines of code below it are not broken."""
        lines = fmt.at_words(cell_text(cell, footnote_marks), self._width or UNWRAPPED)
        text = _text("\n".join([*lines, *code_lines(cell)]), STYLES[cell.tone])
        text.no_wrap = bool(cell.code)
        return text

    def _sentences(self, contents: Iterable[str]) -> list[Text]:
        return [self._sentence(Cell((content,)), {}) for content in contents]

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
            _environ={},  # the caller sets width and colour
        )
        assert isinstance(console.file, StringIO)
        for part in parts:
            if part.no_wrap or _is_plain(part, console.width):
                console.file.write(f"{part.plain}\n")  # faster than Rich, which takes 0.1 ms per line
            else:
                console.print(part)
        return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())

    def _table(self, table: Table, footnote_marks: Marks, shared: Sheet | None) -> list[Text]:
        """Title, facts, rows and notes of a table; columns of alternatives are named above the
        first table.
        """
        if shared and table.layout is Layout.ALTERNATIVES:
            heading = [shared.heading()] if table is shared.first else []
            return [*heading, _title(table, shared.width), *shared.lines(table, footnote_marks)]
        title = [_title(table, self._width or UNWRAPPED)] if table.title else []
        rows = self._rows(table, footnote_marks) if table.rows else []
        below = [*rows, *self._sentences(table.notes)]
        return [*title, *self._sentences(table.facts), *below] or [_line(EMPTY)]

    def _rows(self, table: Table, footnote_marks: Marks) -> list[Text]:
        """Rows, and a line that names the columns without room."""
        width = self._width or UNWRAPPED
        if table.layout is Layout.PARAGRAPHS:
            return [_paragraphs(table, footnote_marks, width)]
        visible_table = narrow_table(table, footnote_marks, width)
        absent = [column.name for column in _used(table).columns if column not in visible_table.columns]
        return [
            *grid(visible_table, footnote_marks, width),
            *self._sentences(_no_room(absent, "use --format markdown")),
        ]


def _no_room(columns: Sequence[str], remedy: str) -> list[str]:
    return [f"no room for {', '.join(columns)}: widen the terminal, or {remedy}"] if columns else []


def _line(content: str, style: str = "") -> Text:
    return _text(visible(content), style)


def _title(table: Table, width: int) -> Text:
    """Full title if it fits, else the short one."""
    fits = _length(visible(table.title)) <= width
    return _line(table.title if fits else table.short_title or table.title, "bold")


def _cell(cell: Cell | None, footnote_marks: Marks) -> Text:
    return _line(cell_text(cell, footnote_marks), STYLES[cell.tone] if cell else "")


def _paragraphs(table: Table, footnote_marks: Marks, width: int) -> Text:
    """First cells, with the others next to them in a hanging indent."""
    from rich.text import Text

    first = [_cell(row[0], footnote_marks) for row in table.rows]
    indent = max(heading.cell_len for heading in first) + GAP
    room = max(1, width - indent)
    text = Text()
    for heading, row in zip(first, table.rows, strict=True):
        heading.pad_right(indent - heading.cell_len)
        cells = [short_form(cell) if len(str(cell or "")) > room else cell for cell in row[1:]]
        lines = paragraph(table.columns[1:], cells)
        parts = [part for line in lines for part in fold_line(visible(line), room)]
        text.append_text(heading).append(f"\n{' ' * indent}".join(parts) + "\n")
    text.rstrip()
    return text


@dataclass(frozen=True, slots=True)
class Field:
    """Widths of a column: of each part of its cells, of the marks after them, and in total. `bar`: True for
    bars.
    """

    parts: tuple[int, ...]
    after: int
    total: int
    bar: bool = False

    def text(self, cell: Cell, footnote_marks: Marks) -> str:
        """Cell in this width, with numbers aligned."""
        if self.bar:
            bars = [fmt.bar(part.share, self.total) for part in cell.parts if isinstance(part, Gauge)]
            return "".join(bars).ljust(self.total)
        pairs = zip_longest(_parts(cell), self.parts, fillvalue="")
        text = " ".join(_pad_left(str(part), int(width)) for part, width in pairs if width)
        return _pad_left(text + _pad_right(_after(cell, footnote_marks), self.after), self.total)

    def heading(self, name: str) -> str:
        """Heading above the numbers."""
        return (
            name.ljust(self.total)
            if self.bar
            else _pad_left(_pad_right(name, len(name) + self.after), self.total)
        )


@dataclass(frozen=True, slots=True)
class Sheet:
    """Layout of tables with common columns. `fields`: by column index, without the first column.

    `label`: width of the first column; `short`: use short labels. `left_out`: columns without room.
    """

    first: Table
    columns: tuple[Column, ...]
    fields: dict[int, Field]
    label: int
    short: bool
    left_out: tuple[str, ...]
    width: int

    def heading(self) -> Text:
        """Names of the columns."""
        names = [
            " " * GAP + field.heading(visible(self.columns[index].name))
            for index, field in self.fields.items()
        ]
        return _text((" " * (INDENT + self.label) + "".join(names)).rstrip(), "dim")

    def lines(self, table: Table, footnote_marks: Marks) -> Iterator[Text]:
        """Yield a line per row; the last cell of a row may extend over empty columns."""
        for label, *cells in table.rows:
            name = " " * INDENT + _pad_right(_label(label, footnote_marks, short=self.short), self.label)
            if _is_reason((label, *cells)):
                yield from self._reason(name, cells[0] or Cell(), footnote_marks)
            else:
                yield self._line(name, cells, footnote_marks)

    def _line(self, name: str, cells: Sequence[Cell | None], footnote_marks: Marks) -> Text:
        line = _text(name)
        for index, field in self.fields.items():
            cell = cells[index - 1] or Cell()
            line.append(" " * GAP).append(field.text(cell, footnote_marks), STYLES[cell.tone])
        line.rstrip()
        return line

    def _reason(self, name: str, cell: Cell, footnote_marks: Marks) -> Iterator[Text]:
        indent = _length(name) + GAP
        if indent + MIN_REASON > self.width:
            yield _text(name.rstrip())
            name, indent = "", INDENT + GAP
        for number, part in enumerate(
            fold_line(cell_text(cell, footnote_marks), max(1, self.width - indent))
        ):
            yield _text(_pad_right("" if number else name, indent)).append(part, STYLES[cell.tone])


def sheet(tables: Sequence[Table], footnote_marks: Marks, width: int) -> Sheet:
    """Choose columns that fit: labels are shortened before columns are dropped; bars take the remaining
    width.
    """
    columns = tables[0].columns
    fields = {index: _field(tables, index, footnote_marks) for index in range(1, len(columns))}
    labels = {short: _widest_label(tables, footnote_marks, short=short) for short in (False, True)}
    short = _required_width(labels[False], fields.values()) > width
    selected: dict[int, Field] = {}
    for index in sorted(fields, key=lambda index: columns[index].rank):
        if _required_width(labels[short], [*selected.values(), fields[index]]) <= width:
            selected[index] = fields[index]
    free = width - _required_width(labels[short], selected.values())
    return Sheet(
        first=tables[0],
        columns=columns,
        fields={index: _stretch(selected[index], free) for index in sorted(selected)},
        label=labels[short],
        short=short,
        left_out=tuple(
            columns[index].name for index in fields if index not in selected and not fields[index].bar
        ),
        width=width,
    )


def _required_width(label: int, fields: Iterable[Field]) -> int:
    return INDENT + label + sum(GAP + field.total for field in fields)


def _stretch(field: Field, free: int) -> Field:
    if not field.bar:
        return field
    return Field(field.parts, field.after, min(field.total + free, fmt.LONGEST_BAR), bar=True)


def _field(tables: Sequence[Table], index: int, footnote_marks: Marks) -> Field:
    name = visible(tables[0].columns[index].name)
    cells = [row[index] for table in tables for row in table.rows if not _is_reason(row)]
    filled = [cell for cell in cells if cell]
    if any(isinstance(part, Gauge) for cell in filled for part in cell.parts):
        return Field((), 0, max(MIN_BAR, _length(name)), bar=True)
    rows = [[_length(part) for part in _parts(cell)] for cell in filled]
    parts = tuple(map(max, zip_longest(*rows, fillvalue=0)))
    after = max((_length(_after(cell, footnote_marks)) for cell in filled), default=0)
    spaces = max(len([width for width in parts if width]) - 1, 0)
    return Field(parts, after, max(sum(parts) + spaces, _length(name)) + after)


def _is_reason(row: Sequence[Cell | None]) -> bool:
    return len(row) > 2 and all(cell is None for cell in row[2:])


def _widest_label(tables: Sequence[Table], footnote_marks: Marks, *, short: bool) -> int:
    labels = (_label(row[0], footnote_marks, short=short) for table in tables for row in table.rows)
    return max(map(_length, labels), default=0)


def _label(cell: Cell | None, footnote_marks: Marks, *, short: bool) -> str:
    if cell is None:
        return ""
    return (
        visible(cell.short) + _after(cell, footnote_marks)
        if short and cell.short
        else cell_text(cell, footnote_marks)
    )


def _parts(cell: Cell) -> list[str]:
    return [visible(str(part)) for part in cell.parts]


def _after(cell: Cell, footnote_marks: Marks) -> str:
    return (" ?" if cell.unsure else "") + mark_text(cell, footnote_marks)


def narrow_table(table: Table, footnote_marks: Marks, width: int) -> Table:
    """Narrow a table that is too wide: drop empty columns, use short cells, then drop further columns.

    Columns of the highest ranks are dropped first; rank 0 stays.
    """
    if _grid_width(table, footnote_marks) <= width:
        return table
    narrow = _used(table)
    if _grid_width(narrow, footnote_marks) > width:
        narrow = replace(narrow, rows=tuple(tuple(map(short_form, row)) for row in narrow.rows))
    while _grid_width(narrow, footnote_marks) > width and (
        highest := max(column.rank for column in narrow.columns)
    ):
        narrow = _select_columns(narrow, [column.rank != highest for column in narrow.columns])
    return narrow


def _used(table: Table) -> Table:
    """Table without empty columns."""
    return _select_columns(
        table, [any(str(row[index] or "") for row in table.rows) for index in range(len(table.columns))]
    )


def _select_columns(table: Table, selection: Sequence[bool]) -> Table:
    rows = tuple(tuple(compress(row, selection)) for row in table.rows)
    return replace(table, columns=tuple(compress(table.columns, selection)), rows=rows)


def grid(table: Table, footnote_marks: Marks, width: int) -> list[Text]:
    """Grid with columns as wide as needed; without room for their longest words, a line per cell."""
    names, rows = _headings(table), table.rows
    texts = [[cell_text(cell, footnote_marks) for cell in row] for row in rows]
    widths = _widths(list(zip(names, *texts, strict=True)), width - GAP * (len(names) - 1))
    if widths is None:
        return [_stack(names, rows, footnote_marks, width)]
    tones = [[STYLES[cell.tone] if cell else "" for cell in row] for row in rows]
    lines = _grid_row(names, ["bold"] * len(names), widths)
    return [
        *lines,
        *(line for row, styles in zip(texts, tones, strict=True) for line in _grid_row(row, styles, widths)),
    ]


def _grid_row(texts: Sequence[str], styles: Sequence[str], widths: Sequence[int]) -> Iterator[Text]:
    """Yield the lines of a row."""
    columns = [fold_line(text, width) for text, width in zip(texts, widths, strict=True)]
    for parts in zip_longest(*columns, fillvalue=""):
        cells = [_pad_right(part, width + GAP) for part, width in zip(parts, widths, strict=True)]
        if any(styles):
            line = _text("")
            for cell, style in zip(cells, styles, strict=True):
                line.append(cell, style)
            line.rstrip()
            yield line
        else:
            yield _text("".join(cells).rstrip())


def short_form(cell: Cell | None) -> Cell | None:
    """Cell with its short text, if it has one."""
    return replace(cell, parts=(cell.short,)) if cell and cell.short else cell


def _headings(table: Table) -> list[str]:
    return [visible(column.name).upper() for column in table.columns]


def _grid_width(table: Table, footnote_marks: Marks) -> int:
    widths = [
        max(_length(text) for text in (name, *(cell_text(row[index], footnote_marks) for row in table.rows)))
        for index, name in enumerate(_headings(table))
    ]
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths with the fewest lines in the highest cell, without breaking words; None without room."""
    texts = [sorted(set(column), key=_length, reverse=True) for column in columns]
    parts = [[word for text in column for word in BREAK.split(text)] for column in texts]
    words = [max(map(_length, column_words), default=0) for column_words in parts]
    if sum(words) > room:
        return None
    widths, lines = [_length(column[0]) for column in texts], 1
    while sum(widths) > room:
        lines += 1
        widths = [_narrowest(column, lines, least) for column, least in zip(texts, words, strict=True)]
    return widths


def _narrowest(texts: Sequence[str], lines: int, minimum: int) -> int:
    """Smallest width from `minimum` on in which no text takes more than `lines`; longest texts first."""
    width = minimum
    for text in texts:
        if _length(text) <= width:
            break
        while len(fold_line(text, width)) > lines:
            width += 1
    return width


def _stack(
    names: Sequence[str], rows: Sequence[Sequence[Cell | None]], footnote_marks: Marks, width: int
) -> Text:
    """First cells, each with the other cells and their names below it."""
    text = _text("")
    for first, *remaining in rows:
        texts = [
            f"{name.lower()}: {cell_text(cell, footnote_marks)}"
            for name, cell in zip(names[1:], remaining, strict=True)
            if cell and cell.parts
        ]
        text.append(cell_text(first, footnote_marks), STYLES[first.tone] or "bold" if first else "")
        for part in fold_line((" " * GAP).join(texts), max(1, width - GAP)) if texts else ():
            text.append(f"\n{' ' * GAP}{part}")
        text.append("\n")
    text.rstrip()
    return text


def fold_line(line: str, room: int) -> list[str]:
    """Break a line into lines that fit: between cells if possible, else between words, else within words."""
    lines = [""]
    _fill(lines, "", line, room, BREAKS)
    return lines if lines[0] else lines[1:] or lines


def _fill(lines: list[str], gap: str, part: str, room: int, breaks: Sequence[re.Pattern[str]]) -> None:
    """Append a part to the lines, breaking it only if it is longer than a line."""
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
    """True if the text has no style and each line fits."""
    unstyled = not (text.style or text.spans)
    return unstyled and all(_length(line) <= width for line in text.plain.splitlines())


def _text(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style, overflow="fold")


def _length(text: str) -> int:
    """Width of a text in character cells."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _pad_left(text: str, width: int) -> str:
    return " " * (width - _length(text)) + text


def _pad_right(text: str, width: int) -> str:
    return text + " " * (width - _length(text))
