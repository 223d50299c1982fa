"""CSV for spreadsheets. A text that a spreadsheet would execute gets a quote in front."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, ClassVar

from benchbench.documents.document import Cell, Column, Document, Number, Records, Table
from benchbench.exporters.base import Exporter
from benchbench.format import visible

FORMULA = ("=", "+", "-", "@")  # OWASP, CSV injection; tab and CR are made visible

HEADINGS = {"%": "fraction", "±": "fraction", "p": ""}  # numbers are stored values, not formatted ones


class Csv(Exporter):
    """The document's records, or its tables below each other."""

    extension: ClassVar[str] = "csv"

    def export(self, document: Document) -> dict[str, bytes]:
        """Write the tables as one text, with a header for each; absent values are empty."""
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
    """Lines of a table, after a line with its title. Names of numeric columns include the unit."""
    if table.title:
        yield [field(table.title)]
    columns = list(zip(table.columns, zip(*table.rows, strict=True), strict=False))
    units = [_unit(cells) for _, cells in columns]
    yield [_name(column, unit) for (column, _), unit in zip(columns, units, strict=True)]
    for row in table.rows:
        yield [_value(cell, unit) for cell, unit in zip(row, units, strict=True)]


def _unit(cells: Sequence[Cell | None]) -> str | None:
    """Common unit of a column's numbers; None if they differ, or a cell has more than a number."""
    filled = [cell for cell in cells if cell and cell.parts]
    units = {part.unit for cell in filled for part in cell.parts if isinstance(part, Number)}
    are_numbers = all(len(cell.parts) == 1 and isinstance(cell.parts[0], Number) for cell in filled)
    return units.pop() if filled and are_numbers and len(units) == 1 else None


def _name(column: Column, unit: str | None) -> str:
    unit_name = HEADINGS.get(unit, unit) if unit else ""
    return str(field(f"{column.name} [{unit_name}]" if unit_name else column.name))


def _value(cell: Cell | None, unit: str | None) -> Any:
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
