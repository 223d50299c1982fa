"""A run as a document: a table per work, a line per target, mode and device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchbench.analyse.columns import COLUMNS, flatten
from benchbench.analyse.digest import digest
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import Row, rows
from benchbench.analyse.scaling import scalings
from benchbench.documents.document import Document, Records, Table
from benchbench.documents.doubling import doubling_tables, is_needless
from benchbench.documents.fastest import fastest_lines, work_data
from benchbench.documents.footnotes import merge_footnotes
from benchbench.documents.links import link_tables
from benchbench.documents.ranks import rank_tables
from benchbench.documents.run_columns import UNSURE, chosen_columns
from benchbench.documents.run_plots import run_plots
from benchbench.documents.run_table import side_by_side, why_no_speed, work_tables
from benchbench.documents.run_works import Work, axis, judged, works
from benchbench.documents.scaling import scaling_panels, scaling_tables
from benchbench.format import count_of
from benchbench.model.note import CONTENTION, Note
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status, Verdict
from benchbench.plan.rerun import why_not_resumed
from benchbench.timing.policy import in_words

SCHEMA = 1  # of the JSON. 1: first
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
    *,
    columns: Sequence[str] = (),
    by: str = "",
    where: str = "",
) -> RunReport:
    """The rows of `run` as a table per work, a line for each target, mode and device, fastest first.

    `ceilings`: what was measured on the run's machine; `prices`: of its devices. `columns`: what is shown, by
    the names of `run_columns`; `by`: an axis whose values stand side by side; `where`: ` --results FOLDER`,
    where a command to type needs it. Raises UsageError.

    A target, device and mode for which nothing was planned is not shown; the notes say what was left out,
    and why.
    """
    made = rows(run, ceilings, prices)
    places = {_place(row) for row in made[: len(run.info.plan)]}
    shown = [row for row in made if _place(row) in places and not is_needless(row)]
    found = judged(works(shown), run)
    ranked = works([row for row in shown if not row.unranked])
    scaled = scalings(run, made)
    tables = (
        *_tables(run, shown, found, columns, by),
        *doubling_tables(made),
        *scaling_tables(run, scaled),
        *link_tables(made),
        *rank_tables(made, run.records),
    )
    flat = tuple(flatten(row) for row in made)
    return RunReport(
        name="report",
        title=f"Run {run.info.id}",
        answer=tuple(fastest_lines(found, run)),
        facts=tuple(_facts(run, made, where)),
        tables=tables,
        plots=run_plots(run, ranked, scaling_panels(scaled)),
        notes=tuple(_notes(tables, [row for row in made if _place(row) not in places])),
        data={
            "schema": SCHEMA,
            "run": _run_fields(run.info) | {"notes": _run_notes(run)},
            "damaged": run.damaged,
            "works": [work_data(work) for work in found],
            "rows": flat,
        },
        records=Records((*COLUMNS, "damaged"), tuple(row | {"damaged": run.damaged} for row in flat)),
        run=run,
        rows=tuple(made),
        verdicts=tuple(verdicts),
    )


def _tables(
    run: Run, shown: Sequence[Row], found: Sequence[Work], columns: Sequence[str], by: str
) -> tuple[Table, ...]:
    """Footnotes that say why a case has no speed are never merged: signal 9 is not signal 11."""
    if by:
        along = axis(by, shown)
        tables = side_by_side(works(shown, along), along, chosen_columns(columns or ["latency"]), run)
    else:
        tables = work_tables(found, chosen_columns(columns))
    return merge_footnotes(tables, {why_no_speed(row) for row in shown})


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


def _facts(run: Run, made: Sequence[Row], where: str) -> list[str]:
    info, machine = run.info, run.info.machine
    statuses = Counter(row.status for row in made)
    devices = {f"device {row.case.device}: {row.device_name}" for row in made if row.device_name}
    suites = dict.fromkeys(row.case.suite for row in made)
    prices = {_price(row) for row in made if row.price.price_per_hour is not None}
    damaged = [f"damaged, not in this report: {'; '.join(run.damaged)}"] if run.damaged else []
    return [
        f"run {info.id}, {info.started}, accelbench {info.version}",
        *_parts(run, where),
        f"machine: {machine.cpu}, {_threads(info)}, {machine.os}",
        *sorted(devices - {f"device cpu: {machine.cpu}"}),
        *_targets(made),
        *_variables(info),
        f"suites: {', '.join(suites) or 'none'}; policy {info.policy.name}: {in_words(info.policy)}",
        f"cases: {', '.join(f'{n} {status}' for status, n in statuses.items()) or 'none'}",
        "latency ± its 95 % interval over processes, the wider side; FLOP/s counts 2 per multiply-add",
        *sorted(prices),
        *contention([row for row in made if row.ok]),
        *_run_notes(run),
        *damaged,
    ]


def contention(measured: Sequence[Row]) -> list[str]:
    """How many of the cases others disturbed, and the worst of each kind."""
    count = sum(bool(row.contended) for row in measured)
    notes = [each for row in measured for each in row.notes if each.kind in CONTENTION]
    worst = {each.kind: each.clause for each in sorted(notes, key=_amount)}
    told = f"contended: {count} of {len(measured)} cases; at worst "
    return [told + "; ".join(worst.values())] if count else []


def _run_notes(run: Run) -> list[str]:
    """What holds for the run as a whole."""
    found = digest(run).drift
    return [found.note.text] if found else []


def _amount(contended: Note) -> float:
    """Cores, or processes."""
    return max(map(float, contended.data.values()))


def _parts(run: Run, where: str) -> list[str]:
    """When a run that was interrupted was gone on with, and how it can be."""
    made = Counter(record.part for record in run.records)
    resumed = [
        f"resumed {part.started}: {made[number]} of its {len(run.records)} records were made after that"
        for number, part in enumerate(run.info.resumed, 1)
    ]
    if run.ended or why_not_resumed(run.info):
        return resumed
    return [*resumed, f"interrupted, or still being measured: accelbench run --resume {run.info.id}{where}"]


def _targets(made: Iterable[Row]) -> list[str]:
    """`measured: torch 2.13.0 eager, jax 0.10.2 jit`; the version is that of the first row that knows one."""
    versions: dict[str, str] = {}
    modes: dict[str, dict[str, None]] = {}
    for row in made:
        if row.status not in (Status.UNAVAILABLE, Status.UNSUPPORTED):
            target = row.case.target
            versions[target] = versions.get(target) or row.framework_version or ""
            modes.setdefault(target, {})[row.case.mode] = None
    texts = [" ".join(filter(None, (name, versions[name], *modes[name]))) for name in versions]
    return [f"backends: {', '.join(texts)}"] if texts else []


def _threads(info: RunInfo) -> str:
    """`2 threads`; where the workers had others, `1 of 2 threads`."""
    used, usable = info.settings.threads, info.machine.threads
    return count_of(usable, "thread") if used == usable else f"{used} of {usable} threads"


def _variables(info: RunInfo) -> list[str]:
    """Of the shell: what changes how frameworks compute."""
    given = [f"{name}={value}" for name, value in (info.variables or {}).items()]
    return [f"variables: {' '.join(given)}"] if given else []


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
