"""A run as a document: a table per work, a line per target, mode and device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import COLUMNS, Row, flatten
from benchbench.analyse.scaling import scalings
from benchbench.analyse.view import RunView
from benchbench.documents.answers import answer as work_answer
from benchbench.documents.answers import headline
from benchbench.documents.devices import link_tables, rank_tables, scaling_panels, scaling_tables
from benchbench.documents.document import Cell, Document, Number, Records, Table
from benchbench.documents.run_overview import overview
from benchbench.documents.run_plots import run_plots
from benchbench.documents.run_table import (
    UNSURE,
    Work,
    axis,
    by_threads,
    chosen_columns,
    judged,
    side_by_side,
    why_no_speed,
    work_tables,
    works,
)
from benchbench.format import count_of, duration, share
from benchbench.judging.ranking import EQUIVALENCE, THREADS, Rival, Standing, WorkVerdict, work_key
from benchbench.model.case import Dtype
from benchbench.model.note import CONTENTION, Note
from benchbench.model.own import ONNX_FILE
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status, Verdict
from benchbench.plan.commands import longer_command, why_not_resumed
from benchbench.registry import find_class
from benchbench.timing.policy import policy_text

SCHEMA = 1  # of the JSON. 1: first
Place = tuple[str, str, str]
WIDEST = 100.0  # an interval's ends over each other: beyond, it says nothing
SHOWN = 5  # works with several numbers of threads: the others are counted
ANSWERED = 12  # works whose answers precede the tables
FEWEST_ROUNDS = 3  # that tell two cases apart
MOST_ROUNDS = 30  # that are worth typing
NUMBER = re.compile(r"\d+(?:\.\d+)?")


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
    view = RunView(run, ceilings, prices)
    made = view.rows
    places = {_place(row) for row in made[: len(run.info.plan)]}
    shown = [row for row in made if _place(row) in places]
    found = judged(works(shown), view)
    verdicts_by_work = {work_key(work.rows[0].case): work.verdict for work in found}
    ranked = [
        replace(work, verdict=verdicts_by_work[work_key(work.rows[0].case)])
        for work in works([row for row in shown if not row.is_unranked])
    ]
    scaled = scalings(view)
    tables = (
        *_tables(view, shown, found, columns, by),
        *scaling_tables(view, scaled),
        *link_tables(made),
        *rank_tables(view),
    )
    flat = tuple(flatten(row) for row in made)
    return RunReport(
        name="report",
        title=f"Run {run.info.id}",
        headline="" if (answer := _answer(found, view)) else _alone(shown),
        answer=tuple(answer),
        cautions=tuple(_cautions(view, where)),
        overview=overview(found, made),
        facts=tuple(_facts(view, where)),
        tables=tables,
        plots=run_plots(view, ranked, scaling_panels(scaled)),
        notes=tuple(_notes(tables, [row for row in made if _place(row) not in places])),
        data={
            "schema": SCHEMA,
            "run": _run_fields(run.info) | {"notes": _run_notes(view)},
            "damaged": run.damaged,
            "works": [work_data(work) for work in found],
            "rows": flat,
        },
        records=Records((*COLUMNS, "damaged"), tuple(row | {"damaged": run.damaged} for row in flat)),
        run=run,
        rows=made,
        verdicts=tuple(verdicts),
    )


def _tables(
    view: RunView, shown: Sequence[Row], found: Sequence[Work], columns: Sequence[str], by: str
) -> tuple[Table, ...]:
    """Footnotes that say why a case has no speed are never merged: signal 9 is not signal 11."""
    if by:
        along = axis(by, shown)
        tables = side_by_side(works(shown, along), along, chosen_columns(columns or ["latency"]), view)
    else:
        tables = work_tables(found, chosen_columns(columns), view)
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


def _facts(view: RunView, where: str) -> list[str]:
    run, made, info, machine = view.run, view.rows, view.run.info, view.run.info.machine
    statuses = Counter(row.status for row in made)
    devices = {f"device {row.case.device}: {row.device_name}" for row in made if row.device_name}
    suites = dict.fromkeys(row.case.suite for row in made)
    prices = {_price(row) for row in made if row.price.price_per_hour is not None}
    return [
        f"run {info.id}, {info.started}, accelbench {info.version}",
        *_parts(run, where),
        *_partner(info, where),
        f"machine: {machine.cpu}, {_threads(info)}, {machine.os}",
        *sorted(devices - {f"device cpu: {machine.cpu}"}),
        *_targets(made),
        *_variables(info),
        f"suites: {', '.join(suites) or 'none'}; policy {info.policy.name}: {policy_text(info.policy)}",
        f"cases: {', '.join(f'{n} {status}' for status, n in statuses.items()) or 'none'}",
        "latency ± its 95 % interval over processes, the wider side; FLOP/s counts 2 per multiply-add",
        *sorted(prices),
        *_disturbances(view),
    ]


def _cautions(view: RunView, where: str) -> list[str]:
    """Those of the facts that put all numbers in doubt."""
    return [*_parts(view.run, where), *_disturbances(view)]


def _disturbances(view: RunView) -> list[str]:
    """What others computed meanwhile, how the machine changed, and which records cannot be read."""
    damaged = view.run.damaged
    lost = [f"damaged, not in this report: {'; '.join(damaged)}"] if damaged else []
    return [*contention([row for row in view.rows if row.ok]), *_run_notes(view), *lost]


def contention(measured: Sequence[Row]) -> list[str]:
    """How many of the cases others disturbed, and the worst of each kind."""
    count = sum(bool(row.contended) for row in measured)
    notes = [each for row in measured for each in row.notes if each.kind in CONTENTION]

    def cores_or_processes(contended: Note) -> float:
        return max(map(float, contended.data.values()))

    worst = {each.kind: each.clause for each in sorted(notes, key=cores_or_processes)}
    told = f"contended: {count} of {len(measured)} cases; at worst "
    return [told + "; ".join(worst.values())] if count else []


def _run_notes(view: RunView) -> list[str]:
    """What holds for the run as a whole."""
    return [view.drift.note.text] if view.drift else []


def _parts(run: Run, where: str) -> list[str]:
    """When an interrupted run was resumed, and the command that would resume it."""
    made = Counter(record.part for record in run.records)
    resumed = [
        f"resumed {part.started}: {made[number]} of its {len(run.records)} records were made after that"
        for number, part in enumerate(run.info.resumed, 1)
    ]
    if run.ended:
        return resumed
    reason = why_not_resumed(run.info)
    goes_on = f"it cannot be resumed: {reason}" if reason else f"accelbench run --resume {run.info.id}{where}"
    return [*resumed, f"interrupted, or still being measured: {goes_on}"]


def _partner(info: RunInfo, where: str) -> list[str]:
    """The command that shows both sides of a comparison; the older id is the first side's."""
    if info.partner is None:
        return []
    sides = " ".join(sorted((info.id, info.partner.run)))
    return [f"one side of a comparison, {info.partner.label}: accelbench compare {sides}{where}"]


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
    """`2 threads`; where the workers had others, `1 of 2 threads`; and the quota, where there is one."""
    used, usable, quota = info.settings.threads, info.machine.threads, info.machine.cpu_quota
    threads = count_of(usable, "thread") if used == usable else f"{used} of {count_of(usable, 'thread')}"
    return threads if quota is None else f"{threads} under a quota of {quota:g} CPUs"


def _variables(info: RunInfo) -> list[str]:
    """Variables of the shell that change how frameworks compute."""
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


def answer(run: Run) -> list[str]:
    """The lines that a report of the run begins with."""
    view = RunView(run)
    measured = [row for row in view.rows if row.ok]
    return list(map(str, _answer(judged(works(measured), view), view)))


def _alone(rows: Sequence[Row]) -> str:
    """`18 of 18 cases measured on torch, none beside another`: the finding where nothing is compared."""
    if not rows:
        return ""
    names = ", ".join(dict.fromkeys(row.case.target for row in rows))
    measured = f"{sum(row.ok for row in rows)} of {count_of(len(rows), 'case')} measured"
    return f"{measured} on {names}, none beside another"


def _answer(shown: Sequence[Work], view: RunView) -> list[Cell]:
    """Who is fastest, and with how many threads; where nothing else is compared, the latter alone."""
    only_threads = any(work.verdict.axis == THREADS for work in shown)
    fastest = [] if only_threads else [*fastest_lines(shown, view.run), *lossy_lines(shown, view)]
    return [*fastest, *thread_lines(shown, view)]


def lossy_lines(shown: Sequence[Work], view: RunView) -> list[Cell]:
    """Which engines lost precision, and how much; who is fastest of the others."""
    lossy = [row for work in shown for row in work.rows if row.is_lossy]
    if not lossy:
        return []
    worst: dict[str, float] = {}
    for row in lossy:
        name = f"{row.case.target} {row.case.mode}"
        worst[name] = max(row.relative_error.value or 0.0, worst.get(name, 0.0))
    allowed = view.run.info.settings.max_error or 0.0
    told = [f"{name} is lossy: its results are up to {share(error)} off" for name, error in worst.items()]
    lines = [Cell((f"{each}, and {share(allowed)} was allowed",)) for each in told]
    exact = [row for work in shown for row in work.rows if not row.is_lossy]
    compared = [work for work in judged(works(exact), view) if work.verdict.compared_rivals]
    return [*lines, *([Cell(("of the others,", *headline(compared).parts))] if compared else [])]


def thread_lines(shown: Sequence[Work], view: RunView) -> list[Cell]:
    """`gemm m=64, torch eager: 2 threads, 1.83× as fast as 1 thread (1.75× to 1.91×)`, for each work.

    Nothing where one number of threads was measured.
    """
    compared = by_threads(shown, view)
    lines = [_threads_line(name, verdict) for name, verdict in compared[:SHOWN] if verdict.compared_rivals]
    more = len(compared) - SHOWN
    return [*lines, *([Cell((f"and {count_of(more, 'work')} more: --by threads",))] if more > 0 else [])]


def _threads_line(name: str, verdict: WorkVerdict) -> Cell:
    assert verdict.fastest
    best, nearest = verdict.name_of(verdict.fastest), verdict.compared_rivals[0]
    other, ends = verdict.name_of(nearest.contender), nearest.interval
    interval = (
        f"({Number(ends[0], '×')} to {Number(ends[1], '×')})" if ends and ends[1] < WIDEST * ends[0] else ""
    )
    if verdict.standing is Standing.WON:
        said = f"{name}: {best}, {Number(nearest.ratio, '×')} as fast as {other}"
    elif verdict.standing is Standing.TIED:
        alike = f"as fast as each other within {EQUIVALENCE:.0%}"
        said = f"{name}: {best} or {other}, {alike}: {Number(nearest.ratio, '×')}"
    else:
        said = f"{name}: cannot tell {best} from {other}: {Number(nearest.ratio, '×')}"
    return Cell((f"{said} {interval}".strip(),))


def fastest_lines(shown: Sequence[Work], run: Run) -> list[Cell]:
    """A count of the fastest, a line for each work, and the command that would decide the open ones.

    Nothing where nothing is compared.
    """
    compared = [work for work in shown if work.verdict.compared_rivals]
    if not compared:
        return []
    lines = [headline(compared)] if len(compared) > 1 else []
    for work in compared[:ANSWERED]:
        found = work_answer(work.verdict)
        lines.append(replace(found, parts=(f"{work.short_title}: {found}",)))
    if (more := len(compared) - ANSWERED) > 0:
        lines.append(Cell((f"and {count_of(more, 'work')} more, in the table below",)))
    undecided = [work for work in compared if work.verdict.standing is Standing.OPEN]
    lines += [Cell((line,)) for line in run.info.implied_sizes]
    return [*lines, *_longer(undecided, run), *_usage(compared, run.info.models)]


def _longer(undecided: Sequence[Work], run: Run) -> list[Cell]:
    """The command that decides what few further rounds can decide, and about how long it takes."""
    needed: dict[str, int] = {}
    cases: set[str] = set()
    for work in undecided:
        rounds = _rounds_needed(work, run.info)
        if rounds and rounds <= MOST_ROUNDS:
            name = work.verdict.undecided[0].contender.case.workload
            needed[name] = max(rounds, needed.get(name, 0))
            cases |= {row.case.id for row in work.rows}
    command = longer_command(run.info, list(needed), max(needed.values())) if needed else ""
    if not command:
        return []
    costs = {record.case.id: record.stages_s.get("wall", 0.0) for record in run.records}
    cost_s = max(needed.values()) * sum(cost for case, cost in costs.items() if case in cases)
    return [Cell((f"to decide: {command} (about {duration(cost_s)})",))]


def _usage(compared: Sequence[Work], models: Mapping[str, str]) -> list[Cell]:
    """The line of code that has a user's model run as it was fastest; once for each way that was."""
    from benchbench.backends.base import Backend  # with it come the workloads

    found: dict[str, None] = {}
    for work in compared:
        case = work.verdict.fastest and work.verdict.fastest.case
        if case and any(row.is_own for row in work.rows) and work.verdict.standing is not Standing.OPEN:
            backend = find_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]
            kind = next(row.own_kind for row in work.rows if row.is_own)
            if backend and (code := backend.own_code_of(kind, case.phase, case.dtype).get(case.mode)):
                model = models.get(case.workload, "")
                named = code.replace(f"model{ONNX_FILE}", model) if model.endswith(ONNX_FILE) else code
                narrow = "" if case.dtype in (None, Dtype.FLOAT32) else f", the model in {case.dtype}"
                found[f"to use {case.target} {case.mode}{narrow}: {named}"] = None
    return [Cell((line,)) for line in found]


def _rounds_needed(work: Work, info: RunInfo) -> int | None:
    """Rounds in all that would tell what is undecided; None: more rounds would not."""
    undecided = work.verdict.undecided
    if any(each.difference is None for each in undecided):
        return FEWEST_ROUNDS
    if any(each.is_doubted for each in undecided):
        return None
    needed = [each.rounds_to_decide(info.policy) for each in undecided]
    return None if None in needed else max(filter(None, needed))


def work_data(work: Work) -> dict[str, Any]:
    """The verdict for programs: `standing` is won, tied, open, alone or none."""
    verdict = work.verdict
    return {
        "work": work.title,
        "answer": str(work_answer(verdict)),
        "standing": str(verdict.standing),
        "fastest": verdict.fastest.case.id if verdict.fastest else None,
        "winner": verdict.winner or None,
        "disturbed": verdict.is_disturbed,
        "rivals": [_rival_data(each) for each in verdict.rivals],
    }


def _rival_data(rival: Rival) -> dict[str, Any]:
    low, high = rival.interval or (None, None)
    return {
        "case": rival.contender.case.id,
        "ratio": rival.ratio,
        "low": low,
        "high": high,
        "p": rival.p,
        "slower": rival.is_slower,
        "rounds": rival.rounds,
        "rounds_left_out": rival.pairs.left_out,
    }


def merge_footnotes(tables: Sequence[Table], apart: Collection[str] = ()) -> tuple[Table, ...]:
    """Tables with merged footnotes: `less precise than asked in 1–3 of 3 rounds`; those of `apart` stay."""
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
