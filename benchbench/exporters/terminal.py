"""Text for a terminal of any width. Content without room is left out with a note, or becomes paragraphs.

No number or word is broken, so that it can be copied. Tables of alternatives have one line per alternative
under common columns, as many as fit; other tables are grids.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, zip_longest

from benchbench import format as fmt
from benchbench.documents.document import Cell, Document, Gauge, Layout, Table, Tone, paragraph
from benchbench.exporters.text import EMPTY, Marks, cell_text, code_lines, foot, mark_text, marks
from benchbench.format import visible

GAP = 2  # between columns
UNWRAPPED = 10_000  # a width beyond that of any line
INDENT = 2
MIN_BAR = 4  # characters; shorter bars do not show differences
BREAK = re.compile(r"((?<!\d) )")  # keeps a number with its unit
WORDS = re.compile(r"((?<=\S) )")
BREAKS = (  # between cells, words, parts of an id
    re.compile("( {2,})"),
    BREAK,
    re.compile("( )"),
    re.compile("((?<=[/,@=]))"),
)
MIN_REASON = 24  # characters for a reason next to its name; below that, it has its own line
BOLD, DIM = "1", "2"  # codes of ECMA-48, select graphic rendition
STYLES = {Tone.PLAIN: "", Tone.GOOD: "32", Tone.WARNING: "33", Tone.BAD: "31"}
Row = Sequence[Cell | None]


def terminal(document: Document) -> dict[str, bytes]:
    """Text for a file: nothing is coloured, wrapped or left out."""
    return {f"{document.name}.txt": render(document).encode()}


def render(document: Document, width: int | None = None, *, color: bool = False) -> str:
    """Text for a terminal of `width` character cells; no line ends in spaces."""
    screen = Screen(width or UNWRAPPED, marks(document), color)
    alternatives = [table for table in document.tables if table.layout is Layout.ALTERNATIVES]
    sheet = Sheet(alternatives, screen) if alternatives else None
    below = [*foot(document), *_no_room(sheet.left_out if sheet else (), "choose by --columns")]
    blocks = [
        [line for answer in document.answer for line in screen.sentence(answer)],
        screen.sentences(document.facts),
        *(_table_lines(table, screen, sheet) for table in document.tables),
        screen.sentences(below),
    ]
    return "\n".join("".join(f"{line.rstrip()}\n" for line in block) for block in blocks if block)


@dataclass(frozen=True, slots=True)
class Screen:
    """Width of a terminal, the marks of the document's footnotes, and whether to use colour."""

    width: int
    marks: Marks
    color: bool

    def paint(self, text: str, style: str) -> str:
        """Text in a style, if there is colour."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.color and style and text.strip() else text

    def fold(self, text: str, style: str = "") -> list[str]:
        """Lines of a text that may be too long for one."""
        return [self.paint(part, style) for part in fold_line(text, self.width, (WORDS,))]

    def sentence(self, cell: Cell) -> list[str]:
        """Cell on separate lines, with a hanging indent. Lines of code below it are not broken."""
        style = STYLES[cell.tone]
        lines = fmt.at_words(cell_text(cell, self.marks), self.width)
        folded = [part for line in lines for part in self.fold(line, style)]
        return [*folded, *(self.paint(line, style) for line in code_lines(cell))]

    def sentences(self, contents: Iterable[str]) -> list[str]:
        """Lines of several texts."""
        return [line for content in contents for line in self.sentence(Cell((content,)))]


def _table_lines(table: Table, screen: Screen, sheet: Sheet | None) -> list[str]:
    """Title, facts, rows and notes of a table; columns of alternatives are named above the first table."""
    title = _title(table, screen) if table.title else []
    if sheet and table.layout is Layout.ALTERNATIVES:
        return [*(sheet.heading() if table is sheet.first else []), *title, *sheet.lines(table)]
    rows: Iterable[str] = ()
    if table.rows:
        rows = _paragraphs(table, screen) if table.layout is Layout.PARAGRAPHS else _grid(table, screen)
    return [*title, *screen.sentences(table.facts), *rows, *screen.sentences(table.notes)] or [EMPTY]


def _title(table: Table, screen: Screen) -> list[str]:
    """Full title if it fits, else the short one."""
    fits = _length(visible(table.title)) <= screen.width
    return screen.fold(visible(table.title if fits else table.short_title or table.title), BOLD)


def _no_room(columns: Sequence[str], remedy: str) -> list[str]:
    return [f"no room for {', '.join(columns)}: widen the terminal, or {remedy}"] if columns else []


def _paragraphs(table: Table, screen: Screen) -> Iterator[str]:
    """First cells, with the others next to them in a hanging indent."""
    names = [cell_text(row[0], screen.marks) for row in table.rows]
    indent = max(map(_length, names)) + GAP
    room = max(1, screen.width - indent)
    for name, (first, *others) in zip(names, table.rows, strict=True):
        cells = [short_form(cell) if len(str(cell or "")) > room else cell for cell in others]
        lines = paragraph(table.columns[1:], cells)
        parts = [part for line in lines for part in fold_line(visible(line), room)] or [""]
        heading = screen.paint(name, STYLES[first.tone] if first else "")
        yield heading + " " * (indent - _length(name)) + parts[0]
        yield from (" " * indent + part for part in parts[1:])


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
        if self.bar:
            return name.ljust(self.total)
        return _pad_left(_pad_right(name, len(name) + self.after), self.total)


class Sheet:
    """Common columns of the tables of alternatives: as many as fit.

    Labels are shortened before columns are left out; bars take the remaining width.
    """

    def __init__(self, tables: Sequence[Table], screen: Screen) -> None:
        self.first, self._screen = tables[0], screen
        self._columns = columns = tables[0].columns
        rows = [row for table in tables for row in table.rows]
        fields = {index: self._field(rows, index) for index in range(1, len(columns))}
        self._short = False
        self._label_width = self._widest_label(rows)
        if self._required_width(fields.values()) > screen.width:
            self._short = True
            self._label_width = self._widest_label(rows)
        selected: dict[int, Field] = {}
        for index in sorted(fields, key=lambda index: columns[index].rank):
            if self._required_width([*selected.values(), fields[index]]) <= screen.width:
                selected[index] = fields[index]
        free = screen.width - self._required_width(selected.values())
        self._fields = {index: _stretch(selected[index], free) for index in sorted(selected)}
        self.left_out = tuple(
            columns[index].name for index in fields if index not in selected and not fields[index].bar
        )

    def _field(self, rows: Sequence[Row], index: int) -> Field:
        name = visible(self._columns[index].name)
        cells = [cell for row in rows if not _is_reason(row) and (cell := row[index])]
        if any(isinstance(part, Gauge) for cell in cells for part in cell.parts):
            return Field((), 0, max(MIN_BAR, _length(name)), bar=True)
        widths = [[_length(part) for part in _parts(cell)] for cell in cells]
        parts = tuple(map(max, zip_longest(*widths, fillvalue=0)))
        after = max((_length(_after(cell, self._screen.marks)) for cell in cells), default=0)
        spaces = max(len([width for width in parts if width]) - 1, 0)
        return Field(parts, after, max(sum(parts) + spaces, _length(name)) + after)

    def _widest_label(self, rows: Sequence[Row]) -> int:
        return max((_length(self._label(row[0])) for row in rows), default=0)

    def _label(self, cell: Cell | None) -> str:
        if cell and cell.short and self._short:
            return visible(cell.short) + _after(cell, self._screen.marks)
        return cell_text(cell, self._screen.marks)

    def _required_width(self, fields: Iterable[Field]) -> int:
        return INDENT + self._label_width + sum(GAP + field.total for field in fields)

    def heading(self) -> list[str]:
        """Names of the columns."""
        names = [
            " " * GAP + field.heading(visible(self._columns[index].name))
            for index, field in self._fields.items()
        ]
        return self._screen.fold((" " * (INDENT + self._label_width) + "".join(names)).rstrip(), DIM)

    def lines(self, table: Table) -> Iterator[str]:
        """Yield a line per row; the last cell of a row may extend over empty columns."""
        for row in table.rows:
            name = " " * INDENT + _pad_right(self._label(row[0]), self._label_width)
            if _is_reason(row):
                yield from self._reason(name, row[1] or Cell())
                continue
            *parts, last = self._screen.fold(name) if _length(name) > self._screen.width else [name]
            yield from parts
            cells = [(row[index] or Cell(), field) for index, field in self._fields.items()]
            texts = [(field.text(cell, self._screen.marks), STYLES[cell.tone]) for cell, field in cells]
            yield last + "".join(" " * GAP + self._screen.paint(text, style) for text, style in texts)

    def _reason(self, name: str, cell: Cell) -> Iterator[str]:
        indent = _length(name) + GAP
        if indent + MIN_REASON > self._screen.width:
            yield from self._screen.fold(name.rstrip())
            name, indent = "", INDENT + GAP
        parts = fold_line(cell_text(cell, self._screen.marks), max(1, self._screen.width - indent))
        for number, part in enumerate(parts):
            yield _pad_right("" if number else name, indent) + self._screen.paint(part, STYLES[cell.tone])


def _stretch(field: Field, free: int) -> Field:
    return replace(field, total=min(field.total + free, fmt.LONGEST_BAR)) if field.bar else field


def _is_reason(row: Row) -> bool:
    return len(row) > 2 and all(cell is None for cell in row[2:])


def _parts(cell: Cell) -> list[str]:
    return [visible(str(part)) for part in cell.parts]


def _after(cell: Cell, footnote_marks: Marks) -> str:
    return (" ?" if cell.unsure else "") + mark_text(cell, footnote_marks)


def _grid(table: Table, screen: Screen) -> Iterator[str]:
    """Columns as wide as needed, or without room for their longest words a line per cell; then a line that
    names the columns without room.
    """
    narrow = narrow_table(table, screen.marks, screen.width)
    names = _headings(narrow)
    texts = [[cell_text(cell, screen.marks) for cell in row] for row in narrow.rows]
    widths = _widths(list(zip(names, *texts, strict=True)), screen.width - GAP * (len(names) - 1))
    if widths is None:
        yield from _stack(names, narrow.rows, screen)
    else:
        styles = [[STYLES[cell.tone] if cell else "" for cell in row] for row in narrow.rows]
        for row, row_styles in zip([names, *texts], [[BOLD] * len(names), *styles], strict=True):
            columns = [fold_line(text, width) for text, width in zip(row, widths, strict=True)]
            for parts in zip_longest(*columns, fillvalue=""):
                cells = zip(parts, row_styles, widths, strict=True)
                yield "".join(
                    screen.paint(part, style) + " " * (width + GAP - _length(part))
                    for part, style, width in cells
                )
    absent = [column.name for column in _used(table).columns if column not in narrow.columns]
    yield from screen.sentences(_no_room(absent, "use --format markdown"))


def _stack(names: Sequence[str], rows: Sequence[Row], screen: Screen) -> Iterator[str]:
    """First cells, each with the other cells and their names below it."""
    for first, *remaining in rows:
        texts = [
            f"{name.lower()}: {cell_text(cell, screen.marks)}"
            for name, cell in zip(names[1:], remaining, strict=True)
            if cell and cell.parts
        ]
        style = (STYLES[first.tone] or BOLD) if first else ""
        yield from screen.fold(cell_text(first, screen.marks), style)
        for part in fold_line((" " * GAP).join(texts), max(1, screen.width - GAP)) if texts else ():
            yield " " * GAP + part


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
        width += bisect_left(
            range(width, _length(text)), True, key=lambda room: len(fold_line(text, room)) <= lines
        )
    return width


def fold_line(line: str, room: int, breaks: Sequence[re.Pattern[str]] = BREAKS) -> list[str]:
    """Break a line into lines that fit: between cells if possible, else between words, else within words."""
    lines = [""]
    _fill(lines, "", line, room, breaks)
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
