"""Tables of several devices: their speed-up over one, the ranks of a case, the links between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from benchbench.analyse.metrics import Value
from benchbench.analyse.rows import Row, params_text
from benchbench.analyse.scaling import Scaling
from benchbench.analyse.view import RunView
from benchbench.documents import document
from benchbench.documents.document import Cell, Content, Number, SizedValue, Sweep, Sweeps, Table, number
from benchbench.format import ratio
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.note import NoteKind
from benchbench.model.placement import LINK, Strategy
from benchbench.stats import median

RATE = "items_per_s"
IDEAL = "ideal"
Link = tuple[int, int]


def scaling_tables(view: RunView, found: Sequence[Scaling]) -> tuple[Table, ...]:
    """A line for each case of several devices; no table where there is none beside one device."""
    lines = [_scaling_line(view, each) for each in found]
    if not lines:
        return ()
    return (document.table(document.without_empty(lines), title="Several devices beside one"),)


def _scaling_line(view: RunView, scaling: Scaling) -> dict[str, Content]:
    case = scaling.row.case
    memory, slowest = _rank_extremes(view.measured(case))
    return {
        "work": _scaled_work(case),
        "strategy": str(case.placement.strategy),
        "devices": case.placement.devices,
        "beside": f"batch={scaling.single.case.params['batch']}" if scaling.is_weak else "the same on one",
        "rate": _rate(scaling.row),
        "speed-up": _ratio(scaling, scaling.speedup, "×"),
        "efficiency": _ratio(scaling, scaling.efficiency, "%"),
        "communication": number(scaling.row.communication.value, "%"),
        "memory a rank": memory,
        "slowest rank": slowest,
    }


def _scaled_work(case: Case) -> str:
    where = f"{case.target} {case.mode}, {case.device}"
    return f"{case.workload} {params_text(case.params)}".strip() + f" · {case.dtype} · {where}"


def _rate(row: Row) -> Cell:
    """The rate of a row, marked where others took of a device meanwhile, as in the table of its work."""
    value = row.value(RATE)
    parts = (Number(value, f"{row.item}/s"),) if value is not None else ()
    return Cell((*parts, "contended") if parts and row.contended else parts)


def _ratio(scaling: Scaling, value: Value, unit: str) -> Cell:
    """A ratio, in doubt where either time is; without a value, why."""
    if value.value is None:
        return Cell(("–",), footnotes=(value.reason,))
    doubted = bool(scaling.row.doubts or scaling.single.doubts)
    return Cell((Number(value.value, unit, value.low, value.high),), unsure=doubted)


def _rank_extremes(measured: Sequence[Measurement]) -> tuple[Content, Content]:
    """The largest peak of any rank, and which was slowest most often; none where one process drives all."""
    measured = [each for each in measured if each.ranks]
    peaks = [
        rank.peak_host.bytes if rank.peak_device.bytes is None else rank.peak_device.bytes
        for each in measured
        for rank in each.ranks
    ]
    known = [peak for peak in peaks if peak is not None]
    slowest = [
        max(range(len(each.ranks)), key=lambda rank: median(each.ranks[rank].block_s)) for each in measured
    ]
    often = max(set(slowest), key=slowest.count) if slowest else None
    memory = number(max(known), "B") if known else None
    told = None if often is None else f"{often}, {slowest.count(often)} of {len(slowest)} rounds"
    return memory, told


def scaling_panels(found: Sequence[Scaling]) -> list[Sweeps]:
    """Speed-up over devices, a line for each strategy; what is not ranked, or weak scaling, has none."""
    panels: dict[str, dict[tuple[str, str], list[SizedValue]]] = {}
    for each in found:
        if each.efficiency.value is not None and not each.is_weak:
            case, value = each.row.case, each.speedup
            assert value.value is not None
            devices = case.placement.devices
            point = SizedValue(size=devices, value=value.value, low=value.low, high=value.high)
            lines = panels.setdefault(_scaled_work(case), {})
            lines.setdefault((str(case.placement.strategy), case.backend), []).append(point)
    return [_scaling_panel(title, lines) for title, lines in panels.items()]


def _scaling_panel(title: str, lines: dict[tuple[str, str], list[SizedValue]]) -> Sweeps:
    """A panel from one device on, beside the ideal line."""
    one = SizedValue(size=1, value=1.0, low=None, high=None)
    sizes = sorted({point.size for points in lines.values() for point in points})
    ideal = [SizedValue(size=size, value=float(size), low=None, high=None) for size in sizes]
    sweeps = [
        Sweep(label=name, backend=backend, points=(one, *sorted(points, key=lambda point: point.size)))
        for (name, backend), points in lines.items()
    ]
    last = Sweep(label=IDEAL, backend=IDEAL, points=(one, *ideal))
    most = [(sweep.label, sweep.points[-1]) for sweep in sweeps]
    gains = [f"{name} is {ratio(end.value)} as fast on {end.size:g} devices as on one" for name, end in most]
    return Sweeps(title=title, finding="; ".join(gains), axis="devices", unit="×", sweeps=(*sweeps, last))


def rank_tables(view: RunView) -> tuple[Table, ...]:
    """A line for each case that several processes computed, of its first measured round; else no table."""
    lines = []
    for row in view.rows:
        first = next((each for each in view.measured(row.case) if each.ranks), None)
        if row.ok and first:
            strategy = row.case.placement.strategy
            steps = [median(rank.block_s) / first.iterations for rank in first.ranks]
            peaks = [rank.peak_host.bytes for rank in first.ranks if rank.peak_host.bytes is not None]
            # of what is measured idle, the part that a pipeline of equally long stages idles
            shares = [float(each.data["share"]) for each in row.notes if each.kind is NoteKind.PIPELINE]
            lines.append(
                {
                    "case": row.case.id.partition("[")[0],
                    "strategy": None if strategy is Strategy.COLLECTIVE else str(strategy),
                    "ranks": str(len(steps)),
                    "slowest": str(steps.index(max(steps))),
                    "its step": number(max(steps), "s"),
                    "spread": number(row.value("rank_spread"), "×"),
                    "entry skew": number(row.value("entry_skew_s"), "s"),
                    "communication": number(row.communication.value, "%"),
                    "bubble": number(next(iter(shares), None), "%"),
                    "idle": number(row.idle.value, "%"),
                    "memory": number(max(peaks, default=None), "B"),
                }
            )
    return (document.table(document.without_empty(lines), title="Ranks"),) if lines else ()


def link_tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """A table for each target, dtype and size of messages between two ranks; none where no two were alone."""
    found: dict[str, dict[Link, Row]] = {}
    for row in rows:
        named = LINK.fullmatch(str(row.case.params.get("pattern", "")))
        if named and row.case.workload == "send_recv" and row.value("latency_s"):
            case = row.case
            where = f"n={case.params['n']} · {case.dtype} · {case.target} {case.mode} · {case.device}"
            found.setdefault(where, {})[int(named[1]), int(named[2])] = row
    return tuple(_link_table(where, links) for where, links in found.items())


def _link_table(where: str, links: Mapping[Link, Row]) -> Table:
    ranks = range(1 + max(rank for link in links for rank in link))
    cells: dict[Link, Content] = {}
    for link in combinations(ranks, 2):
        if row := links.get(link):
            bandwidth, latency = row.value("link_bytes_per_s"), row.value("latency_s")
            assert bandwidth is not None
            assert latency is not None
            cells[link] = cells[link[::-1]] = Cell((Number(bandwidth, "B/s"), Number(latency, "s")))
    lines = [{"rank": str(one), **{str(other): cells.get((one, other)) for other in ranks}} for one in ranks]
    return document.table(lines, title=f"Links: send_recv {where}")
