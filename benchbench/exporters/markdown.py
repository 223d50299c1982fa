"""GitHub Markdown. No name, parameter or message can become markup, a link or a mention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar

from benchbench.documents.document import Cell, Document, Layout, Table
from benchbench.exporters._text import EMPTY, Marks, cell_text, code_lines, foot, marks
from benchbench.exporters.base import Exporter
from benchbench.format import visible

# GitHub links mentions, issues and addresses in the rendered text, where a backslash no longer helps. A
# zero-width space prevents that.
LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=://)|(?<=\bwww\.)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
# Underscores within a word, and brackets that cannot start a link, are no markup and stay readable.
MARKUP = re.compile(r"[\\`*~|$!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|](?=[(\[:])", re.ASCII)
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Markdown(Exporter):
    """The answer first, since a comment is read from its top; then facts, tables, footnotes."""

    extension: ClassVar[str] = "md"

    def export(self, document: Document) -> dict[str, bytes]:
        footnote_marks = marks(document)
        blocks = [
            f"## {escape(visible(document.title))}\n",
            "".join(_answer(answer, footnote_marks) for answer in document.answer),
            _bullets(document.facts),
            *(block for tables in _grouped(document.tables) for block in _tables(tables, footnote_marks)),
            _bullets(foot(document)),
        ]
        return {f"{document.name}.md": "\n".join(filter(None, blocks)).encode()}


def _grouped(tables: Sequence[Table]) -> Iterator[list[Table]]:
    """Group consecutive tables with the same columns, so that these are named once."""
    groups = groupby(enumerate(tables), key=lambda item: item[1].columns if _can_join(item[1]) else item[0])
    for _, group in groups:
        yield [table for _, table in group]


def _can_join(table: Table) -> bool:
    return table.layout is Layout.ALTERNATIVES and not table.facts and not table.notes


def _tables(tables: Sequence[Table], footnote_marks: Marks) -> Iterator[str]:
    """Render tables; in a group, each title is a row."""
    first = tables[0]
    is_group = _can_join(first)
    if first.title and not is_group:
        yield f"### {escape(visible(first.title))}\n"
    yield _bullets(first.facts)
    if not first.columns:
        yield "" if first.facts or first.notes else f"{EMPTY}\n"
        yield _bullets(first.notes)
        return
    names = [escape(visible(column.name)) for column in first.columns]
    lines = [_row(names), _row(["---"] * len(names))]
    for table in tables:
        if is_group and table.title:
            lines.append(_row([f"**{escape(visible(table.title))}**", *[""] * (len(names) - 1)]))
        lines += [_row(escape(cell_text(cell, footnote_marks)) for cell in row) for row in table.rows]
    yield "".join(lines)
    yield _bullets(first.notes)


def _answer(answer: Cell, footnote_marks: Marks) -> str:
    """Bullet of an answer, with its code in a fenced block."""
    lines = ["```python", *code_lines(answer), "```"] if answer.code else []
    return _bullets([cell_text(answer, footnote_marks)]) + "".join(f"  {line}\n" for line in lines)


def _bullets(lines: Iterable[str]) -> str:
    return "".join(f"- {escape(visible(line))}\n" for line in lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def escape(text: str) -> str:
    """Escape a visible text for a line of GitHub-flavoured Markdown.

    Markup that is only recognised at the start of a line is not escaped.
    """
    return LINKED.sub("\u200b", MARKUP.sub(r"\\\g<0>", text)).translate(HTML)
