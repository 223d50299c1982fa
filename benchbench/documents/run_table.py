"""Tables of a report: one per work with a row per alternative, fastest first.

The module also defines the columns and groups the rows of a run into works.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.rows import NUMBERS, CaseKey, Row, case_key, number_of, params_text, unit_of
from benchbench.analyse.scaling import RunView
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
from benchbench.documents.short_names import VaryingParams, short_params, varying_params
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
from benchbench.model.user_model import CONTEXT
from benchbench.plan.commands import command_of

UNRANKED_S = 1e99  # sort key: after ranked rows, before rows without a speed
MAX_REASON = 40  # characters; a longer reason becomes a footnote
COMPARED = ("speed", "ratio")  # columns that compare a row with the fastest
TIMED = ("latency", "speed", "rate", "FLOP/s")  # columns whose ratio follows from the latencies
Line = tuple[Cell | None, ...]
UNSURE = "? not significant: rounds, other programs or warm-up may explain the difference"
ALIASES = {  # option value → number of a row
    "rate": "items_per_s",
    "cold": "cold_s",
    "energy": "energy_j",
    **{name: f"latency_{name}_s" for name in ("low", "high", "min", "p50", "p90", "p99")},
}
TEXT_ITEM = "token"  # item of language models
ABOVE_BOUND = "faster than its bound: the caches of the CPU hold a part of what a step reads"
CACHES = {Cache.COLD: "cold caches", Cache.ROTATE: "rotating inputs"}
NO_VERDICT = WorkVerdict(fastest=None, rivals=(), axis="")
CASE_AXES = ("dtype", "mode", "target", "device", "cache", "phase", THREADS)  # besides the parameters


def work_tables(works: Sequence[Work], columns: Sequence[ReportColumn], view: RunView) -> tuple[Table, ...]:
    """A table per work with a row per alternative and a cell per column.

    Alternatives without a speed have one cell with the reason. They are last, except those whose processes
    disagree: these are placed by the mean of their processes.
    """
    heads = [Column(column.name, rank=column.rank) for column in columns]
    lines_by_work = [_table_lines(work, columns, view) for work in works]
    commands = [tuple(command_of(row.case, view.run.info) for _, row in lines) for lines in lines_by_work]
    return _build_tables(works, heads, [[line for line, _ in lines] for lines in lines_by_work], commands)


def _table_lines(work: Work, columns: Sequence[ReportColumn], view: RunView) -> list[tuple[Line, Row]]:
    """Lines of the table in order, each with its row."""
    lines: list[tuple[float, Line, Row]] = []
    for row, name in zip(work.rows, _name_cells(work), strict=True):
        ratio = work.ratio_to_fastest(row)
        if latency_s(row) is None:
            reason = _with_samples(_reason_cell(row), row, str(name), work, view)
            compared = [
                column.cell(row, ratio) if column.name in COMPARED and ratio else None
                for column in columns[1:]
            ]
            lines.append((_sort_key_s(row, view), (name, reason, *compared), row))
            continue
        cells = [column.cell(row, ratio) for column in columns]
        cells = [
            _with_samples(cell, row, str(name), work, view) if column.name == "latency" else cell
            for cell, column in zip(cells, columns, strict=True)
        ]
        lines.append((_sort_key_s(row, view), (name, _with_notes(cells[0], row), *cells[1:]), row))
    return [(line, row) for _, line, row in sorted(lines, key=lambda item: item[0])]


def _sort_key_s(row: Row, view: RunView) -> float:
    """Latency in seconds, or the geometric mean of the processes if they disagree."""
    if row.is_unranked:
        return UNRANKED_S
    latency = latency_s(row)
    if latency is not None:
        return latency
    contender = _contender_function(view)(row)
    return math.exp(contender.mean_log) if contender else math.inf


def is_undecided(ratio: RatioToBase | None) -> bool:
    """True if the difference from the fastest row is not significant."""
    return ratio is not None and not ratio.is_significant


def _with_samples(cell: Cell, row: Row, label: str, work: Work, view: RunView) -> Cell:
    """Add the samples of all processes to the cell, for formats that draw them."""
    mark = row_mark(row, label, "latency_s", work, view)
    return replace(cell, parts=(*cell.parts, Spread((mark,), "s"))) if mark.processes else cell


def row_mark(row: Row, label: str, metric: str, work: Work, view: RunView | None = None) -> Mark:
    """Mark of a row with its value of a metric, and with the step times of its processes given `view`."""
    value = row.metric(metric)
    return Mark(
        label=label,
        backend=row.case.backend,
        value=row.value(metric),
        low=value.low,
        high=value.high,
        is_undecided=is_undecided(work.ratio_to_fastest(row)),
        processes=view.steps.get(case_key(row.case), ()) if view and row.ok else (),
        status=row.metric("latency_s").reason if row.ok else str(row.status),
    )


def side_by_side(
    works: Sequence[Work], by: str, columns: Sequence[ReportColumn], view: RunView
) -> tuple[Table, ...]:
    """A row per alternative, a column for each value on the axis `by`, and ratios to the first value."""
    values = list(dict.fromkeys(value_of(row.case, by) for work in works for row in work.rows))
    heads = [
        Column(name, rank=1 + number)
        for number, value in enumerate(values)
        for name in (
            value_text(by, value),
            *(column.name for column in columns[1:]),
            *(["ratio"] if number else []),
        )
    ]
    alternatives = [_alternatives(work, by, values) for work in works]
    firsts = [
        (alternative.first, list(alternative.rows.values()))
        for group in alternatives
        for alternative in group
        if alternative.first
    ]
    ratios = ratios_to_base(firsts, view)
    lines = [
        [_side_by_side_line(alternative, values, columns, ratios) for alternative in group]
        for group in alternatives
    ]
    return _build_tables(works, heads, lines)


@dataclass(frozen=True, slots=True)
class _Alternative:
    """An alternative by value on an axis; `first` is its first row that has a latency."""

    name: Cell
    rows: dict[str, Row]
    first: Row | None


def _alternatives(work: Work, by: str, values: Sequence[str]) -> list[_Alternative]:
    """Alternatives of a work, fastest first by their first latency."""
    rows_by_name: dict[str, tuple[Cell, dict[str, Row]]] = {}
    for row, name in zip(work.rows, _name_cells(work), strict=True):
        rows_by_name.setdefault(str(name), (name, {}))[1][value_of(row.case, by)] = row
    alternatives = [
        _Alternative(name, rows, next((rows[v] for v in values if v in rows and latency_s(rows[v])), None))
        for name, rows in rows_by_name.values()
    ]
    return sorted(
        alternatives,
        key=lambda alternative: (alternative.first and latency_s(alternative.first)) or math.inf,
    )


def _side_by_side_line(
    alternative: _Alternative,
    values: Sequence[str],
    columns: Sequence[ReportColumn],
    ratios: Mapping[CaseKey, RatioToBase],
) -> Line:
    cells: list[Cell] = []
    for index, value in enumerate(values):
        row = alternative.rows.get(value)
        ratio = ratios.get(case_key(row.case)) if row else None
        cells += _value_cells(row, ratio, columns)
        cells += [_ratio_cell(row, ratio, columns[0])] if index else []
    return (alternative.name, *cells)


def _value_cells(row: Row | None, ratio: RatioToBase | None, columns: Sequence[ReportColumn]) -> list[Cell]:
    empty = [Cell()] * (len(columns) - 1)
    if row is None:
        return [Cell(), *empty]
    if latency_s(row) is None:
        return [Cell((str(row.status),), Tone.BAD, footnotes=(why_no_speed(row),)), *empty]
    cells = [column.cell(row, ratio) for column in columns]
    return [_with_notes(cells[0], row), *cells[1:]]


def _ratio_cell(row: Row | None, ratio: RatioToBase | None, column: ReportColumn) -> Cell:
    """Ratio of the row's number in `column` to that of the base, marked unsure if not significant."""
    if row is None or ratio is None or row is ratio.base or latency_s(row) is None:
        return Cell()
    numerator, base = (next(iter(column.cell(side, ratio).parts), None) for side in (row, ratio.base))
    if not isinstance(numerator, Number) or not isinstance(base, Number) or not base.value:
        return Cell()
    unsure = column.name in TIMED and not ratio.is_significant
    return Cell((Number(numerator.value / base.value, "×"),), unsure=unsure)


def _build_tables(
    works: Sequence[Work],
    heads: Sequence[Column],
    lines: Sequence[list[Line]],
    commands: Sequence[tuple[str, ...]] = (),
) -> tuple[Table, ...]:
    """Tables without the columns that are empty in all of them."""
    cells = [line[1:] for table in lines for line in table]
    used_columns = [
        index for index in range(len(heads)) if any(line[index] and str(line[index]) for line in cells)
    ]
    return tuple(
        Table(
            columns=(Column(""), *(heads[index] for index in used_columns)),
            rows=tuple((line[0], *(line[1 + index] for index in used_columns)) for line in table),
            layout=Layout.ALTERNATIVES,
            title=work.title,
            short_title=work.short_title,
            commands=row_commands,
        )
        for work, table, row_commands in zip(works, lines, commands or [()] * len(works), strict=True)
    )


def _name_cells(work: Work) -> list[Cell]:
    return [
        Cell((name,), short=short if short != name else "")
        for name, short in zip(work.names, work.short_names, strict=True)
    ]


def _with_notes(cell: Cell, row: Row) -> Cell:
    """Add the row's notes to the footnotes of the cell."""
    notes = dict.fromkeys(note.text for note in row.notes)
    return Cell(cell.parts, cell.tone, cell.unsure, (*cell.footnotes, *notes))


def _reason_cell(row: Row) -> Cell:
    """Status or reason of a row without a speed; reasons for other missing numbers are in JSON and CSV."""
    if row.ok:
        return _with_notes(Cell((why_no_speed(row),), Tone.WARNING), row)
    if len(why_no_speed(row)) > MAX_REASON:
        return Cell((str(row.status),), Tone.BAD, footnotes=(why_no_speed(row),))
    return Cell((why_no_speed(row),), Tone.BAD)


def why_no_speed(row: Row) -> str:
    """Reason why a case has no speed; status and message if it failed."""
    reason = row.message or row.metric("latency_s").reason
    if row.ok:
        return reason or "no speed"
    return f"{row.status}: {reason}" if reason else str(row.status)


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column; `cell` renders a row that has a speed, given its ratio to the base row if there is one.

    Columns with the highest `rank` are omitted first if space is short.
    """

    name: str
    cell: Callable[[Row, RatioToBase | None], Cell]
    rank: int


def column_names() -> list[str]:
    """Names of all columns that `--columns` accepts."""
    return list(dict.fromkeys((*map(typed_name, REPORT_COLUMNS), *ALIASES, *NUMBERS)))


def typed_name(name: str) -> str:
    """Name of a report column on the command line: `flops` for `FLOP/s`."""
    return "flops" if name == "FLOP/s" else name.replace(" ", "-").replace("/", "-of-")


def select_columns(names: Sequence[str]) -> tuple[ReportColumn, ...]:
    """Columns by name, or all `REPORT_COLUMNS` if `names` is empty; later names are omitted first.

    Raises UsageError.
    """
    if not names:
        return tuple(REPORT_COLUMNS.values())
    by_typed_name = {typed_name(name): column for name, column in REPORT_COLUMNS.items()}
    for name in names:
        if name not in column_names():
            raise UsageError(f"No column named {name!r}.", unknown("columns", name, column_names()))
    return tuple(
        ReportColumn(by_typed_name[name].name, by_typed_name[name].cell, rank)
        if name in by_typed_name
        else _number_column(name, rank)
        for rank, name in enumerate(dict.fromkeys(names), 1)
    )


def _number_column(name: str, rank: int) -> ReportColumn:
    """Column for a number of a row, or a footnote with the reason for its absence."""
    source = ALIASES.get(name, name)

    def cell(row: Row, _: RatioToBase | None) -> Cell:
        value = number_of(row, source)
        if value.value is None:
            return Cell(("–",), footnotes=(f"no {name}: {value.reason or 'not known'}",))
        if not unit_of(row, source) and not float(value.value).is_integer():
            return Cell((f"{value.value:.2g}",))
        return number(value.value, unit_of(row, source))

    return ReportColumn(name, cell, rank)


def latency_s(row: Row) -> float | None:
    """Headline latency in seconds; None without one."""
    return row.value("latency_s") if row.ok else None


@dataclass(frozen=True, slots=True)
class RatioToBase:
    """Time of a row divided by the time of `base`, and whether the difference is significant.

    For the base itself, `is_significant` means that it differs significantly from all others.
    """

    base: Row
    ratio: float
    is_significant: bool


def _latency_cell(row: Row, _: RatioToBase | None) -> Cell:
    latency = row.metric("latency_s")
    assert latency.value is not None
    half_width: Part = ""
    if latency.low is not None and latency.high is not None:
        half_width = Number(
            max(latency.high - latency.value, latency.value - latency.low) / latency.value, "±"
        )
    parts = (Number(latency.value, "s"), half_width)
    return Cell((*parts, "contended") if row.contended else parts)


def _speed_cell(row: Row, ratio: RatioToBase | None) -> Cell:
    if ratio is None or row.is_unranked:
        return Cell()
    return Cell((Gauge(min(1 / ratio.ratio, 1.0)),))


def _ratio_to_base_cell(row: Row, ratio: RatioToBase | None) -> Cell:
    """Ratio of the row's time to the base's; unsure unless significant."""
    if ratio is None or row.is_unranked:
        return Cell()
    tone = Tone.GOOD if ratio.base is row and ratio.is_significant else Tone.PLAIN
    return Cell((Number(ratio.ratio, "×"),), tone, unsure=not ratio.is_significant)


def _work_rate_cell(row: Row, _: RatioToBase | None) -> Cell:
    return number(row.value(row.rate_metric), unit_of(row, row.rate_metric))


def _memory_cell(row: Row, _: RatioToBase | None) -> Cell:
    """Peak device memory if the device has its own and reports it, otherwise the peak of the process."""
    device, host = row.value("peak_device_bytes"), row.value("peak_host_bytes")
    if device is not None:
        return number(device, "B")
    if host is None:
        return Cell()
    return Cell((Number(host, "B"), *(() if row.case.device.startswith("cpu") else ("host",))))


def _share_cell_function(roof: str) -> Callable[[Row, RatioToBase | None], Cell]:
    """Column function for the share of `roof`, in bytes/s for memory-bound work and FLOP/s otherwise."""

    def cell(row: Row, _: RatioToBase | None) -> Cell:
        quantity = "bytes" if row.is_memory_bound_work else "flops"
        return number(number_of(row, f"{quantity}_of_{roof}").value, "%")

    return cell


def _bound_cell(row: Row, _: RatioToBase | None) -> Cell:
    value, intensity = row.position.attainable_flops_per_s, row.position.flops_per_byte
    if not value or not intensity:
        return Cell()
    attainable = Number(value / intensity, "B/s") if row.is_memory_bound_work else Number(value, "FLOP/s")
    return Cell((f"{row.position.bound},", attainable))


def decode_bound(row: Row) -> float | None:
    """Bound of a language model's decode step in tokens per second; None for other work, or if unknown.

    It is the rate at which the device's memory provides the weights and the cache, which each step reads.
    """
    if row.item != TEXT_ITEM or CONTEXT not in row.case.params:
        return None
    share = number_of(row, "bytes_of_ceiling").value or number_of(row, "bytes_of_datasheet").value
    rate = row.value("items_per_s")
    return rate / share if rate and share else None


def _decode_bound_cell(row: Row, _: RatioToBase | None) -> Cell:
    bound, rate = decode_bound(row), row.value("items_per_s")
    if bound is None or rate is None:
        return Cell()
    share = rate / bound
    parts = (Number(bound, unit_of(row, "items_per_s")), Number(share, "%"))
    return Cell(parts, footnotes=(ABOVE_BOUND,) if share > 1 else ())


def _error_cell(row: Row, _: RatioToBase | None) -> Cell:
    """Error of a user's model as a fraction of the allowed one; of a lossy engine, also the error itself."""
    share, error = row.error_of_allowed.value, row.relative_error.value
    if not row.is_user_model or share is None:
        return Cell()
    return Cell((f"{share:.2f}", *((Number(error, "%"), "off") if row.is_lossy and error else ())))


def _number_cell_function(name: str) -> Callable[[Row, RatioToBase | None], Cell]:
    return lambda row, _: number(row.value(name), unit_of(row, name))


def _per_cost_cell(row: Row, _: RatioToBase | None) -> Cell:
    return number(row.price.items_per_cost, unit_of(row, "items_per_cost"))


REPORT_COLUMNS = {
    column.name: column
    for column in (
        ReportColumn("latency", _latency_cell, 1),
        ReportColumn("speed", _speed_cell, 8),
        ReportColumn("rate", _number_cell_function("items_per_s"), 4),
        ReportColumn("bound", _decode_bound_cell, 4),
        ReportColumn("FLOP/s", _work_rate_cell, 7),
        ReportColumn("of ceiling", _share_cell_function("ceiling"), 9),
        ReportColumn("of datasheet", _share_cell_function("datasheet"), 10),
        ReportColumn("bound by", _bound_cell, 11),
        ReportColumn("memory", _memory_cell, 5),
        ReportColumn("cold", _number_cell_function("cold_s"), 6),
        ReportColumn("per cost", _per_cost_cell, 3),
        ReportColumn("error/allowed", _error_cell, 6),
        ReportColumn("ratio", _ratio_to_base_cell, 2),
    )
}


@dataclass(frozen=True, slots=True)
class Work:
    """A computation and its alternatives in plan order. `short_title` is unique among the works of a run."""

    title: str
    short_title: str
    rows: tuple[Row, ...]
    names: tuple[str, ...]  # one per row, such as `torch eager`
    short_names: tuple[str, ...]
    verdict: WorkVerdict = NO_VERDICT

    def ratio_to_fastest(self, row: Row) -> RatioToBase | None:
        """Compare `row` with the fastest row; None if there is nothing to compare."""
        verdict = self.verdict
        fastest = verdict.fastest.case if verdict.fastest else None
        base = next((candidate for candidate in self.rows if candidate.case == fastest), None)
        if base is None or not verdict.rivals:
            return None
        if row is base:
            return RatioToBase(base, 1.0, verdict.standing in (Standing.WON, Standing.ALONE))
        rival = next((rival for rival in verdict.rivals if rival.contender.case == row.case), None)
        return RatioToBase(base, rival.ratio, rival.is_slower) if rival else None


def with_verdicts(works: Sequence[Work], view: RunView) -> list[Work]:
    """Judge all works together and add their verdicts."""
    to_contender = _contender_function(view)
    contenders = [[contender for row in work.rows if (contender := to_contender(row))] for work in works]
    verdicts = judge_works(contenders, view.run.info.policy)
    return [replace(work, verdict=verdict) for work, verdict in zip(works, verdicts, strict=True)]


def by_threads(works: Sequence[Work], view: RunView) -> list[tuple[str, WorkVerdict]]:
    """Names and verdicts of the alternatives measured with several numbers of threads."""
    to_contender = _contender_function(view)
    groups: dict[str, dict[str, Contender]] = {}
    for work in works:
        same_device = len({row.case.device for row in work.rows}) == 1
        for row in work.rows:
            if row.case.threads and (contender := to_contender(row)):
                name = _alternative_name(row.case, THREADS, same_device, False)
                groups.setdefault(f"{work.short_title}, {name}", {})[row.case.id] = contender
    compared = {name: list(group.values()) for name, group in groups.items() if len(group) > 1}
    return list(zip(compared, judge_works(list(compared.values()), view.run.info.policy), strict=True))


def ratios_to_base(groups: Sequence[tuple[Row, Sequence[Row]]], view: RunView) -> dict[CaseKey, RatioToBase]:
    """Compare the rows of each group with its base row; only the base if it has no usable speed."""
    to_contender = _contender_function(view)
    comparable = [
        (base, leader, [other for row in rows if row is not base and (other := to_contender(row))])
        for base, rows in groups
        if (leader := to_contender(base))
    ]
    rivals = rivals_of([(leader, others) for _, leader, others in comparable], view.run.info.policy)
    return {case_key(base.case): RatioToBase(base, 1.0, is_significant=True) for base, _ in groups} | {
        case_key(rival.contender.case): RatioToBase(base, rival.ratio, rival.is_slower or rival.is_faster)
        for (base, _, _), base_rivals in zip(comparable, rivals, strict=True)
        for rival in base_rivals
    }


def _contender_function(view: RunView) -> Callable[[Row], Contender | None]:
    """Function that converts a row to a contender, or None without a usable speed."""
    recorded = view.records_by_case
    return lambda row: contender(row.case, recorded.get(case_key(row.case), ())) if row.ok else None


def works(rows: Sequence[Row], by: str = "") -> list[Work]:
    """Group rows into works, in plan order. Works that differ only on the axis `by` are merged."""
    rows_by_work: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        rows_by_work.setdefault(work_key(row.case, by), []).append(row)
    cases = [group[0].case for group in rows_by_work.values()]
    varying = varying_params((case.workload, _other_params(case, by)) for case in cases)
    modes = {(row.case.target, row.case.mode) for row in rows}
    one_mode = len(modes) == len({target for target, _ in modes})
    return [_build_work(group, by, varying, one_mode) for group in rows_by_work.values()]


def axis(name: str, rows: Iterable[Row]) -> str:
    """Axis with this name; `backend` is an alias of `target`. Raises UsageError for an unknown name."""
    available = [*CASE_AXES, *dict.fromkeys(key for row in rows for key in row.case.params)]
    if name not in ("backend", *available):
        raise UsageError(f"Cases have no {name!r}.", unknown("axes", name, available))
    return "target" if name == "backend" else name


def value_of(case: Case, by: str) -> str:
    """Value of the case on the axis `by`; empty without one. The value of a target includes its mode."""
    if by == "target":
        return f"{case.target} {case.mode}".strip()
    if by == THREADS:
        return count_of(case.threads, "thread") if case.threads else "threads as set"
    value = getattr(case, by) if by in CASE_AXES else case.params.get(by)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def value_text(by: str, value: str) -> str:
    """Text of a value: `batch=8` for a parameter, the value alone for other axes."""
    return value if by in CASE_AXES else f"{by}={value}"


def _other_params(case: Case, by: str) -> dict[str, Scalar]:
    return {name: value for name, value in case.params.items() if name != by}


def _build_work(group: Sequence[Row], by: str, varying: VaryingParams, one_mode: bool) -> Work:
    case = group[0].case
    devices = {row.case.device for row in group}
    same_device = len(devices) == 1 and by != "device"
    device = case.device if same_device else ""
    return Work(
        title=" · ".join(
            (_workload_text(case.workload, _other_params(case, by)), *_context_parts(case, by, device))
        ),
        short_title=short_title(case, varying, device, by),
        rows=tuple(group),
        names=tuple(
            _with_lossy_mark(row, _alternative_name(row.case, by, same_device, False)) for row in group
        ),
        short_names=tuple(
            _with_lossy_mark(row, _alternative_name(row.case, by, same_device, one_mode)) for row in group
        ),
    )


def short_title(case: Case, varying: VaryingParams, device: str, by: str = "") -> str:
    """Title of a work with only the parameters that vary: `gemm  m=512 n=512 … · float32 · cpu`."""
    params = _other_params(case, by)
    short = short_params(case.workload, params, varying)
    more = " …" if len(short) < len(params) else ""
    return " · ".join((_workload_text(case.workload, short) + more, *_context_parts(case, by, device)))


def _workload_text(workload: str, params: Mapping[str, Scalar]) -> str:
    return f"{workload}  {params_text(params)}".rstrip()


def _context_parts(case: Case, by: str, device: str) -> list[str]:
    """Dtype, caches and device for a title, without defaults and the axis `by`."""
    dtype = str(case.dtype) if case.dtype and by != "dtype" else ""
    caches = CACHES.get(case.cache, "") if case.dtype and by != "cache" else ""
    return [text for text in (dtype, caches, device) if text]


def _with_lossy_mark(row: Row, name: str) -> str:
    return f"{name} (lossy)" if row.is_lossy else name


def _alternative_name(case: Case, by: str, same_device: bool, one_mode: bool) -> str:
    """Name of an alternative: the fields that differ between cases of one work."""
    target, mode = (
        ("", "") if by == "target" else (case.target, "" if by == "mode" or one_mode else case.mode)
    )
    device = "" if same_device or by == "device" else case.device
    placement = suffix(case.placement, case.environment, 0 if by == THREADS else case.threads)
    return " ".join(filter(None, (target, mode, device, placement)))
