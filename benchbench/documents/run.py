"""A run as a document: a table per work, a column per target, device and mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchbench.analyse.columns import COLUMNS, flatten, params_text
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import Row, rows
from benchbench.documents import document
from benchbench.documents.document import (
    Cell,
    Column,
    Document,
    Layout,
    Number,
    Records,
    Table,
    Tone,
    number,
)
from benchbench.documents.run_plots import Alternatives, run_plots
from benchbench.format import visible
from benchbench.model.case import Cache
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.timing.policy import in_words

SCHEMA = 1  # of the JSON. 1: first
INLINE = 40  # a longer reason becomes a footnote
CACHES = {Cache.COLD: "cold caches", Cache.ROTATE: "rotating inputs"}
UNSURE = "? intervals overlap or are missing: cannot tell"
LABEL = Column("")
Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    """What was found out about a case, of the run or gone from it, against others; one for each metric.

    `ratio`: new / reference, where known. `text`: the evidence in a line, safe to show.
    """

    case: str
    verdict: Verdict
    ratio: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Document):
    """The report of a run, with what it was made of: a CI system's format has no tables to show."""

    run: Run
    rows: tuple[Row, ...]
    verdicts: tuple[CaseVerdict, ...]


def report(
    run: Run,
    verdicts: Sequence[CaseVerdict] = (),
    ceilings: Sequence[Ceiling] = (),
    prices: Prices | None = None,
) -> RunReport:
    """The rows of `run` as a table per work, with a column per target, device and mode.

    `ceilings`: what was measured on the run's machine; `prices`: of its devices.

    A column in which nothing was planned is not shown; the notes say what was left out, and why.
    """
    made = rows(run, ceilings, prices)
    planned = made[: len(run.info.plan)]
    columns = _columns(planned)
    works = _works([row for row in made if _place(row) in columns], list(columns))
    tables = tuple(_table(work, tuple(columns.values())) for work in works)
    flat = tuple(flatten(row) for row in made)
    return RunReport(
        name="report",
        title=f"Run {run.info.id}",
        facts=tuple(_facts(run, made)),
        tables=tables,
        plots=run_plots(run, works),
        notes=tuple(_notes(tables, [row for row in made if _place(row) not in columns])),
        data={"schema": SCHEMA, "run": _run_fields(run.info), "rows": flat},
        records=Records(COLUMNS, flat),
        run=run,
        rows=tuple(made),
        verdicts=tuple(verdicts),
    )


def _run_fields(info: RunInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "started": info.started,
        "command": info.command,
        "machine": asdict(info.machine),
        "tags": info.tags,
    }


def _place(row: Row) -> Place:
    return row.case.target, row.case.device, row.case.mode


def _columns(planned: Iterable[Row]) -> dict[Place, Column]:
    """`torch 2.13.0` above `cpu eager`; the version is that of the first row that knows one."""
    versions: dict[Place, str] = {}
    for row in planned:
        versions[_place(row)] = versions.get(_place(row)) or row.framework_version or ""
    return {place: Column(_heading(place, version)) for place, version in versions.items()}


def _heading(place: Place, version: str) -> str:
    target, device, mode = map(visible, place)  # no name may begin a line of its own
    return f"{target} {visible(version)}".strip() + f"\n{device} {mode}".rstrip(" ")


def _works(shown: Sequence[Row], places: list[Place]) -> list[Alternatives]:
    """A row for each of `places`, of every work of a suite."""
    works: dict[tuple[str, str], list[Row | None]] = {}
    for row in shown:
        work = works.setdefault((row.case.suite, _title(row)), [None] * len(places))
        work[places.index(_place(row))] = row
    return [Alternatives(title, tuple(found)) for (_, title), found in works.items()]


def _title(row: Row) -> str:
    case = row.case
    head = f"{case.workload} {params_text(case.params)}".strip()
    caches = CACHES.get(case.cache) if case.dtype else None
    return ", ".join(filter(None, (head, case.dtype, case.phase, caches)))


def _table(work: Alternatives, columns: tuple[Column, ...]) -> Table:
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
    measured = [row for row in work.rows if row and row.ok]
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
    if row.ok:
        latency = row.metric("latency_s")
        parts = (Number(_latency_s(row), "s", latency.low, latency.high),)
        return Cell(parts, footnotes=tuple(note.text for note in row.notes))
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
    """Surely slower only where the intervals do not overlap."""
    if not row.ok:
        return Cell()
    times = (Number(_latency_s(row) / _latency_s(fastest), "×"),)
    if row is fastest:
        return Cell(times, Tone.GOOD)
    low, high = row.metric("latency_s").low, fastest.metric("latency_s").high
    return Cell(times, unsure=low is None or high is None or low <= high)


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


def _facts(run: Run, made: Sequence[Row]) -> list[str]:
    info, machine = run.info, run.info.machine
    statuses = Counter(row.status for row in made)
    devices = {f"device {row.case.device}: {row.device_name}" for row in made if row.device_name}
    suites = dict.fromkeys(row.case.suite for row in made)
    prices = {_price(row) for row in made if row.price.price_per_hour is not None}
    damaged = [f"damaged, not in this report: {'; '.join(run.damaged)}"] if run.damaged else []
    return [
        f"run {info.id}, {info.started}, accelbench {info.version}",
        f"machine: {machine.cpu}, {machine.threads} threads, {machine.os}",
        *sorted(devices - {f"device cpu: {machine.cpu}"}),
        f"suites: {', '.join(suites) or 'none'}; {in_words(info.policy)}",
        f"cases: {', '.join(f'{n} {status}' for status, n in statuses.items()) or 'none'}",
        "latency with its 95 % interval over processes; FLOP/s counts 2 per multiply-add",
        *sorted(prices),
        *damaged,
    ]


def _price(row: Row) -> str:
    price = row.price
    return f"price: {price.price_per_hour:g} {price.currency} an hour of {row.device_name or row.case.device}"


def _notes(tables: Iterable[Table], hidden: Iterable[Row]) -> list[str]:
    unsure = any(cell.unsure for table in tables for cell in table.cells)
    places = Counter(f"{' '.join(_place(row))}: {row.status}, {row.message}" for row in hidden)
    return [
        *([UNSURE] if unsure else []),
        *(f"left out {count}×: {text}" for text, count in places.items()),
    ]
