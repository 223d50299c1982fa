"""Formats that are one text: Markdown, CSV, JSON and LaTeX. No text from data becomes markup or a command."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from io import StringIO
from itertools import groupby
from typing import Any

from benchbench.documents.document import Cell, Column, Document, Layout, Number, Records, Spread, Table
from benchbench.format import visible

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
EMPTY = "none"  # shown for a table without rows, facts and notes
Marks = Mapping[str, str]


@lru_cache(4096)  # names of columns, backends and targets are repeated in every row
def html_text(text: str) -> str:
    """Escape a text for HTML and XML."""
    return escape(visible(text))


def marks(document: Document) -> Marks:
    """Number the footnotes in their order."""
    return {
        text: str(number).translate(SUPERSCRIPT) for number, text in enumerate(document.footnotes, start=1)
    }


def cell_text(cell: Cell | None, footnote_marks: Marks) -> str:
    """Cell on one line: `19.0 ms [18.6, 19.4]¹`."""
    if cell is None:
        return ""
    return visible(str(cell)) + mark_text(cell, footnote_marks)


def code_lines(cell: Cell) -> list[str]:
    """The lines of code below a cell's text."""
    return [visible(line) for line in cell.code.splitlines()]


def mark_text(cell: Cell, footnote_marks: Marks) -> str:
    """Marks of a cell's footnotes, in order."""
    return (
        " ".join(mark for note, mark in footnote_marks.items() if note in cell.footnotes)
        if cell.footnotes
        else ""
    )


def foot(document: Document) -> Iterator[str]:
    """Lines below all tables: footnotes, then notes."""
    yield from (f"{mark} {visible(note)}" for note, mark in marks(document).items())
    yield from map(visible, document.notes)


# GitHub links mentions, issues and addresses in the rendered text, where a backslash no longer helps. A
# zero-width space prevents that.
LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=://)|(?<=\bwww\.)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
# Underscores within a word, and brackets that cannot start a link, are no markup and stay readable.
MARKUP = re.compile(r"[\\`*~|$!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|](?=[(\[:])", re.ASCII)
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def markdown(document: Document) -> dict[str, bytes]:
    """Markdown with the answer first, since a comment is read from its top; then facts, tables, footnotes."""
    footnote_marks = marks(document)
    blocks = [
        f"## {escape_markdown(visible(document.title))}\n",
        "".join(_markdown_answer(answer, footnote_marks) for answer in document.answer),
        _bullets(document.facts),
        *(
            block
            for tables in _grouped_tables(document.tables)
            for block in _markdown_tables(tables, footnote_marks)
        ),
        _bullets(foot(document)),
    ]
    return {f"{document.name}.md": "\n".join(filter(None, blocks)).encode()}


def _grouped_tables(tables: Sequence[Table]) -> Iterator[list[Table]]:
    """Group consecutive tables with the same columns, so that these are named once."""
    groups = groupby(
        enumerate(tables), key=lambda item: item[1].columns if _is_joinable(item[1]) else item[0]
    )
    for _, group in groups:
        yield [table for _, table in group]


def _is_joinable(table: Table) -> bool:
    return table.layout is Layout.ALTERNATIVES and not table.facts and not table.notes


def _markdown_tables(tables: Sequence[Table], footnote_marks: Marks) -> Iterator[str]:
    """Render tables; in a group, each title is a row."""
    first = tables[0]
    is_group = _is_joinable(first)
    if first.title and not is_group:
        yield f"### {escape_markdown(visible(first.title))}\n"
    yield _bullets(first.facts)
    if not first.columns:
        yield "" if first.facts or first.notes else f"{EMPTY}\n"
        yield _bullets(first.notes)
        return
    names = [escape_markdown(visible(column.name)) for column in first.columns]
    lines = [_markdown_row(names), _markdown_row(["---"] * len(names))]
    for table in tables:
        if is_group and table.title:
            lines.append(
                _markdown_row([f"**{escape_markdown(visible(table.title))}**", *[""] * (len(names) - 1)])
            )
        lines += [
            _markdown_row(escape_markdown(cell_text(cell, footnote_marks)) for cell in row)
            for row in table.rows
        ]
    yield "".join(lines)
    yield _bullets(first.notes)


def _markdown_answer(answer: Cell, footnote_marks: Marks) -> str:
    """Bullet of an answer, with its code in a fenced block."""
    lines = ["```python", *code_lines(answer), "```"] if answer.code else []
    return _bullets([cell_text(answer, footnote_marks)]) + "".join(f"  {line}\n" for line in lines)


def _bullets(lines: Iterable[str]) -> str:
    return "".join(f"- {escape_markdown(visible(line))}\n" for line in lines)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def escape_markdown(text: str) -> str:
    """Escape a visible text for a line of GitHub-flavoured Markdown.

    Markup that is only recognised at the start of a line is not escaped.
    """
    return LINKED.sub("\u200b", MARKUP.sub(r"\\\g<0>", text)).translate(HTML)


def json_file(document: Document) -> dict[str, bytes]:
    """The document's data as one JSON value in SI base units; absent numbers are null."""
    return {f"{document.name}.json": json_text(document.data, indent=2)}


def json_text(data: Any, indent: int) -> bytes:
    """JSON in ASCII, without character sequences that CI services would interpret as commands."""
    text = json.dumps(data, indent=indent, allow_nan=False).replace("##", r"#\u0023")
    return f"{text}\n".encode()


FORMULA = ("=", "+", "-", "@")  # OWASP, CSV injection; tab and CR are made visible

HEADINGS = {"%": "fraction", "±": "fraction", "p": ""}  # numbers are stored values, not formatted ones


def csv_file(document: Document) -> dict[str, bytes]:
    """The document's records, or its tables below each other; absent values are empty."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if document.records is None:
        for number, table in enumerate(document.tables):
            writer.writerows(([], *_table_lines(table)) if number else _table_lines(table))
    else:
        writer.writerows(_record_lines(document.records))
    return {f"{document.name}.csv": out.getvalue().encode()}


def _record_lines(records: Records) -> Iterator[list[Any]]:
    yield list(map(field, records.names))
    for row in records.rows:
        yield [field(row[name]) for name in records.names]


def _table_lines(table: Table) -> Iterator[list[Any]]:
    """Lines of a table, after a line with its title. Names of numeric columns include the unit."""
    if table.title:
        yield [field(table.title)]
    columns = list(zip(table.columns, zip(*table.rows, strict=True), strict=False))
    units = [_common_unit(cells) for _, cells in columns]
    yield [_csv_name(column, unit) for (column, _), unit in zip(columns, units, strict=True)]
    for row in table.rows:
        yield [_csv_value(cell, unit) for cell, unit in zip(row, units, strict=True)]


def _common_unit(cells: Sequence[Cell | None]) -> str | None:
    """Common unit of a column's numbers; None if they differ, or a cell has more than a number."""
    filled = [cell for cell in cells if cell and cell.parts]
    units = {part.unit for cell in filled for part in cell.parts if isinstance(part, Number)}
    are_numbers = all(len(cell.parts) == 1 and isinstance(cell.parts[0], Number) for cell in filled)
    return units.pop() if filled and are_numbers and len(units) == 1 else None


def _csv_name(column: Column, unit: str | None) -> str:
    unit_name = HEADINGS.get(unit, unit) if unit else ""
    return str(field(f"{column.name} [{unit_name}]" if unit_name else column.name))


def _csv_value(cell: Cell | None, unit: str | None) -> Any:
    """The number if the column has a unit, else the formatted text."""
    if cell is None or not cell.parts:
        return ""
    number = cell.parts[0]
    if unit is not None and isinstance(number, Number):
        return number.value
    return field(str(cell))


def join_values(value: Any) -> Any:
    """Join parameters, or several texts, to one text."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={str(setting).lower()}" for name, setting in value.items())
    if isinstance(value, tuple | list):
        return "; ".join(map(str, value))
    return value


def field(value: Any) -> Any:
    """Field on one line that a spreadsheet does not execute. Numbers, also negative ones, stay unchanged."""
    value = join_values(value)
    if not isinstance(value, str):
        return value
    text = visible(value)  # keeps each row on one line
    return f"'{text}" if text.startswith(FORMULA) else text


SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{char: f"\\{char}" for char in "{}$&#_%"},
    "×": r"$\times$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "→": r"$\to$",
    "µ": r"$\mu$",
    "−": "$-$",
    "–": "--",
}
ESCAPES = str.maketrans(SPECIAL)
LOOK_UP = (
    r"\newcommand{\accelbench}[3]{\ifcsname accelbench@#1@#2@#3\endcsname"
    r"\csname accelbench@#1@#2@#3\endcsname\else\textbf{??}\fi}"
)


def latex(document: Document) -> dict[str, bytes]:
    r"""LaTeX for a paper: tables with booktabs, and a macro for each cell, so that a text can quote numbers.

    After `\usepackage{booktabs}` and `\input{report.tex}`, `\accelbenchtables` prints the tables, and
    `\accelbench{gemm-m-64}{torch-eager}{latency}` a cell, by table, row and column.
    """
    tables = [_without_drawings(table) for table in document.tables if table.rows]
    lines = [
        f"% {' '.join(visible(document.title).split())}; created by accelbench",
        r"% needs \usepackage{booktabs}",
        LOOK_UP,
        *(line for table in tables for line in _macros(table)),
        r"\newcommand{\accelbenchtables}{%",
        *(line for table in tables for line in _tabular(table)),
        "}",
    ]
    return {f"{document.name}.tex": ("\n".join(lines) + "\n").encode()}


def _without_drawings(table: Table) -> Table:
    """Table without columns that contain only drawings or nothing."""
    columns = [
        n
        for n in range(len(table.columns))
        if any(str(row[n] or "").strip("█▉▊▋▌▍▎▏ ") for row in table.rows)
    ]
    rows = tuple(tuple(row[n] for n in columns) for row in table.rows)
    return Table(
        columns=tuple(table.columns[n] for n in columns), rows=rows, title=table.title, notes=table.notes
    )


def _macros(table: Table) -> Iterator[str]:
    for row in table.rows:
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            if cell and cell.parts:
                names = "@".join(_macro_key(name) for name in (table.title, str(row[0] or ""), column.name))
                yield rf"\expandafter\def\csname accelbench@{names}\endcsname{{{_latex_cell(cell)}}}"


def _macro_key(text: str) -> str:
    """Letters and digits of a name, joined by hyphens."""
    return "-".join(re.findall(r"[A-Za-z0-9.]+", text))


def _tabular(table: Table) -> Iterator[str]:
    """Floating table with its title as caption; numbers are right-aligned."""
    aligned = "l" + "".join("r" if _is_numeric(table, n) else "l" for n in range(1, len(table.columns)))
    yield r"\begin{table}\centering\small"
    if table.title:
        yield rf"\caption{{{escape_latex(table.title)}}}"
    yield rf"\begin{{tabular}}{{{aligned}}}\toprule"
    yield _latex_row([escape_latex(column.name) for column in table.columns]) + r"\midrule"
    for row in table.rows:
        yield _latex_row([_latex_cell(cell) for cell in row])
    yield r"\bottomrule\end{tabular}"
    yield r"\end{table}"


def _is_numeric(table: Table, column: int) -> bool:
    cells = [cell for row in table.rows if (cell := row[column]) and cell.parts]
    return bool(cells) and all(not isinstance(cell.parts[0], str | Spread) for cell in cells)


def _latex_row(cells: Sequence[str]) -> str:
    """Line of a tabular. Protect cells with a bracket, which LaTeX would read as an argument of the line
    before.
    """
    return " & ".join(f"{{}}{cell}" if cell.startswith(("[", "*")) else cell for cell in cells) + r" \\"


def _latex_cell(cell: Cell | None) -> str:
    return escape_latex(str(cell)) if cell else ""


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX."""
    return visible(text).translate(ESCAPES)
