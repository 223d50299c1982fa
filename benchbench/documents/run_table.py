"""The table of one work: a line per quantity, a column per target, device and mode."""

from __future__ import annotations

from collections.abc import Callable

from benchbench.analyse.rows import Row
from benchbench.documents import document
from benchbench.documents.document import Cell, Column, Layout, Number, Table, Tone, number
from benchbench.documents.run_plots import Alternatives

INLINE = 40  # a longer reason becomes a footnote
LABEL = Column("")


def work_table(work: Alternatives, columns: tuple[Column, ...]) -> Table:
    """A line per quantity that any alternative has."""
    rows = (
        (document.cell(label), *(of(row) if row else None for row in work.rows))
        for label, of in _quantities(work).items()
    )
    return Table(
        columns=(LABEL, *columns),
        rows=tuple(cells for cells in rows if any(each and each.parts for each in cells[1:])),
        layout=Layout.SIDE_BY_SIDE,
        title=work.title,
    )


def _quantities(work: Alternatives) -> dict[str, Callable[[Row], Cell]]:
    """Label → its cell. Only work that computes nothing shows bytes/s; a single speed is not compared."""
    measured = [row for row in work.rows if row and row.value("latency_s") is not None]
    computes = any(row.value("flops_per_s") is not None for row in measured)
    found = dict(QUANTITIES)
    if computes:
        del found["bytes/s"]
    if len(measured) > 1:
        fastest = min(measured, key=_latency_s)
        found["vs fastest"] = lambda row: _versus(row, fastest)
    return found


def _latency_s(row: Row) -> float:
    value = row.value("latency_s")
    assert value is not None
    return value


def _latency(row: Row) -> Cell:
    """Of a case without a speed its status, and why; why another number is absent is in JSON and CSV."""
    latency, notes = row.metric("latency_s"), tuple(note.text for note in row.notes)
    if row.ok and latency.value is None:
        return Cell((latency.reason,), Tone.WARNING, footnotes=notes)
    if row.ok:
        number = Number(_latency_s(row), "s", latency.low, latency.high)
        return Cell((number, "contended") if row.contended else (number,), footnotes=notes)
    reason = f"{row.status}: {row.message}" if row.message else str(row.status)
    if len(reason) > INLINE:
        return Cell((str(row.status),), Tone.BAD, footnotes=(reason,))
    return Cell((reason,), Tone.BAD)


def _of_roof(row: Row, flops: float | None, moved: float | None) -> Cell:
    """Of the FLOP/s, or of the bytes where the work only moves data."""
    return number(flops if row.cost and row.cost.flops else moved, "%")


def _bound(row: Row) -> Cell:
    value = row.position.attainable_flops_per_s
    return Cell((f"{row.position.bound},", Number(value, "FLOP/s"))) if value else Cell()


def _memory(row: Row) -> Cell:
    for where in ("device", "host"):
        value = row.value(f"peak_{where}_bytes")
        if value is not None:
            return Cell((Number(value, "B"), where))
    return Cell()


def _versus(row: Row, fastest: Row) -> Cell:
    """Surely slower only where the intervals do not overlap, and nothing else ran meanwhile."""
    if row.value("latency_s") is None:
        return Cell()
    times = (Number(_latency_s(row) / _latency_s(fastest), "×"),)
    contended = bool(row.contended or fastest.contended)
    if row is fastest:
        return Cell(times, Tone.PLAIN if contended else Tone.GOOD, unsure=contended)
    low, high = row.metric("latency_s").low, fastest.metric("latency_s").high
    return Cell(times, unsure=contended or low is None or high is None or low <= high)


QUANTITIES: dict[str, Callable[[Row], Cell]] = {
    "latency": _latency,
    "rate": lambda row: number(row.value("items_per_s"), f"{row.item}/s"),
    "FLOP/s": lambda row: number(row.value("flops_per_s"), "FLOP/s"),
    "of ceiling": lambda row: _of_roof(row, row.position.flops_of_ceiling, row.position.bytes_of_ceiling),
    "of datasheet": lambda row: _of_roof(
        row, row.position.flops_of_datasheet, row.position.bytes_of_datasheet
    ),
    "bound by": _bound,
    "memory": _memory,
    "cold start": lambda row: number(row.value("cold_s"), "s"),
    "per cost": lambda row: number(row.price.items_per_cost, f"{row.item}/{row.price.currency}"),
    "bytes/s": lambda row: number(row.value("bytes_per_s"), "B/s"),
}
