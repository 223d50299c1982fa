"""The columns that a report can have: some with a form of their own, and every number of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchbench.analyse.rows import NUMBERS, Row, number_of, unit_of
from benchbench.documents.document import Cell, Gauge, Number, Part, Tone, number
from benchbench.errors import UsageError, unknown
from benchbench.model.placement import ONE_DEVICE

UNSURE = "? cannot tell: what differs between rounds, others, or warming up may explain it"
ALIASES = {  # as typed → the number of a row
    "rate": "items_per_s",
    "cold": "cold_s",
    "energy": "energy_j",
    **{name: f"latency_{name}_s" for name in ("low", "high", "min", "p50", "p90", "p99")},
}


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """`cell`: of a row that has a speed, beside the row that the ratio is to, if there is one.

    `rank`: those of a higher one go first where room is short.
    """

    name: str
    cell: Callable[[Row, Beside | None], Cell]
    rank: int


def choices() -> list[str]:
    """What can be asked for."""
    return list(dict.fromkeys((*map(typed, OWN), *ALIASES, *NUMBERS)))


def typed(name: str) -> str:
    """How a column of its own form is asked for: `flops` for `FLOP/s`."""
    return "flops" if name == "FLOP/s" else name.replace(" ", "-")


def chosen_columns(names: Sequence[str]) -> tuple[ReportColumn, ...]:
    """Those asked for, in their order, the last going first where room is short; else all of `OWN`.

    Raises UsageError.
    """
    if not names:
        return tuple(OWN.values())
    own = {typed(name): column for name, column in OWN.items()}
    for name in names:
        if name not in choices():
            raise UsageError(f"No column named {name!r}.", unknown("columns", name, choices()))
    return tuple(
        ReportColumn(own[name].name, own[name].cell, rank) if name in own else _plain(name, rank)
        for rank, name in enumerate(dict.fromkeys(names), 1)
    )


def _plain(name: str, rank: int) -> ReportColumn:
    """A number of the row; without it, why."""
    source = ALIASES.get(name, name)

    def cell(row: Row, _: Beside | None) -> Cell:
        found = number_of(row, source)
        if found.value is None:
            return Cell(("–",), footnotes=(f"no {name}: {found.reason or 'not known'}",))
        if not unit_of(row, source) and not float(found.value).is_integer():
            return Cell((f"{found.value:.2g}",))
        return number(found.value, unit_of(row, source))

    return ReportColumn(name, cell, rank)


def latency_s(row: Row) -> float | None:
    """The headline, where it has one."""
    return row.value("latency_s") if row.ok else None


@dataclass(frozen=True, slots=True)
class Beside:
    """The row that another is compared with: its time over the base's, and whether the two are told apart.

    Of the base itself, whether it is told from all others.
    """

    base: Row
    ratio: float
    told: bool


def _latency(row: Row, _: Beside | None) -> Cell:
    found = row.metric("latency_s")
    assert found.value is not None
    around: Part = ""
    if found.low is not None and found.high is not None:
        around = Number(max(found.high - found.value, found.value - found.low) / found.value, "±")
    parts = (Number(found.value, "s"), around)
    return Cell((*parts, "contended") if row.contended else parts)


def _speed(row: Row, beside: Beside | None) -> Cell:
    if beside is None or row.unranked:
        return Cell()
    return Cell((Gauge(min(1 / beside.ratio, 1.0)),))


def _ratio(row: Row, beside: Beside | None) -> Cell:
    """Times as long; surely so only where the two can be told apart."""
    if beside is None or row.unranked:
        return Cell()
    best = Tone.GOOD if beside.base is row and beside.told else Tone.PLAIN
    return Cell((Number(beside.ratio, "×"),), best, unsure=not beside.told)


def _work(row: Row, _: Beside | None) -> Cell:
    """Bytes/s where the work only moves data; of a link, where it moves them between devices."""
    moves = "bytes_per_s" if row.case.placement == ONE_DEVICE else "link_bytes_per_s"
    name = "flops_per_s" if row.value("flops_per_s") is not None else moves
    return number(row.value(name), unit_of(row, name))


def _memory(row: Row, _: Beside | None) -> Cell:
    """The device's, where it has memory of its own that can be seen; else the process's."""
    device, host = row.value("peak_device_bytes"), row.value("peak_host_bytes")
    if device is not None:
        return number(device, "B")
    if host is None:
        return Cell()
    return Cell((Number(host, "B"), *(() if row.case.device.startswith("cpu") else ("host",))))


def _share_of(roof: str) -> Callable[[Row, Beside | None], Cell]:
    """Of the FLOP/s, or of the bytes where the work only moves data."""

    def cell(row: Row, _: Beside | None) -> Cell:
        what = "flops" if row.cost and row.cost.flops else "bytes"
        return number(number_of(row, f"{what}_of_{roof}").value, "%")

    return cell


def _bound(row: Row, _: Beside | None) -> Cell:
    value = row.position.attainable_flops_per_s
    return Cell((f"{row.position.bound},", Number(value, "FLOP/s"))) if value else Cell()


def _number(name: str) -> Callable[[Row, Beside | None], Cell]:
    return lambda row, _: number(row.value(name), unit_of(row, name))


def _per_cost(row: Row, _: Beside | None) -> Cell:
    return number(row.price.items_per_cost, unit_of(row, "items_per_cost"))


OWN = {
    column.name: column
    for column in (
        ReportColumn("latency", _latency, 1),
        ReportColumn("speed", _speed, 8),
        ReportColumn("rate", _number("items_per_s"), 4),
        ReportColumn("FLOP/s", _work, 7),
        ReportColumn("of ceiling", _share_of("ceiling"), 9),
        ReportColumn("of datasheet", _share_of("datasheet"), 10),
        ReportColumn("bound by", _bound, 11),
        ReportColumn("memory", _memory, 5),
        ReportColumn("cold", _number("cold_s"), 6),
        ReportColumn("per cost", _per_cost, 3),
        ReportColumn("ratio", _ratio, 2),
    )
}
