"""The report of a run as a document: a table per work with a row per target, mode and device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import COLUMNS, Row, flatten
from benchbench.analyse.scaling import RunView, Scaling, scalings
from benchbench.documents.answers import answer as work_answer
from benchbench.documents.answers import overview, tokens_text, works_summary
from benchbench.documents.devices import link_tables, rank_tables, scaling_panels, scaling_tables
from benchbench.documents.document import Cell, Document, Number, Plot, Records, Table
from benchbench.documents.run_table import (
    UNSURE,
    Work,
    axis,
    by_threads,
    select_columns,
    side_by_side,
    why_no_speed,
    with_verdicts,
    work_tables,
    works,
)
from benchbench.format import count_of, duration, share
from benchbench.judging.ranking import EQUIVALENCE, THREADS, Rival, Standing, WorkVerdict, work_key
from benchbench.model.case import Dtype, Status, Verdict
from benchbench.model.note import CONTENTION, Note
from benchbench.model.run import Run, RunInfo
from benchbench.plan.commands import longer_command, why_not_resumed
from benchbench.timing.policy import policy_text

SCHEMA = 1  # of the JSON. 1: first
Place = tuple[str, str, str]  # target, device, mode
MAX_INTERVAL_RATIO = 100.0  # of an interval's ends; wider intervals are not shown
MAX_THREAD_LINES = 5  # works with several numbers of threads; the rest is only counted
MAX_ANSWERS = 12  # works answered before the tables
MIN_ROUNDS = 3  # needed to decide between two cases
MAX_ADVISED_ROUNDS = 30
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    """Verdict on one metric of a case in a comparison; the case may be missing from the run.

    `ratio` is new / reference, if known. `text` is the evidence in one line, safe to print.
    """

    case: str
    verdict: Verdict
    ratio: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Document):
    """Report of a run, with its run and rows for exporters to CI systems."""

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
    results_option: str = "",
) -> RunReport:
    """Build the report: a table per work with a row per target, mode and device, fastest first.

    `ceilings` are those measured on the machine of the run, `prices` those of its devices. `columns` are
    column names; an empty sequence selects the default columns. `by` is an axis whose values become columns.
    `results_option` is ` --results FOLDER` for suggested commands, or empty. Raises UsageError.

    Targets, devices and modes without a planned case are omitted; the notes list them with the reasons.
    """
    view = RunView(run, ceilings, prices)
    rows = view.rows
    places = {_place(row) for row in rows[: len(run.info.plan)]}
    visible_rows = [row for row in rows if _place(row) in places]
    judged_works = with_verdicts(works(visible_rows), view)
    scaled = scalings(view)
    tables = (
        *_tables(view, visible_rows, judged_works, columns, by),
        *scaling_tables(view, scaled),
        *link_tables(rows),
        *rank_tables(view),
    )
    flat = tuple(flatten(row) for row in rows)
    answer = _answer_cells(judged_works, view)
    return RunReport(
        name="report",
        title=f"Run {run.info.id}",
        summary_line="" if answer else _summary_without_rivals(visible_rows),
        answer=tuple(answer),
        cautions=(*_interruption_notes(run, results_option), *_disturbances(view)),
        overview=overview(judged_works, rows, answer),
        facts=tuple(_facts(view, results_option)),
        tables=tables,
        plots=partial(_plots, view, visible_rows, judged_works, scaled),
        notes=tuple(_notes(tables, [row for row in rows if _place(row) not in places])),
        data={
            "schema": SCHEMA,
            "run": _run_fields(run.info) | {"notes": _run_notes(view)},
            "damaged": run.damaged,
            "works": [work_data(work) for work in judged_works],
            "rows": flat,
        },
        records=Records((*COLUMNS, "damaged"), tuple(row | {"damaged": run.damaged} for row in flat)),
        run=run,
        rows=rows,
        verdicts=tuple(verdicts),
    )


def _tables(
    view: RunView, rows: Sequence[Row], judged_works: Sequence[Work], columns: Sequence[str], by: str
) -> tuple[Table, ...]:
    if by:
        column_axis = axis(by, rows)
        tables = side_by_side(
            works(rows, column_axis), column_axis, select_columns(columns or ["latency"]), view
        )
    else:
        tables = work_tables(judged_works, select_columns(columns), view)
    # Reasons for missing speeds are not merged, since "signal 9" and "signal 11" are different failures.
    return merge_footnotes(tables, {why_no_speed(row) for row in rows})


def _plots(
    view: RunView, rows: Sequence[Row], judged_works: Sequence[Work], scaled: Sequence[Scaling]
) -> tuple[Plot, ...]:
    """Plots of the ranked rows."""
    from benchbench.documents.run_plots import run_plots

    verdicts = {work_key(work.rows[0].case): work.verdict for work in judged_works}
    ranked = [
        replace(work, verdict=verdicts[work_key(work.rows[0].case)])
        for work in works([row for row in rows if not row.is_unranked])
    ]
    return run_plots(view, ranked, scaling_panels(scaled))


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


def _facts(view: RunView, results_option: str) -> list[str]:
    run, rows, info, machine = view.run, view.rows, view.run.info, view.run.info.machine
    statuses = Counter(row.status for row in rows)
    devices = {f"device {row.case.device}: {row.device_name}" for row in rows if row.device_name}
    suites = dict.fromkeys(row.case.suite for row in rows)
    prices = {
        f"price: {row.price.price_per_hour:g} {row.price.currency} an hour "
        f"of {row.device_name or row.case.device}"
        for row in rows
        if row.price.price_per_hour is not None
    }
    variables = " ".join(f"{name}={value}" for name, value in (info.variables or {}).items())
    return [
        f"run {info.id}, {info.started}, accelbench {info.version}",
        *_interruption_notes(run, results_option),
        *_partner_facts(info, results_option),
        f"machine: {machine.cpu}, {_threads_text(info)}, {machine.os}",
        *sorted(devices - {f"device cpu: {machine.cpu}"}),
        *_backend_facts(rows),
        *([f"variables: {variables}"] if variables else []),
        f"suites: {', '.join(suites) or 'none'}; policy {info.policy.name}: {policy_text(info.policy)}",
        f"cases: {', '.join(f'{n} {status}' for status, n in statuses.items()) or 'none'}",
        "latency ± its 95 % interval over processes, the wider side; FLOP/s counts 2 per multiply-add",
        *sorted(prices),
        *_disturbances(view),
    ]


def _disturbances(view: RunView) -> list[str]:
    """Disturbance by other programs, drift of the run, and damaged records."""
    damaged = view.run.damaged
    lost = [f"damaged, not in this report: {'; '.join(damaged)}"] if damaged else []
    return [*contention([row for row in view.rows if row.ok]), *_run_notes(view), *lost]


def contention(measured_rows: Sequence[Row]) -> list[str]:
    """Number of cases disturbed by other programs, and the worst disturbance of each kind."""
    count = sum(bool(row.contended) for row in measured_rows)
    notes = [note for row in measured_rows for note in row.notes if note.kind in CONTENTION]

    def cores_or_processes(contended: Note) -> float:
        return max(map(float, contended.data.values()))

    worst = {note.kind: note.clause for note in sorted(notes, key=cores_or_processes)}
    return (
        [f"contended: {count} of {len(measured_rows)} cases; at worst {'; '.join(worst.values())}"]
        if count
        else []
    )


def _run_notes(view: RunView) -> list[str]:
    """Notes on the run as a whole."""
    return [view.drift.note.text] if view.drift else []


def _interruption_notes(run: Run, results_option: str) -> list[str]:
    """Times at which the run was resumed, and the command that resumes it if it is unfinished."""
    counts = Counter(record.part for record in run.records)
    resumed = [
        f"resumed {part.started}: {counts[number]} of its {len(run.records)} records were made after that"
        for number, part in enumerate(run.info.resumed, 1)
    ]
    if run.ended:
        return resumed
    reason = why_not_resumed(run.info)
    advice = (
        f"it cannot be resumed: {reason}"
        if reason
        else f"accelbench run --resume {run.info.id}{results_option}"
    )
    return [*resumed, f"interrupted, or still being measured: {advice}"]


def _partner_facts(info: RunInfo, results_option: str) -> list[str]:
    """Command that compares the two sides of an interleaved run, the first side first."""
    if info.partner is None:
        return []
    # Ids begin with the start time: the smaller one belongs to the first side.
    sides = " ".join(sorted((info.id, info.partner.run)))
    return [f"one side of a comparison, {info.partner.label}: accelbench compare {sides}{results_option}"]


def _backend_facts(rows: Iterable[Row]) -> list[str]:
    """`backends: torch 2.13.0 eager, jax 0.10.2 jit`; versions are the first known of each target."""
    versions: dict[str, str] = {}
    modes: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.status not in (Status.UNAVAILABLE, Status.UNSUPPORTED):
            target = row.case.target
            versions[target] = versions.get(target) or row.framework_version or ""
            modes.setdefault(target, {})[row.case.mode] = None
    texts = [" ".join(filter(None, (name, versions[name], *modes[name]))) for name in versions]
    return [f"backends: {', '.join(texts)}"] if texts else []


def _threads_text(info: RunInfo) -> str:
    """`2 threads`, `1 of 2 threads` if workers use fewer, and the CPU quota if there is one."""
    used, usable, quota = info.settings.threads, info.machine.threads, info.machine.cpu_quota
    threads = count_of(usable, "thread") if used == usable else f"{used} of {count_of(usable, 'thread')}"
    return threads if quota is None else f"{threads} under a quota of {quota:g} CPUs"


def _notes(tables: Iterable[Table], hidden: Iterable[Row]) -> list[str]:
    unsure = any(cell.unsure for table in tables for cell in table.cells)
    counts = Counter(f"{' '.join(_place(row))}: {row.status}, {row.message}" for row in hidden)
    return [
        *([UNSURE] if unsure else []),
        *(f"left out {count}×: {text}" for text, count in counts.items()),
    ]


def answer(run: Run, ceilings: Sequence[Ceiling] = ()) -> list[str]:
    """Result lines of a run, as shown at the top of its report. `ceilings`: those of its machine."""
    return list(map(str, answer_cells(run, ceilings)))


def answer_cells(run: Run, ceilings: Sequence[Ceiling] = ()) -> list[Cell]:
    """Result lines of a run, some with code below; see `answer`."""
    view = RunView(run, ceilings)
    measured_rows = [row for row in view.rows if row.ok]
    return _answer_cells(with_verdicts(works(measured_rows), view), view)


def _summary_without_rivals(rows: Sequence[Row]) -> str:
    """Summary without comparisons: `18 of 18 cases measured on torch, with no alternatives to compare`."""
    if not rows:
        return ""
    names = ", ".join(dict.fromkeys(row.case.target for row in rows))
    measured = f"{sum(row.ok for row in rows)} of {count_of(len(rows), 'case')} measured"
    return f"{measured} on {names}, with no alternatives to compare"


def _answer_cells(works: Sequence[Work], view: RunView) -> list[Cell]:
    """Fastest lines and thread lines; only the latter if the works differ only in threads."""
    only_threads = any(work.verdict.axis == THREADS for work in works)
    fastest = [] if only_threads else [*fastest_lines(works, view.run), *lossy_lines(works, view)]
    return [*fastest, *thread_lines(works, view)]


def lossy_lines(judged_works: Sequence[Work], view: RunView) -> list[Cell]:
    """Errors of the lossy engines, then the fastest among the precise ones."""
    lossy = [row for work in judged_works for row in work.rows if row.is_lossy]
    if not lossy:
        return []
    errors: dict[str, float] = {}
    for row in lossy:
        name = f"{row.case.target} {row.case.mode}"
        errors[name] = max(row.relative_error.value or 0.0, errors.get(name, 0.0))
    allowed = share(view.run.info.settings.max_error or 0.0)
    lines = [
        Cell((f"{name} is lossy: its results are up to {share(error)} off, and {allowed} was allowed",))
        for name, error in errors.items()
    ]
    precise = [row for work in judged_works for row in work.rows if not row.is_lossy]
    compared = [work for work in with_verdicts(works(precise), view) if work.verdict.compared_rivals]
    return [*lines, *([Cell(("of the others,", *works_summary(compared).parts))] if compared else [])]


def thread_lines(works: Sequence[Work], view: RunView) -> list[Cell]:
    """`gemm m=64, torch eager: 2 threads, 1.83× as fast as 1 thread (1.75× to 1.91×)` for each work.

    Empty if only one number of threads was measured.
    """
    compared = by_threads(works, view)
    lines = [
        _threads_line(name, verdict)
        for name, verdict in compared[:MAX_THREAD_LINES]
        if verdict.compared_rivals
    ]
    more = len(compared) - MAX_THREAD_LINES
    return [*lines, *([Cell((f"and {count_of(more, 'work')} more: --by threads",))] if more > 0 else [])]


def _threads_line(name: str, verdict: WorkVerdict) -> Cell:
    assert verdict.fastest
    best, nearest = verdict.name_of(verdict.fastest), verdict.compared_rivals[0]
    other, ratio, ends = verdict.name_of(nearest.contender), Number(nearest.ratio, "×"), nearest.interval
    is_narrow = ends and ends[1] < MAX_INTERVAL_RATIO * ends[0]
    interval = f"({Number(ends[0], '×')} to {Number(ends[1], '×')})" if ends and is_narrow else ""
    if verdict.standing is Standing.WON:
        text = f"{name}: {best}, {ratio} as fast as {other}"
    elif verdict.standing is Standing.TIED:
        text = f"{name}: {best} or {other}, as fast as each other within {EQUIVALENCE:.0%}: {ratio}"
    else:
        text = f"{name}: {best} or {other}, undecided: {ratio}"
    return Cell((f"{text} {interval}".strip(),))


def fastest_lines(works: Sequence[Work], run: Run) -> list[Cell]:
    """Summary, a line per work, and the command that would decide the undecided works.

    Empty if nothing is compared.
    """
    compared = [work for work in works if work.verdict.compared_rivals]
    if not compared:
        return []
    lines = [works_summary(compared)] if len(compared) > 1 else []
    for work in compared[:MAX_ANSWERS]:
        line = work_answer(work.verdict)
        text = f"{work.short_title}: {line}{tokens_text(work)}"
        lines.append(replace(line, parts=(text,), link=work.title))
    if (more := len(compared) - MAX_ANSWERS) > 0:
        lines.append(Cell((f"and {count_of(more, 'work')} more, in the table below",)))
    undecided = [work for work in compared if work.verdict.standing is Standing.OPEN]
    lines += [Cell((line,)) for line in run.info.implied_sizes]
    return [*lines, *_deciding_command(undecided, run), *_usage_lines(compared)]


def _deciding_command(undecided: Sequence[Work], run: Run) -> list[Cell]:
    """Command that decides the works which need at most `MAX_ADVISED_ROUNDS`, with its estimated duration."""
    rounds_by_workload: dict[str, int] = {}
    cases: set[str] = set()
    for work in undecided:
        rounds = _rounds_needed(work, run.info)
        if rounds and rounds <= MAX_ADVISED_ROUNDS:
            name = work.verdict.undecided[0].contender.case.workload
            rounds_by_workload[name] = max(rounds, rounds_by_workload.get(name, 0))
            cases |= {row.case.id for row in work.rows}
    command = (
        longer_command(run.info, list(rounds_by_workload), max(rounds_by_workload.values()))
        if rounds_by_workload
        else ""
    )
    if not command:
        return []
    costs = {record.case.id: record.stages_s.get("wall", 0.0) for record in run.records}
    cost_s = max(rounds_by_workload.values()) * sum(cost for case, cost in costs.items() if case in cases)
    return [Cell((f"to decide: {command} (about {duration(cost_s)})",))]


def _usage_lines(compared: Sequence[Work]) -> list[Cell]:
    """Code that runs a user's model in its fastest configuration, for the first size of each."""
    code_by_heading: dict[str, str] = {}
    for work in compared:
        case = work.verdict.fastest and work.verdict.fastest.case
        row = next((row for row in work.rows if case and row.case == case), None)
        if case and row and row.code and work.verdict.standing is not Standing.OPEN:
            narrow = "" if case.dtype in (None, Dtype.FLOAT32) else f" in {case.dtype}"
            code_by_heading.setdefault(
                f"to use {case.workload} with {case.target} {case.mode}{narrow}:", row.code
            )
    return [Cell((heading,), code=code) for heading, code in code_by_heading.items()]


def _rounds_needed(work: Work, info: RunInfo) -> int | None:
    """Total rounds needed to decide the work; None if more rounds would not help."""
    undecided = work.verdict.undecided
    if any(rival.difference is None for rival in undecided):
        return MIN_ROUNDS
    if any(rival.is_doubted for rival in undecided):
        return None
    rounds = [rival.rounds_to_decide(info.policy) for rival in undecided]
    return None if None in rounds else max(filter(None, rounds))


def work_data(work: Work) -> dict[str, Any]:
    """JSON form of a verdict; `standing` is won, tied, open, alone or none."""
    verdict = work.verdict
    return {
        "work": work.title,
        "answer": str(work_answer(verdict)),
        "standing": str(verdict.standing),
        "fastest": verdict.fastest.case.id if verdict.fastest else None,
        "winner": verdict.winner or None,
        "disturbed": verdict.is_disturbed,
        "rivals": [_rival_data(rival) for rival in verdict.rivals],
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


def merge_footnotes(tables: Sequence[Table], verbatim: Collection[str] = ()) -> tuple[Table, ...]:
    """Merge footnotes that differ only in numbers: `less precise than asked in 1–3 of 3 rounds`.

    Texts in `verbatim` are not merged.
    """
    texts = dict.fromkeys(text for table in tables for cell in table.cells for text in cell.footnotes)
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(text if text in verbatim else NUMBER.sub("#", text), []).append(text)
    merged = {text: _merged_text(group) for group in groups.values() for text in group}

    def with_merged(cell: Cell | None) -> Cell | None:
        if cell is None or not cell.footnotes:
            return cell
        return replace(cell, footnotes=tuple(dict.fromkeys(merged[text] for text in cell.footnotes)))

    return tuple(
        replace(table, rows=tuple(tuple(map(with_merged, row)) for row in table.rows)) for table in tables
    )


def _merged_text(texts: Sequence[str]) -> str:
    """One text for texts that differ only in numbers, with each number as a range."""
    columns = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    ranges = (_range_text(sorted(column, key=float)) for column in columns)
    return NUMBER.sub(lambda _: next(ranges), texts[0])


def _range_text(numbers: Sequence[str]) -> str:
    return numbers[0] if float(numbers[0]) == float(numbers[-1]) else f"{numbers[0]}–{numbers[-1]}"
