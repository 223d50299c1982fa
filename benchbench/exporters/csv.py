"""CSV for spreadsheets: a line per record; a text that a spreadsheet would run gets a quote before it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, ClassVar

from benchbench.documents.document import Cell, Column, Document, Number, Records, Table
from benchbench.exporters.base import Exporter
from benchbench.format import visible

FORMULA = ("=", "+", "-", "@")  # OWASP, CSV injection; tab and CR, its other two, are made visible

HEADINGS = {"%": "fraction", "±": "fraction", "p": ""}  # numbers are as stored, not as people read them


class Csv(Exporter):
    """The document's records or, where it has none, its tables one below the other."""

    extension: ClassVar[str] = "csv"

    def export(self, document: Document) -> dict[str, bytes]:
        """The tables as one text, with a header for each; absent values are empty."""
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        if document.records is None:
            for number, table in enumerate(document.tables):
                writer.writerows(([], *_lines(table)) if number else _lines(table))
        else:
            writer.writerows(_records(document.records))
        return {f"{document.name}.csv": out.getvalue().encode()}


def _records(records: Records) -> Iterator[list[Any]]:
    yield list(map(field, records.names))
    for row in records.rows:
        yield [field(row[name]) for name in records.names]


def _lines(table: Table) -> Iterator[list[Any]]:
    """A title stands in a line of its own; a column of numbers has their unit in its name."""
    if table.title:
        yield [field(table.title)]
    columns = list(zip(table.columns, zip(*table.rows, strict=True), strict=False))
    units = [_unit(cells) for _, cells in columns]
    yield [_name(column, unit) for (column, _), unit in zip(columns, units, strict=True)]
    for row in table.rows:
        yield [_value(cell, unit) for cell, unit in zip(row, units, strict=True)]


def _unit(cells: Sequence[Cell | None]) -> str | None:
    """The unit that all numbers of a column share, None if they do not, or a cell is more than a number."""
    filled = [cell for cell in cells if cell and cell.parts]
    units = {part.unit for cell in filled for part in cell.parts if isinstance(part, Number)}
    alone = all(len(cell.parts) == 1 and isinstance(cell.parts[0], Number) for cell in filled)
    return units.pop() if filled and alone and len(units) == 1 else None


def _name(column: Column, unit: str | None) -> str:
    shown = HEADINGS.get(unit, unit) if unit else ""
    return str(field(f"{column.name} [{shown}]" if shown else column.name))


def _value(cell: Cell | None, unit: str | None) -> Any:
    """The number itself where the column says its unit, else the text that people read."""
    if cell is None or not cell.parts:
        return ""
    number = cell.parts[0]
    if unit is not None and isinstance(number, Number):
        return number.value
    return field(str(cell))


def joined(value: Any) -> Any:
    """Parameters, and several texts, as one text."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={str(each).lower()}" for name, each in value.items())
    if isinstance(value, tuple | list):
        return "; ".join(map(str, value))
    return value


def field(value: Any) -> Any:
    """A field on one line that no spreadsheet would run; numbers untouched: a negative one is no formula."""
    value = joined(value)
    if not isinstance(value, str):
        return value
    text = visible(value)  # a line per row, whatever the text
    return f"'{text}" if text.startswith(FORMULA) else text
