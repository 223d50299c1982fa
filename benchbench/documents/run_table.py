"""The tables of a report: one for each work, a line per alternative, fastest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchbench.analyse.rows import CaseKey, Row, case_key
from benchbench.documents.document import Cell, Column, Layout, Number, Table, Tone
from benchbench.documents.run_columns import Beside, ReportColumn, latency_s
from benchbench.documents.run_works import Work, besides, value_of, value_text
from benchbench.model.run import Run

UNRANKED = 1e99  # seconds: after what is ranked, before what has no speed
INLINE = 40  # a longer reason becomes a footnote
TIMED = ("latency", "speed", "rate", "FLOP/s")  # columns that say no more than the latency
Line = tuple[Cell | None, ...]


def work_tables(shown: Sequence[Work], columns: Sequence[ReportColumn]) -> tuple[Table, ...]:
    """A line per row with a cell per column; those without a speed, last, have one cell that says why."""
    heads = [Column(column.name, rank=column.rank) for column in columns]
    return _tables(shown, heads, [_lines(work, columns) for work in shown])


def _lines(work: Work, columns: Sequence[ReportColumn]) -> list[Line]:
    lines: list[tuple[float, Line]] = []
    for row, name in zip(work.rows, _names(work), strict=True):
        latency = latency_s(row)
        if latency is None:
            lines.append((float("inf"), (name, _reason(row), *[None] * (len(columns) - 1))))
            continue
        cells = [column.cell(row, work.beside(row)) for column in columns]
        place = UNRANKED if row.unranked else latency
        lines.append((place, (name, _noted(cells[0], row), *cells[1:])))
    return [line for _, line in sorted(lines, key=lambda item: item[0])]


def side_by_side(
    shown: Sequence[Work], by: str, columns: Sequence[ReportColumn], run: Run
) -> tuple[Table, ...]:
    """A line per alternative; a column for each value on the axis `by`, and the ratio to the first."""
    values = list(dict.fromkeys(value_of(row.case, by) for work in shown for row in work.rows))
    heads = [
        Column(name, rank=1 + number)
        for number, value in enumerate(values)
        for name in (
            value_text(by, value),
            *(column.name for column in columns[1:]),
            *(["ratio"] if number else []),
        )
    ]
    alternatives = [_alternatives(work, by, values) for work in shown]
    firsts = [(each.first, list(each.rows.values())) for own in alternatives for each in own if each.first]
    found = iter(besides(firsts, run))
    lines = [
        [_line_by(each, values, columns, next(found) if each.first else {}) for each in own]
        for own in alternatives
    ]
    return _tables(shown, heads, lines)


@dataclass(frozen=True, slots=True)
class _Alternative:
    """Who computes a work with several values on an axis; `first`: the first of its rows with a latency."""

    name: Cell
    rows: dict[str, Row]
    first: Row | None


def _alternatives(work: Work, by: str, values: Sequence[str]) -> list[_Alternative]:
    """The fastest first, by the first value that has a latency."""
    named: dict[str, tuple[Cell, dict[str, Row]]] = {}
    for row, name in zip(work.rows, _names(work), strict=True):
        named.setdefault(str(name), (name, {}))[1][value_of(row.case, by)] = row
    found = [
        _Alternative(name, rows, next((rows[v] for v in values if v in rows and latency_s(rows[v])), None))
        for name, rows in named.values()
    ]
    return sorted(found, key=lambda each: (each.first and latency_s(each.first)) or float("inf"))


def _line_by(
    alternative: _Alternative,
    values: Sequence[str],
    columns: Sequence[ReportColumn],
    beside: Mapping[CaseKey, Beside],
) -> Line:
    cells: list[Cell] = []
    for number, value in enumerate(values):
        row = alternative.rows.get(value)
        known = beside.get(case_key(row.case)) if row else None
        cells += _cells(row, known, columns)
        cells += [_ratio(row, known, columns[0])] if number else []
    return (alternative.name, *cells)


def _cells(row: Row | None, beside: Beside | None, columns: Sequence[ReportColumn]) -> list[Cell]:
    empty = [Cell()] * (len(columns) - 1)
    if row is None:
        return [Cell(), *empty]
    if latency_s(row) is None:
        return [Cell((str(row.status),), Tone.BAD, footnotes=(why_no_speed(row),)), *empty]
    cells = [column.cell(row, beside) for column in columns]
    return [_noted(cells[0], row), *cells[1:]]


def _ratio(row: Row | None, beside: Beside | None, column: ReportColumn) -> Cell:
    """Of a column's numbers; in doubt where these come from times that cannot be told apart."""
    if row is None or beside is None or row is beside.base or latency_s(row) is None:
        return Cell()
    own, other = (next(iter(column.cell(each, beside).parts), None) for each in (row, beside.base))
    if not isinstance(own, Number) or not isinstance(other, Number) or not other.value:
        return Cell()
    unsure = column.name in TIMED and not beside.told
    return Cell((Number(own.value / other.value, "×"),), unsure=unsure)


def _tables(shown: Sequence[Work], heads: Sequence[Column], lines: Sequence[list[Line]]) -> tuple[Table, ...]:
    """Without the columns that are empty in all of them."""
    cells = [line[1:] for table in lines for line in table]
    filled = [index for index in range(len(heads)) if any(line[index] and str(line[index]) for line in cells)]
    return tuple(
        Table(
            columns=(Column(""), *(heads[index] for index in filled)),
            rows=tuple((line[0], *(line[1 + index] for index in filled)) for line in table),
            layout=Layout.ALTERNATIVES,
            title=work.title,
            short_title=work.short_title,
        )
        for work, table in zip(shown, lines, strict=True)
    )


def _names(work: Work) -> list[Cell]:
    return [
        Cell((name,), short=short if short != name else "")
        for name, short in zip(work.names, work.short_names, strict=True)
    ]


def _noted(cell: Cell, row: Row) -> Cell:
    notes = dict.fromkeys(note.text for note in row.notes)
    return Cell(cell.parts, cell.tone, cell.unsure, (*cell.footnotes, *notes))


def _reason(row: Row) -> Cell:
    """Why it has no speed; why another number is absent is in JSON and CSV."""
    if row.ok:
        return _noted(Cell((why_no_speed(row),), Tone.WARNING), row)
    if len(why_no_speed(row)) > INLINE:
        return Cell((str(row.status),), Tone.BAD, footnotes=(why_no_speed(row),))
    return Cell((why_no_speed(row),), Tone.BAD)


def why_no_speed(row: Row) -> str:
    """Of a case that failed its status, and its message."""
    reason = row.message or row.metric("latency_s").reason
    if row.ok:
        return reason or "no speed"
    return f"{row.status}: {reason}" if reason else str(row.status)
