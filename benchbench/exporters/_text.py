"""Cells as text that is safe to show, and the marks of their footnotes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from html import escape

from benchbench.documents.document import Cell, Document, Tone
from benchbench.format import visible

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
EMPTY = "none"  # of a table without rows, facts and notes
STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.WARNING: "yellow", Tone.BAD: "red"}  # of a terminal
Marks = Mapping[str, str]


@lru_cache(4096)  # names of columns, backends and targets come again in every row
def html_text(text: str) -> str:
    """The text letter by letter, wherever HTML or XML reads it."""
    return escape(visible(text))


def marks(document: Document) -> Marks:
    """The mark of each footnote's text, numbered as they come."""
    return {
        text: str(number).translate(SUPERSCRIPT) for number, text in enumerate(document.footnotes, start=1)
    }


def cell_text(cell: Cell | None, known: Marks) -> str:
    """A cell on one line: `19.0 ms [18.6, 19.4]¹`."""
    if cell is None:
        return ""
    return visible(str(cell)) + mark_text(cell, known)


def mark_text(cell: Cell, known: Marks) -> str:
    """The marks of a cell's footnotes, in their order below."""
    return " ".join(mark for note, mark in known.items() if note in cell.footnotes) if cell.footnotes else ""


def foot(document: Document) -> Iterator[str]:
    """What stands below all tables: footnotes, then notes."""
    yield from (f"{mark} {visible(note)}" for note, mark in marks(document).items())
    yield from map(visible, document.notes)
