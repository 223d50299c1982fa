"""A run as a document: a table per work, a column per target, device and mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchbench.analyse.columns import COLUMNS, flatten, params_text
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import Row, rows
from benchbench.documents.document import (
    Column,
    Document,
    Records,
    Table,
)
from benchbench.documents.run_plots import Alternatives, run_plots
from benchbench.documents.run_table import work_table
from benchbench.format import visible
from benchbench.model.case import Cache
from benchbench.model.note import CONTENTION, Note
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.timing.policy import in_words

SCHEMA = 1  # of the JSON. 1: first
CACHES = {Cache.COLD: "cold caches", Cache.ROTATE: "rotating inputs"}
UNSURE = "? intervals overlap or are missing: cannot tell"
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


def report_document(
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
    tables = tuple(work_table(work, tuple(columns.values())) for work in works)
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


def _facts(run: Run, made: Sequence[Row]) -> list[str]:
    info, machine = run.info, run.info.machine
    statuses = Counter(row.status for row in made)
    devices = {f"device {row.case.device}: {row.device_name}" for row in made if row.device_name}
    suites = dict.fromkeys(row.case.suite for row in made)
    prices = {_price(row) for row in made if row.price.price_per_hour is not None}
    damaged = [f"damaged, not in this report: {'; '.join(run.damaged)}"] if run.damaged else []
    return [
        f"run {info.id}, {info.started}, accelbench {info.version}",
        *_parts(run),
        f"machine: {machine.cpu}, {machine.threads} threads, {machine.os}",
        *sorted(devices - {f"device cpu: {machine.cpu}"}),
        f"suites: {', '.join(suites) or 'none'}; {in_words(info.policy)}",
        f"cases: {', '.join(f'{n} {status}' for status, n in statuses.items()) or 'none'}",
        "latency with its 95 % interval over processes; FLOP/s counts 2 per multiply-add",
        *sorted(prices),
        *contention([row for row in made if row.ok]),
        *damaged,
    ]


def contention(measured: Sequence[Row]) -> list[str]:
    """How many of the cases others disturbed, and the worst of each kind."""
    count = sum(bool(row.contended) for row in measured)
    notes = [each for row in measured for each in row.notes if each.kind in CONTENTION]
    worst = {each.kind: each.clause for each in sorted(notes, key=_amount)}
    told = f"contended: {count} of {len(measured)} cases, not to be relied on; at worst "
    return [told + "; ".join(worst.values())] if count else []


def _amount(contended: Note) -> float:
    """Cores, or processes."""
    return max(map(float, contended.data.values()))


def _parts(run: Run) -> list[str]:
    """When a run that was interrupted was gone on with."""
    made = Counter(record.part for record in run.records)
    return [
        f"resumed {part.started}: {made[number]} of its {len(run.records)} records are from then on"
        for number, part in enumerate(run.info.resumed, 1)
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
