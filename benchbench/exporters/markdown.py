"""GitHub Markdown to paste. No name, parameter or message can become markup, a link or a mention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar

from benchbench.documents.document import Document, Layout, Table
from benchbench.exporters._text import EMPTY, Marks, cell_text, foot, marks
from benchbench.exporters.base import Exporter
from benchbench.format import visible

# GitHub links mentions, issues and addresses in the rendered text, where a backslash is gone: a
# zero-width space between is what stops it.
LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=://)|(?<=\bwww\.)|(?<=\bGH-)(?=\d)", re.IGNORECASE)
# Underscores within a word and brackets that no link follows are no markup, and stay readable.
MARKUP = re.compile(r"[\\`*~|$!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|](?=[(\[:])", re.ASCII)
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Markdown(Exporter):
    """What it comes to, since a comment is read from its top; facts, tables, footnotes."""

    extension: ClassVar[str] = "md"

    def export(self, document: Document) -> dict[str, bytes]:
        known = marks(document)
        blocks = [
            f"## {escaped(visible(document.title))}\n",
            _bullets(cell_text(each, known) for each in document.answer),
            _bullets(document.facts),
            *(block for tables in _joined(document.tables) for block in _tables(tables, known)),
            _bullets(foot(document)),
        ]
        return {f"{document.name}.md": "\n".join(filter(None, blocks)).encode()}


def _joined(tables: Sequence[Table]) -> Iterator[list[Table]]:
    """Tables of the same alternatives as one, so that its columns are named once."""
    alike = groupby(enumerate(tables), key=lambda item: item[1].columns if _joins(item[1]) else item[0])
    for _, group in alike:
        yield [table for _, table in group]


def _joins(table: Table) -> bool:
    return table.layout is Layout.ALTERNATIVES and not table.facts and not table.notes


def _tables(tables: Sequence[Table], known: Marks) -> Iterator[str]:
    """The tables; of several, each title is a row of its own."""
    first = tables[0]
    together = _joins(first)
    if first.title and not together:
        yield f"### {escaped(visible(first.title))}\n"
    yield _bullets(first.facts)
    if not first.columns:
        yield "" if first.facts or first.notes else f"{EMPTY}\n"
        yield _bullets(first.notes)
        return
    names = [escaped(visible(column.name)) for column in first.columns]
    lines = [_row(names), _row(["---"] * len(names))]
    for table in tables:
        if together and table.title:
            lines.append(_row([f"**{escaped(visible(table.title))}**", *[""] * (len(names) - 1)]))
        lines += [_row(escaped(cell_text(cell, known)) for cell in row) for row in table.rows]
    yield "".join(lines)
    yield _bullets(first.notes)


def _bullets(lines: Iterable[str]) -> str:
    return "".join(f"- {escaped(visible(line))}\n" for line in lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def escaped(text: str) -> str:
    """`text`, already made visible, as GitHub-flavoured Markdown that shows it letter by letter.

    For use within a line: what is markup only at the start of one is left alone.
    """
    return LINKED.sub("\u200b", MARKUP.sub(r"\\\g<0>", text)).translate(HTML)
