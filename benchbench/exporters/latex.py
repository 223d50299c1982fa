r"""LaTeX for a paper: tables with booktabs, and a macro for each cell, so that a text can quote numbers.

After `\usepackage{booktabs}` and `\input{report.tex}`, `\accelbenchtables` prints the tables, and
`\accelbench{gemm-m-64}{torch-eager}{latency}` a cell, by table, row and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from benchbench.documents.document import Cell, Document, Spread, Table
from benchbench.exporters.base import Exporter
from benchbench.format import visible

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


class Latex(Exporter):
    r"""File for `\input`: a macro for each cell, and one that prints all tables."""

    extension: ClassVar[str] = "tex"

    def export(self, document: Document) -> dict[str, bytes]:
        tables = [_drawable(table) for table in document.tables if table.rows]
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


def _drawable(table: Table) -> Table:
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
                names = "@".join(_key(name) for name in (table.title, str(row[0] or ""), column.name))
                yield rf"\expandafter\def\csname accelbench@{names}\endcsname{{{_cell(cell)}}}"


def _key(text: str) -> str:
    """Letters and digits of a name, joined by hyphens."""
    return "-".join(re.findall(r"[A-Za-z0-9.]+", text))


def _tabular(table: Table) -> Iterator[str]:
    """Floating table with its title as caption; numbers are right-aligned."""
    aligned = "l" + "".join("r" if _is_numeric(table, n) else "l" for n in range(1, len(table.columns)))
    yield r"\begin{table}\centering\small"
    if table.title:
        yield rf"\caption{{{escape(table.title)}}}"
    yield rf"\begin{{tabular}}{{{aligned}}}\toprule"
    yield _row([escape(column.name) for column in table.columns]) + r"\midrule"
    for row in table.rows:
        yield _row([_cell(cell) for cell in row])
    yield r"\bottomrule\end{tabular}"
    yield r"\end{table}"


def _is_numeric(table: Table, column: int) -> bool:
    cells = [cell for row in table.rows if (cell := row[column]) and cell.parts]
    return bool(cells) and all(not isinstance(cell.parts[0], str | Spread) for cell in cells)


def _row(cells: Sequence[str]) -> str:
    """Line of a tabular. Protect cells with a bracket, which LaTeX would read as an argument of the line
    before.
    """
    return " & ".join(f"{{}}{cell}" if cell.startswith(("[", "*")) else cell for cell in cells) + r" \\"


def _cell(cell: Cell | None) -> str:
    return escape(str(cell)) if cell else ""


def escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return visible(text).translate(ESCAPES)
