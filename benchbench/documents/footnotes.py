"""Few footnotes: those that differ in their numbers only become one, with the smallest and the largest."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from benchbench.documents.document import Cell, Table

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def merge_footnotes(tables: Sequence[Table], apart: Collection[str] = ()) -> tuple[Table, ...]:
    """`less precise than asked in 1–3 of 3 rounds`; those of `apart` stay as they are."""
    texts = dict.fromkeys(text for table in tables for cell in table.cells for text in cell.footnotes)
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(text if text in apart else NUMBER.sub("#", text), []).append(text)
    merged = {text: _merged(group) for group in alike.values() for text in group}

    def changed(cell: Cell | None) -> Cell | None:
        if cell is None or not cell.footnotes:
            return cell
        return replace(cell, footnotes=tuple(dict.fromkeys(merged[text] for text in cell.footnotes)))

    return tuple(
        replace(table, rows=tuple(tuple(map(changed, row)) for row in table.rows)) for table in tables
    )


def _merged(texts: Sequence[str]) -> str:
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = (_range(sorted(column, key=float)) for column in columns)
    return NUMBER.sub(lambda _: next(ranges), texts[0])


def _range(numbers: Sequence[str]) -> str:
    return numbers[0] if float(numbers[0]) == float(numbers[-1]) else f"{numbers[0]}–{numbers[-1]}"
