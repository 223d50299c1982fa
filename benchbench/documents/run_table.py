"""The tables of a report: one for each work, a line per alternative, fastest first.

Below them the columns that they can have, and the rows of a run by the work that they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.rows import NUMBERS, CaseKey, Row, case_key, number_of, params_text, unit_of
from benchbench.analyse.view import RunView
from benchbench.documents.document import (
    Cell,
    Column,
    Gauge,
    Layout,
    Mark,
    Number,
    Part,
    Spread,
    Table,
    Tone,
    number,
)
from benchbench.documents.short_names import Telling, telling, telling_params
from benchbench.errors import UsageError, unknown
from benchbench.format import count_of
from benchbench.judging.ranking import (
    THREADS,
    Contender,
    Standing,
    WorkVerdict,
    contender,
    judge_works,
    rivals_of,
    work_key,
)
from benchbench.model.case import Cache, Case, Scalar
from benchbench.model.placement import suffix
from benchbench.plan.commands import command_of

UNRANKED = 1e99  # seconds: after what is ranked, before what has no speed
INLINE = 40  # a longer reason becomes a footnote
COMPARED = ("speed", "ratio")  # columns of a row beside the fastest
TIMED = ("latency", "speed", "rate", "FLOP/s")  # columns that say no more than the latency
Line = tuple[Cell | None, ...]
UNSURE = "? cannot tell: what differs between rounds, others, or warming up may explain it"
ALIASES = {  # as typed → the number of a row
    "rate": "items_per_s",
    "cold": "cold_s",
    "energy": "energy_j",
    **{name: f"latency_{name}_s" for name in ("low", "high", "min", "p50", "p90", "p99")},
}
CACHES = {Cache.COLD: "cold caches", Cache.ROTATE: "rotating inputs"}
NO_VERDICT = WorkVerdict(fastest=None, rivals=(), axis="")
AXES = ("dtype", "mode", "target", "device", "cache", "phase", THREADS)  # and every parameter


def work_tables(shown: Sequence[Work], columns: Sequence[ReportColumn], view: RunView) -> tuple[Table, ...]:
    """A line per row with a cell per column; those without a speed have one cell that says why.

    They stand last, but where processes disagree: a work's leader may be such a row.
    """
    heads = [Column(column.name, rank=column.rank) for column in columns]
    ordered = [_lines(work, columns, view) for work in shown]
    tables = _tables(shown, heads, [[line for line, _ in lines] for lines in ordered])
    commands = [tuple(command_of(row.case, view.run.info) for _, row in lines) for lines in ordered]
    return tuple(replace(each, commands=own) for each, own in zip(tables, commands, strict=True))


def _lines(work: Work, columns: Sequence[ReportColumn], view: RunView) -> list[tuple[Line, Row]]:
    """The lines in the order of the table, each with its row."""
    lines: list[tuple[float, Line, Row]] = []
    for row, name in zip(work.rows, _names(work), strict=True):
        beside = work.beside(row)
        if latency_s(row) is None:
            why = _drawn(_reason(row), row, str(name), view, is_open=True)
            compared = [
                column.cell(row, beside) if column.name in COMPARED and beside else None
                for column in columns[1:]
            ]
            lines.append((_place(row, view), (name, why, *compared), row))
            continue
        cells = [column.cell(row, beside) for column in columns]
        cells = [
            _drawn(cell, row, str(name), view, is_open=is_open(beside)) if column.name == "latency" else cell
            for cell, column in zip(cells, columns, strict=True)
        ]
        lines.append((_place(row, view), (name, _noted(cells[0], row), *cells[1:]), row))
    return [(line, row) for _, line, row in sorted(lines, key=lambda item: item[0])]


def _place(row: Row, view: RunView) -> float:
    """The seconds by which rows are ordered; where processes disagree, the geometric mean of these."""
    if row.is_unranked:
        return UNRANKED
    latency = latency_s(row)
    if latency is not None:
        return latency
    made = _contenders(view)(row)
    return math.exp(made.mean_log) if made else math.inf


def is_open(beside: Beside | None) -> bool:
    """Whether a row cannot be told from the fastest, whatever others or warming up may explain."""
    return beside is not None and not beside.told


def _drawn(cell: Cell, row: Row, label: str, view: RunView, *, is_open: bool) -> Cell:
    """The cell with the processes, for formats that draw."""
    found, steps = row.metric("latency_s"), view.steps.get(case_key(row.case), ())
    if not row.ok or not steps:
        return cell
    mark = Mark(
        label=label,
        backend=row.case.backend,
        value=found.value,
        low=found.low,
        high=found.high,
        is_open=is_open,
        processes=steps,
    )
    return replace(cell, parts=(*cell.parts, Spread((mark,), "s")))


def side_by_side(
    shown: Sequence[Work], by: str, columns: Sequence[ReportColumn], view: RunView
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
    found = iter(besides(firsts, view))
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
    """The alternatives, fastest first, by the first value that has a latency."""
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
    for index, value in enumerate(values):
        row = alternative.rows.get(value)
        known = beside.get(case_key(row.case)) if row else None
        cells += _cells(row, known, columns)
        cells += [_ratio(row, known, columns[0])] if index else []
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
    """The ratio of a column's numbers; in doubt where these come from times that cannot be told apart."""
    if row is None or beside is None or row is beside.base or latency_s(row) is None:
        return Cell()
    own, other = (next(iter(column.cell(each, beside).parts), None) for each in (row, beside.base))
    if not isinstance(own, Number) or not isinstance(other, Number) or not other.value:
        return Cell()
    unsure = column.name in TIMED and not beside.told
    return Cell((Number(own.value / other.value, "×"),), unsure=unsure)


def _tables(shown: Sequence[Work], heads: Sequence[Column], lines: Sequence[list[Line]]) -> tuple[Table, ...]:
    """Tables without the columns that are empty in all of them."""
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
    """Why the row has no speed. Reasons for other absent numbers are in JSON and CSV."""
    if row.ok:
        return _noted(Cell((why_no_speed(row),), Tone.WARNING), row)
    if len(why_no_speed(row)) > INLINE:
        return Cell((str(row.status),), Tone.BAD, footnotes=(why_no_speed(row),))
    return Cell((why_no_speed(row),), Tone.BAD)


def why_no_speed(row: Row) -> str:
    """Why a case has no speed: if it failed its status, and its message."""
    reason = row.message or row.metric("latency_s").reason
    if row.ok:
        return reason or "no speed"
    return f"{row.status}: {reason}" if reason else str(row.status)


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """`cell`: of a row that has a speed, beside the row that the ratio is to, if there is one.

    `rank`: those of a higher one go first where room is short.
    """

    name: str
    cell: Callable[[Row, Beside | None], Cell]
    rank: int


def choices() -> list[str]:
    """The names of all columns that can be asked for."""
    return list(dict.fromkeys((*map(typed, OWN), *ALIASES, *NUMBERS)))


def typed(name: str) -> str:
    """How a column of its own form is asked for: `flops` for `FLOP/s`."""
    return "flops" if name == "FLOP/s" else name.replace(" ", "-").replace("/", "-of-")


def chosen_columns(names: Sequence[str]) -> tuple[ReportColumn, ...]:
    """The columns asked for, the last going first where room is short; without any, all of `OWN`.

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
    """A column of a number of the row; without it, why."""
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
    """The row's headline, where it has one."""
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
    if beside is None or row.is_unranked:
        return Cell()
    return Cell((Gauge(min(1 / beside.ratio, 1.0)),))


def _ratio_to_base(row: Row, beside: Beside | None) -> Cell:
    """How many times as long a row takes; surely so only where the two can be told apart."""
    if beside is None or row.is_unranked:
        return Cell()
    best = Tone.GOOD if beside.base is row and beside.told else Tone.PLAIN
    return Cell((Number(beside.ratio, "×"),), best, unsure=not beside.told)


def _work_rate(row: Row, _: Beside | None) -> Cell:
    return number(row.value(row.rate_metric), unit_of(row, row.rate_metric))


def _memory(row: Row, _: Beside | None) -> Cell:
    """The device's peak, where it has memory of its own that can be seen; else the process's."""
    device, host = row.value("peak_device_bytes"), row.value("peak_host_bytes")
    if device is not None:
        return number(device, "B")
    if host is None:
        return Cell()
    return Cell((Number(host, "B"), *(() if row.case.device.startswith("cpu") else ("host",))))


def _share_of(roof: str) -> Callable[[Row, Beside | None], Cell]:
    """A share of the FLOP/s, or of the bytes/s where the work moves data."""

    def cell(row: Row, _: Beside | None) -> Cell:
        what = "bytes" if row.is_memory_bound_work else "flops"
        return number(number_of(row, f"{what}_of_{roof}").value, "%")

    return cell


def _bound(row: Row, _: Beside | None) -> Cell:
    value, intensity = row.position.attainable_flops_per_s, row.position.flops_per_byte
    if not value or not intensity:
        return Cell()
    attainable = Number(value / intensity, "B/s") if row.is_memory_bound_work else Number(value, "FLOP/s")
    return Cell((f"{row.position.bound},", attainable))


def _error_of_allowed(row: Row, _: Beside | None) -> Cell:
    """How near the error of a user's model comes to what rounding explains."""
    share = row.error_of_allowed.value
    return Cell((f"{share:.2f}",)) if row.is_own and share is not None else Cell()


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
        ReportColumn("FLOP/s", _work_rate, 7),
        ReportColumn("of ceiling", _share_of("ceiling"), 9),
        ReportColumn("of datasheet", _share_of("datasheet"), 10),
        ReportColumn("bound by", _bound, 11),
        ReportColumn("memory", _memory, 5),
        ReportColumn("cold", _number("cold_s"), 6),
        ReportColumn("per cost", _per_cost, 3),
        ReportColumn("error/allowed", _error_of_allowed, 6),
        ReportColumn("ratio", _ratio_to_base, 2),
    )
}


@dataclass(frozen=True, slots=True)
class Work:
    """A computation and its alternatives, in the plan's order. `short_title` is unique among works."""

    title: str
    short_title: str
    rows: tuple[Row, ...]
    names: tuple[str, ...]  # of the rows: `torch eager`
    short_names: tuple[str, ...]
    verdict: WorkVerdict = NO_VERDICT

    def beside(self, row: Row) -> Beside | None:
        """What `row` is compared with: the fastest. A single one is compared with nothing."""
        verdict = self.verdict
        first = verdict.fastest.case if verdict.fastest else None
        base = next((each for each in self.rows if each.case == first), None)
        if base is None or not verdict.rivals:
            return None
        if row is base:
            return Beside(base, 1.0, verdict.standing in (Standing.WON, Standing.ALONE))
        rival = next((each for each in verdict.rivals if each.contender.case == row.case), None)
        return Beside(base, rival.ratio, rival.is_slower) if rival else None


def judged(found: Sequence[Work], view: RunView) -> list[Work]:
    """The same works with a verdict each, over all of them."""
    contend = _contenders(view)
    contenders = [[made for row in work.rows if (made := contend(row))] for work in found]
    verdicts = judge_works(contenders, view.run.info.policy)
    return [replace(work, verdict=verdict) for work, verdict in zip(found, verdicts, strict=True)]


def by_threads(found: Sequence[Work], view: RunView) -> list[tuple[str, WorkVerdict]]:
    """Who computes which work with several numbers of threads, and how these compare."""
    contend = _contenders(view)
    groups: dict[str, dict[str, Contender]] = {}
    for work in found:
        for row, name in zip(work.rows, _names_without_threads(work), strict=True):
            if row.case.threads and (made := contend(row)):
                groups.setdefault(f"{work.short_title}, {name}", {})[row.case.id] = made
    several = {name: list(own.values()) for name, own in groups.items() if len(own) > 1}
    return list(zip(several, judge_works(list(several.values()), view.run.info.policy), strict=True))


def _names_without_threads(work: Work) -> list[str]:
    """Who computes each row of the work, whatever the number of threads."""
    same_device = len({row.case.device for row in work.rows}) == 1
    return [_name(row.case, THREADS, same_device, False) for row in work.rows]


def besides(groups: Sequence[tuple[Row, Sequence[Row]]], view: RunView) -> list[dict[CaseKey, Beside]]:
    """The rows beside each group's base, by `case_key`; none where the base cannot be compared."""
    contend = _contenders(view)
    known = [
        (base, made, [other for row in rows if row is not base and (other := contend(row))])
        for base, rows in groups
        if (made := contend(base))
    ]
    judged_ = iter(rivals_of([(made, others) for _, made, others in known], view.run.info.policy))
    found = {id(base): next(judged_) for base, _, _ in known}
    return [
        {
            case_key(each.contender.case): Beside(base, each.ratio, each.is_slower or each.is_faster)
            for each in found.get(id(base), [])
        }
        | {case_key(base.case): Beside(base, 1.0, told=True)}
        for base, _ in groups
    ]


def _contenders(view: RunView) -> Callable[[Row], Contender | None]:
    """A function that says what a row contends with; None without a speed that says something."""
    recorded = view.records_by_case
    return lambda row: contender(row.case, recorded.get(case_key(row.case), ())) if row.ok else None


def works(rows: Sequence[Row], by: str = "") -> list[Work]:
    """The works of rows in the order of the plan. `by`: an axis that tells no work from another."""
    grouped: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(work_key(row.case, by), []).append(row)
    cases = [group[0].case for group in grouped.values()]
    known = telling((case.workload, _params(case, by)) for case in cases)
    one_mode = _one_mode(rows)
    return [_work(group, by, known, one_mode) for group in grouped.values()]


def axis(name: str, rows: Iterable[Row]) -> str:
    """The name of what a case has a value of. Raises UsageError."""
    known = [*AXES, *dict.fromkeys(key for row in rows for key in row.case.params)]
    if name not in ("backend", *known):
        raise UsageError(f"Cases have no {name!r}.", unknown("axes", name, known))
    return "target" if name == "backend" else name


def value_of(case: Case, by: str) -> str:
    """The value on an axis; empty where the case has none. A target is told with its mode."""
    if by == "target":
        return f"{case.target} {case.mode}".strip()
    if by == THREADS:
        return count_of(case.threads, "thread") if case.threads else "threads as set"
    value = getattr(case, by) if by in AXES else case.params.get(by)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def value_text(by: str, value: str) -> str:
    """A value in words: `batch=8` of a parameter; those of the other axes speak for themselves."""
    return value if by in AXES else f"{by}={value}"


def _params(case: Case, by: str) -> dict[str, Scalar]:
    return {name: value for name, value in case.params.items() if name != by}


def _one_mode(rows: Iterable[Row]) -> bool:
    """Whether a target's name says which mode."""
    return len({(row.case.target, row.case.mode) for row in rows}) == len({row.case.target for row in rows})


def _work(group: Sequence[Row], by: str, known: Telling, one_mode: bool) -> Work:
    case = group[0].case
    devices = {row.case.device for row in group}
    same_device = len(devices) == 1 and by != "device"
    device = case.device if same_device else ""
    return Work(
        title=" · ".join((_head(case.workload, _params(case, by)), *_context(case, by, device))),
        short_title=short_title(case, known, device, by),
        rows=tuple(group),
        names=tuple(_marked(row, _name(row.case, by, same_device, False)) for row in group),
        short_names=tuple(_marked(row, _name(row.case, by, same_device, one_mode)) for row in group),
    )


def short_title(case: Case, known: Telling, device: str, by: str = "") -> str:
    """`gemm  m=512 n=512 … · float32 · cpu`: a work by the parameters that differ among works."""
    params = _params(case, by)
    short = telling_params(case.workload, params, known)
    more = " …" if len(short) < len(params) else ""
    return " · ".join((_head(case.workload, short) + more, *_context(case, by, device)))


def _head(workload: str, params: Mapping[str, Scalar]) -> str:
    return f"{workload}  {params_text(params)}".rstrip()


def _context(case: Case, by: str, device: str) -> list[str]:
    dtype = str(case.dtype) if case.dtype and by != "dtype" else ""
    caches = CACHES.get(case.cache, "") if case.dtype and by != "cache" else ""
    return [text for text in (dtype, caches, device) if text]


def _marked(row: Row, name: str) -> str:
    return f"{name} (lossy)" if row.is_lossy else name


def _name(case: Case, by: str, same_device: bool, one_mode: bool) -> str:
    """The name of an alternative: what differs between cases that do the same work."""
    target, mode = (
        ("", "") if by == "target" else (case.target, "" if by == "mode" or one_mode else case.mode)
    )
    device = "" if same_device or by == "device" else case.device
    where = suffix(case.placement, case.environment, 0 if by == THREADS else case.threads)
    return " ".join(filter(None, (target, mode, device, where)))
