"""Tables of operators, and differences between them, as text: for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchbench import format as fmt
from benchbench.documents import lists
from benchbench.exporters.markdown import escaped
from benchbench.profiling.tables import Change, Difference, Row, Table

SCHEMA = 1  # of the JSON. 1: first
Cells = dict[str, str]
IDLE = "no operator"
NOISE = 0.02  # of a step: what two runs of the same differ by, and no operator explains
LONGEST_NAME = 60  # characters of a device kernel: C++ templates have hundreds


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, lines, a table, and lines again."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Cells, ...]
    foot: tuple[str, ...] = ()


def sections(tables: Sequence[Table], top: int, traces: Path) -> Iterator[Section]:
    """The `top` operators of each case; then by kind, for work that several targets did."""
    for table in tables:
        yield _section(table, top, traces)
    for work in dict.fromkeys(table.work for table in tables):
        same = [table for table in tables if table.work == work]
        if len(same) > 1:
            yield _by_kind(work, same)


def differences(found: Sequence[Difference], top: int) -> Iterator[Section]:
    """The `top` operators by what they add to the difference of each pair."""
    for each in found:
        names = dict.fromkeys((each.ref.case, each.new.case))
        rows = [_change_cells(change, each) for change in each.changes[:top]]
        left = each.changes[top:]
        if left:
            rows.append(_sum_cells(_many(len(left), "other"), sum(change.change_s for change in left), each))
        rows.append(_sum_cells(IDLE, each.idle_change_s, each))
        rows.append(_sum_cells("total", each.change_s, each))
        yield Section(" → ".join(names), tuple(_difference_head(each)), tuple(rows))


def terminal(found: Iterator[Section], width: int | None) -> str:
    """Headings, and columns under their names."""
    blocks = []
    for each in found:
        head = [fmt.visible(line) for line in (each.title, *each.head)]
        foot = [fmt.visible(line) for line in each.foot]
        blocks.append(
            "".join(f"{line}\n" for line in head)
            + lists.table(each.rows, width)
            + "".join(f"{line}\n" for line in foot)
        )
    return "\n".join(blocks)


def markdown(found: Iterator[Section]) -> str:
    """Headings and GitHub tables; nothing in a name becomes markup."""

    def shown(text: str) -> str:
        return escaped(fmt.visible(text))

    blocks = []
    for each in found:
        names = list(each.rows[0])
        lines = [names, ["---"] * len(names), *([shown(cell) for cell in row.values()] for row in each.rows)]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        facts = "\n".join(f"- {shown(line)}" for line in (*each.head, *each.foot))
        blocks.append(f"### {shown(each.title)}\n\n{facts}\n\n{table}\n")
    return "\n".join(blocks)


def _section(table: Table, top: int, traces: Path) -> Section:
    rows = [_row_cells(row, table) for row in table.rows[:top]]
    left = table.rows[top:]
    if left:
        rows.append(_total_cells(_many(len(left), "other"), sum(row.self_s for row in left), table))
    rows.append(_total_cells(IDLE, table.idle_s, table))
    rows.append(_total_cells("total", table.step_s, table))
    used = {name for row in rows for name, text in row.items() if text}
    shown = tuple({name: text for name, text in row.items() if name in used} for row in rows)
    return Section(table.case, tuple(_table_head(table)), shown, tuple(_table_foot(table, traces)))


def _table_head(table: Table) -> Iterator[str]:
    yield f"{table.profiler}: a step of {fmt.seconds(table.step_s)}, mean of {table.steps} steps"
    times = ((table.plain_s, "just before"), (table.measured_s, "when it was timed"))
    plain = ", ".join(f"{fmt.seconds(seconds)} {when}" for seconds, when in times if seconds)
    if plain:
        yield f"without the profiler: {plain}"
    gaps, place = table.gaps, "the device was busy" if table.on_device else "operators were running"
    longest = f", the longest {fmt.seconds(gaps.longest_s)}" if gaps.count else ""
    after = f" after {gaps.after}" if gaps.after else ""
    yield f"{place} {fmt.percent(table.busy)} of the time; {_many(gaps.count, 'gap')}{longest}{after}"


def _table_foot(table: Table, traces: Path) -> Iterator[str]:
    if table.memory_peak_bytes is not None:
        yield f"memory of the framework's allocator, at the peak: {fmt.size(table.memory_peak_bytes)}"
    yield from table.notes
    for name in table.traces:
        viewer = "https://ui.perfetto.dev" if ".trace.json" in name else "xprof"
        yield f"trace, for {viewer}: {traces / name}"


def _row_cells(row: Row, table: Table) -> Cells:
    return {
        "operator": row.name,
        "kind": str(row.kind),
        "calls": _count(row.calls),
        "self": fmt.seconds(row.self_s),
        "share": fmt.percent(row.share),
        "total": fmt.seconds(row.total_s),
        "host self": fmt.seconds(row.host_self_s) if table.on_device else "",
        "flop": _maybe(lambda value: fmt.rate(value, "FLOP"), row.flops),
        "bytes": _maybe(fmt.size, row.bytes),
        "allocated": _maybe(fmt.size, row.allocated_bytes),
        "longest kernel": row.kernels[0][:LONGEST_NAME] if row.kernels else "",
    }


def _total_cells(name: str, seconds: float, table: Table) -> Cells:
    empty = dict.fromkeys(_row_cells(table.rows[0], table), "") if table.rows else {}
    return empty | {
        "operator": name,
        "self": fmt.seconds(seconds),
        "share": fmt.percent(seconds / table.step_s),
    }


def _by_kind(work: str, tables: Sequence[Table]) -> Section:
    rows = []
    for kind in dict.fromkeys(kind for table in tables for kind in table.kinds):
        cells = [_kind_cell(table.kinds.get(kind, 0.0), table) for table in tables]
        rows.append({"kind": kind} | _under(tables, cells))
    rows.append({"kind": IDLE} | _under(tables, [_kind_cell(table.idle_s, table) for table in tables]))
    rows.append({"kind": "total"} | _under(tables, [fmt.seconds(table.step_s) for table in tables]))
    return Section(f"{work}, by kind", (), tuple(rows))


def _under(tables: Sequence[Table], cells: Sequence[str]) -> Cells:
    return {
        table.case.removeprefix(f"{table.work}/"): cell for table, cell in zip(tables, cells, strict=True)
    }


def _kind_cell(seconds: float, table: Table) -> str:
    return f"{fmt.seconds(seconds)} ({fmt.percent(seconds / table.step_s)})" if seconds else ""


def _difference_head(found: Difference) -> Iterator[str]:
    relative = f" ({_signed(found.change_s / found.ref.step_s, fmt.percent)})"
    yield f"profiled: {_arrow(found.ref.step_s, found.new.step_s)}{relative}"
    if found.ref.measured_s and found.new.measured_s:
        yield f"timed: {_arrow(found.ref.measured_s, found.new.measured_s)}"
    if _is_noise(found):
        yield f"the steps differ by less than {fmt.percent(NOISE)}: nothing to explain"
    elif found.explained is not None:
        yield f"operators explain {fmt.percent(_rounded(found.explained))} of the difference"
    for name, side in (("ref", found.ref), ("new", found.new)):
        yield from (f"{name}: {note}" for note in side.notes)


def _is_noise(found: Difference) -> bool:
    return abs(found.change_s) < NOISE * found.ref.step_s


def _arrow(ref_s: float, new_s: float) -> str:
    return f"a step of {fmt.seconds(ref_s)} → {fmt.seconds(new_s)}, {_signed(new_s - ref_s, fmt.seconds)}"


def _change_cells(change: Change, found: Difference) -> Cells:
    return {
        "operator": change.name,
        "kind": change.kind,
        "ref": _maybe(fmt.seconds, change.ref_s) or "–",
        "new": _maybe(fmt.seconds, change.new_s) or "–",
        "change": _signed(change.change_s, fmt.seconds),
        "of the difference": _part(change.change_s, found),
    }


def _sum_cells(name: str, change_s: float, found: Difference) -> Cells:
    sides = {
        IDLE: (found.ref.idle_s, found.new.idle_s),
        "total": (found.ref.step_s, found.new.step_s),
    }
    ref, new = (fmt.seconds(each) for each in sides[name]) if name in sides else ("", "")
    return {
        "operator": name,
        "kind": "",
        "ref": ref,
        "new": new,
        "change": _signed(change_s, fmt.seconds),
        "of the difference": _part(change_s, found),
    }


def _part(change_s: float, found: Difference) -> str:
    return "" if _is_noise(found) else fmt.percent(_rounded(change_s / found.change_s))


def _rounded(share: float) -> float:
    """Without what is left of nothing when floats are subtracted."""
    return round(share, 6)


def _signed(value: float, show: Callable[[float], str]) -> str:
    value = round(value, 12)
    return f"{'−' if value < 0 else '+' if value else ''}{show(abs(value))}"


def _maybe(show: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else show(value)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _count(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
