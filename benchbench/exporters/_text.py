"""Cells as text that is safe to show, and the marks of footnotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape

from benchbench.documents.document import Cell, Document, Tone
from benchbench.format import visible

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
EMPTY = "none"  # shown for a table without rows, facts and notes
STYLES = {
    Tone.PLAIN: "",
    Tone.GOOD: "green",
    Tone.WARNING: "yellow",
    Tone.BAD: "red",
}  # colours of a terminal
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
