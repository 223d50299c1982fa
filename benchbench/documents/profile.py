"""Profiles as documents: the operators of each case, and the differences between two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchbench import format as fmt
from benchbench.documents import document
from benchbench.documents.document import Cell, Content, Document, Number, Table, number
from benchbench.profiling import OperatorChange, OperatorRow, OperatorTable, ProfileDifference

SCHEMA = 1  # of the JSON. 1: first
IDLE = "no operator"
NOISE = 0.02  # of a step: smaller differences between runs are not explained
MAX_CHANGES = 3  # differences in an answer
MAX_NAME = 60  # characters of a device kernel: C++ templates have hundreds
Cells = dict[str, Content]


def profile_document(tables: Sequence[OperatorTable], top: int, traces: Path) -> Document:
    """The `top` operators of each case, and times by kind for work that several targets did."""
    tables_by_work: dict[str, list[OperatorTable]] = {}
    for table in tables:
        tables_by_work.setdefault(table.work, []).append(table)
    return Document(
        name="profile",
        title="Profile",
        answer=_answer(_summary(tables)),
        tables=(
            *(
                part
                for table in tables
                for part in (_operator_table(table, top, traces), *_rank_tables(table))
            ),
            *(_kind_table(work, same) for work, same in tables_by_work.items() if len(same) > 1),
        ),
        data={"schema": SCHEMA, "tables": [asdict(table) for table in tables]},
    )


def differences_document(differences: Sequence[ProfileDifference], top: int) -> Document:
    """The `top` operators of each pair by their contribution to the difference."""
    return Document(
        name="profile",
        title="Difference of two profiles",
        answer=_answer("; ".join(map(_change_in_words, differences[:MAX_CHANGES]))),
        tables=tuple(_difference_table(difference, top) for difference in differences),
        data={"schema": SCHEMA, "differences": [asdict(difference) for difference in differences]},
    )


def _answer(text: str) -> tuple[Cell, ...]:
    return (Cell((text,)),) if text else ()


def _summary(tables: Sequence[OperatorTable]) -> str:
    """`gemm takes 60.0 % of a step of 1.00 ms`; with several cases the most expensive kinds."""
    if len(tables) == 1:
        name, seconds = _largest_part({row.name: row.self_s for row in tables[0].rows}, tables[0])
        step_s = tables[0].step_s
        return f"{name} takes {fmt.percent(seconds / step_s)} of a step of {fmt.seconds(step_s)}"
    largest = Counter(_largest_part(table.kinds, table)[0] for table in tables)
    counts = ", ".join(f"{name} in {count}" for name, count in largest.most_common())
    return f"the largest part of a step: {counts} of {fmt.count_of(len(tables), 'case')}" if counts else ""


def _largest_part(parts: Mapping[str, float], table: OperatorTable) -> tuple[str, float]:
    """Name and seconds of the largest part of a step; idle time counts as a part."""
    return max((*parts.items(), (IDLE, table.idle_s)), key=lambda part: part[1])


def _change_in_words(difference: ProfileDifference) -> str:
    """`a step of 1.00 ms → 1.50 ms, +500 µs, most by gemm: +400 µs`."""
    text = _steps_text(difference.ref.step_s, difference.new.step_s)
    if _is_noise(difference):
        return f"{text}: nothing to explain"
    changes = [(change.name, change.change_s) for change in difference.changes]
    name, change_s = max(
        (*changes, (IDLE, difference.idle_change_s)), key=lambda change: change[1] / difference.change_s
    )
    return f"{text}, most by {name}: {fmt.signed(change_s, 's')}"


def _operator_table(table: OperatorTable, top: int, traces: Path) -> Table:
    rows = [_row_cells(row, table) for row in table.rows[:top]]
    remaining = table.rows[top:]
    if remaining:
        rows.append(
            _total_cells(fmt.count_of(len(remaining), "other"), sum(row.self_s for row in remaining), table)
        )
    rows.append(_total_cells(IDLE, table.idle_s, table))
    rows.append(_total_cells("total", table.step_s, table))
    return document.table(
        document.without_empty(rows),
        title=table.case,
        facts=_table_facts(table),
        notes=_table_notes(table, traces),
    )


def _table_facts(table: OperatorTable) -> Iterator[str]:
    steps = fmt.count_of(table.steps, "step")
    yield f"{table.profiler}: a step of {fmt.seconds(table.step_s)}, mean of {steps}"
    times = ((table.plain_s, "just before"), (table.measured_s, "when it was timed"))
    plain = ", ".join(f"{fmt.seconds(seconds)} {when}" for seconds, when in times if seconds)
    if plain:
        yield f"without the profiler: {plain}"
    if table.communication_s is not None and table.exposed_s is not None:
        shares = [fmt.percent(seconds / table.step_s) for seconds in (table.communication_s, table.exposed_s)]
        whose = f", means of {len(table.ranks)} ranks; the operators are of rank 0" if table.ranks else ""
        yield f"communication: {shares[0]} of the step, {shares[1]} exposed{whose}"
    gaps, active = table.gaps, "the device was busy" if table.on_device else "operators were running"
    longest = f", the longest {fmt.seconds(gaps.longest_s)}" if gaps.count else ""
    after = f" after {gaps.after}" if gaps.after else ""
    is_timed = gaps.count or not gaps.total_s  # counters alone do not tell when an operator ran
    gaps_text = f"; {fmt.count_of(gaps.count, 'gap')}{longest}{after}" if is_timed else ""
    yield f"{active} {fmt.percent(table.busy)} of the time{gaps_text}"


def _table_notes(table: OperatorTable, traces: Path) -> Iterator[str]:
    if table.memory_peak_bytes is not None:
        yield f"memory of the framework's allocator, at the peak: {fmt.size(table.memory_peak_bytes)}"
    yield from table.notes
    for name in table.traces:
        viewer = "https://ui.perfetto.dev" if ".trace.json" in name else "xprof"
        yield f"trace, for {viewer}: {traces / name}"


def _rank_tables(table: OperatorTable) -> Iterator[Table]:
    """Table with a row per rank and the slowest one, if there are several ranks."""
    if not table.ranks:
        return
    rows: list[Cells] = [
        {
            "rank": str(rank.rank),
            "device": rank.device,
            "step": number(rank.step_s, "s"),
            "communication": _time_cell(rank.communication_s, rank.step_s),
            "exposed": _time_cell(rank.exposed_s, rank.step_s),
            "not waiting": number(rank.own_s, "s") if table.waiting_shown else None,
            "computing": _time_cell(rank.computing_s, rank.step_s) if rank.computing_s is not None else None,
        }
        for rank in table.ranks
    ]
    title = f"{table.case}, by rank"
    yield document.table(document.without_empty(rows), title=title, facts=_slowest_rank_fact(table))


def _slowest_rank_fact(table: OperatorTable) -> Iterator[str]:
    rank = table.slowest
    if rank is None:
        return
    if table.waiting_shown:
        yield f"slowest: rank {rank.rank}, {fmt.seconds(rank.own_s)} of a step not waiting"
    else:
        yield f"slowest: rank {rank.rank}, {fmt.seconds(rank.computing_s or 0.0)} of a step computing"


def _row_cells(row: OperatorRow, table: OperatorTable) -> Cells:
    return {
        "operator": row.name,
        "kind": str(row.kind),
        "calls": number(row.calls, ""),
        "self": number(row.self_s, "s"),
        "share": number(row.share, "%"),
        "total": number(row.total_s, "s"),
        "host self": number(row.host_self_s if table.on_device else None, "s"),
        "flop": number(row.flops, "FLOP"),
        "bytes": number(row.bytes, "B"),
        "allocated": number(row.allocated_bytes, "B"),
        "longest kernel": row.kernels[0][:MAX_NAME] if row.kernels else "",
    }


def _total_cells(name: str, seconds: float, table: OperatorTable) -> Cells:
    return {
        "operator": name,
        "self": number(seconds, "s"),
        "share": number(seconds / table.step_s, "%"),
    }


def _kind_table(work: str, tables: Sequence[OperatorTable]) -> Table:
    """Table of times by kind with a column per target."""
    kinds = dict.fromkeys(kind for table in tables for kind in table.kinds)
    rows: list[Cells] = [
        {"kind": str(kind)}
        | {_target_text(table): _time_cell(table.kinds.get(kind, 0.0), table.step_s) for table in tables}
        for kind in kinds
    ]
    rows.append(
        {"kind": IDLE} | {_target_text(table): _time_cell(table.idle_s, table.step_s) for table in tables}
    )
    rows.append({"kind": "total"} | {_target_text(table): number(table.step_s, "s") for table in tables})
    return document.table(rows, title=f"{work}, by kind")


def _target_text(table: OperatorTable) -> str:
    """The part of the case id after the work: `eager@torch:cpu`."""
    return table.case.removeprefix(f"{table.work}/")


def _time_cell(seconds: float, step_s: float) -> Cell:
    """`600 µs (60.0 %)` of a step; empty for 0."""
    return Cell((Number(seconds, "s"), f"({fmt.percent(seconds / step_s)})")) if seconds else Cell()


def _difference_table(difference: ProfileDifference, top: int) -> Table:
    names = dict.fromkeys((difference.ref.case, difference.new.case))
    rows = [_change_cells(change, difference) for change in difference.changes[:top]]
    remaining = difference.changes[top:]
    if remaining:
        rows.append(
            _sum_cells(
                fmt.count_of(len(remaining), "other"),
                sum(change.change_s for change in remaining),
                difference,
            )
        )
    rows.append(
        _sum_cells(IDLE, difference.idle_change_s, difference, (difference.ref.idle_s, difference.new.idle_s))
    )
    rows.append(
        _sum_cells("total", difference.change_s, difference, (difference.ref.step_s, difference.new.step_s))
    )
    return document.table(rows, title=" → ".join(names), facts=_difference_facts(difference))


def _difference_facts(difference: ProfileDifference) -> Iterator[str]:
    relative = f" ({fmt.signed(difference.change_s / difference.ref.step_s, '%')})"
    yield f"profiled: {_steps_text(difference.ref.step_s, difference.new.step_s)}{relative}"
    if difference.ref.measured_s and difference.new.measured_s:
        yield f"timed: {_steps_text(difference.ref.measured_s, difference.new.measured_s)}"
    if _is_noise(difference):
        yield f"the steps differ by less than {fmt.percent(NOISE)}: nothing to explain"
    elif difference.explained is not None:
        yield f"operators explain {fmt.percent(_rounded(difference.explained))} of the difference"
    for name, side in (("ref", difference.ref), ("new", difference.new)):
        yield from (f"{name}: {note}" for note in side.notes)


def _is_noise(difference: ProfileDifference) -> bool:
    """True if the steps differ by less than `NOISE`."""
    return abs(difference.change_s) < NOISE * difference.ref.step_s


def _steps_text(ref_s: float, new_s: float) -> str:
    """`a step of 1.00 ms → 1.50 ms, +500 µs`."""
    return f"a step of {fmt.seconds(ref_s)} → {fmt.seconds(new_s)}, {fmt.signed(new_s - ref_s, 's')}"


def _change_cells(change: OperatorChange, difference: ProfileDifference) -> Cells:
    return {
        "operator": change.name,
        "kind": change.kind,
        "ref": "–" if change.ref_s is None else number(change.ref_s, "s"),
        "new": "–" if change.new_s is None else number(change.new_s, "s"),
        **_change_of_step(change.change_s, difference),
    }


def _sum_cells(
    name: str, change_s: float, difference: ProfileDifference, sides: tuple[float, float] | None = None
) -> Cells:
    ref, new = (number(seconds, "s") for seconds in sides) if sides else (None, None)
    return {"operator": name, "ref": ref, "new": new, **_change_of_step(change_s, difference)}


def _change_of_step(change_s: float, difference: ProfileDifference) -> Cells:
    """Cells `change` (seconds) and `of the difference` (fraction; empty if the difference is noise)."""
    part = None if _is_noise(difference) else _rounded(change_s / difference.change_s)
    return {"change": Cell((Number(change_s, "s", signed=True),)), "of the difference": number(part, "%")}


def _rounded(share: float) -> float:
    """Share without floating-point residue of a subtraction."""
    return round(share, 6)
