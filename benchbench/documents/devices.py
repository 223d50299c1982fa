"""Tables of several devices: speed-up over one device, ranks of a case, and links between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from benchbench.analyse.metrics import Value
from benchbench.analyse.rows import Row, params_text
from benchbench.analyse.scaling import RunView, Scaling
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


def scaling_tables(view: RunView, scalings: Sequence[Scaling]) -> tuple[Table, ...]:
    """Table with a row per case on several devices; empty without a reference on one device."""
    lines = [_scaling_line(view, scaling) for scaling in scalings]
    if not lines:
        return ()
    return (document.table(document.without_empty(lines), title="Several devices beside one"),)


def _scaling_line(view: RunView, scaling: Scaling) -> dict[str, Content]:
    case = scaling.row.case
    memory, slowest = _rank_extremes(view.measured(case))
    return {
        "work": _scaled_work_title(case),
        "strategy": str(case.placement.strategy),
        "devices": case.placement.devices,
        "beside": f"batch={scaling.single.case.params['batch']}" if scaling.is_weak else "the same on one",
        "rate": _rate_cell(scaling.row),
        "speed-up": _ratio_cell(scaling, scaling.speedup, "×"),
        "efficiency": _ratio_cell(scaling, scaling.efficiency, "%"),
        "communication": number(scaling.row.communication.value, "%"),
        "memory a rank": memory,
        "slowest rank": slowest,
    }


def _scaled_work_title(case: Case) -> str:
    placement = f"{case.target} {case.mode}, {case.device}"
    return f"{case.workload} {params_text(case.params)}".strip() + f" · {case.dtype} · {placement}"


def _rate_cell(row: Row) -> Cell:
    """Rate of a row, marked as contended like in the table of its work."""
    value = row.value(RATE)
    parts = (Number(value, f"{row.item}/s"),) if value is not None else ()
    return Cell((*parts, "contended") if parts and row.contended else parts)


def _ratio_cell(scaling: Scaling, value: Value, unit: str) -> Cell:
    """Cell of a ratio, unsure if either time is in doubt; a dash and a footnote if it is missing."""
    if value.value is None:
        return Cell(("–",), footnotes=(value.reason,))
    is_doubted = bool(scaling.row.doubts or scaling.single.doubts)
    return Cell((Number(value.value, unit, value.low, value.high),), unsure=is_doubted)


def _rank_extremes(measurements: Sequence[Measurement]) -> tuple[Content, Content]:
    """Largest peak memory of any rank, and the most frequent slowest rank; None for single processes."""
    measurements = [measurement for measurement in measurements if measurement.ranks]
    peaks = [
        rank.peak_host.bytes if rank.peak_device.bytes is None else rank.peak_device.bytes
        for measurement in measurements
        for rank in measurement.ranks
    ]
    known_peaks = [peak for peak in peaks if peak is not None]
    slowest = [
        max(range(len(measurement.ranks)), key=lambda rank: median(measurement.ranks[rank].block_s))
        for measurement in measurements
    ]
    often = max(set(slowest), key=slowest.count) if slowest else None
    memory = number(max(known_peaks), "B") if known_peaks else None
    text = None if often is None else f"{often}, {slowest.count(often)} of {len(slowest)} rounds"
    return memory, text


def scaling_panels(scalings: Sequence[Scaling]) -> list[Sweeps]:
    """Panels of speed-up over devices with a line per strategy; without weak scaling and unranked cases."""
    panels: dict[str, dict[tuple[str, str], list[SizedValue]]] = {}
    for scaling in scalings:
        if scaling.efficiency.value is not None and not scaling.is_weak:
            case, value = scaling.row.case, scaling.speedup
            assert value.value is not None
            devices = case.placement.devices
            point = SizedValue(size=devices, value=value.value, low=value.low, high=value.high)
            lines = panels.setdefault(_scaled_work_title(case), {})
            lines.setdefault((str(case.placement.strategy), case.backend), []).append(point)
    return [_scaling_panel(title, lines) for title, lines in panels.items()]


def _scaling_panel(title: str, lines: dict[tuple[str, str], list[SizedValue]]) -> Sweeps:
    """Panel that starts at one device and includes the ideal line."""
    one = SizedValue(size=1, value=1.0, low=None, high=None)
    sizes = sorted({point.size for points in lines.values() for point in points})
    ideal = [SizedValue(size=size, value=float(size), low=None, high=None) for size in sizes]
    sweeps = [
        Sweep(label=name, backend=backend, points=(one, *sorted(points, key=lambda point: point.size)))
        for (name, backend), points in lines.items()
    ]
    last = Sweep(label=IDEAL, backend=IDEAL, points=(one, *ideal))
    ends = [(sweep.label, sweep.points[-1]) for sweep in sweeps]
    gains = [f"{name} is {ratio(end.value)} as fast on {end.size:g} devices as on one" for name, end in ends]
    return Sweeps(title=title, summary="; ".join(gains), axis="devices", unit="×", sweeps=(*sweeps, last))


def rank_tables(view: RunView) -> tuple[Table, ...]:
    """Table with a row per case with several ranks, from its first measured round; empty without any."""
    lines = []
    for row in view.rows:
        first = next((measurement for measurement in view.measured(row.case) if measurement.ranks), None)
        if row.ok and first:
            strategy = row.case.placement.strategy
            steps = [median(rank.block_s) / first.iterations for rank in first.ranks]
            peaks = [rank.peak_host.bytes for rank in first.ranks if rank.peak_host.bytes is not None]
            # the idle share of a pipeline with stages of equal length
            shares = [float(note.data["share"]) for note in row.notes if note.kind is NoteKind.PIPELINE]
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
    """Tables of the links between pairs of ranks, one for each target, dtype and message size."""
    links_by_group: dict[str, dict[Link, Row]] = {}
    for row in rows:
        pattern = LINK.fullmatch(str(row.case.params.get("pattern", "")))
        if pattern and row.case.workload == "send_recv" and row.value("latency_s"):
            case = row.case
            group = f"n={case.params['n']} · {case.dtype} · {case.target} {case.mode} · {case.device}"
            links_by_group.setdefault(group, {})[int(pattern[1]), int(pattern[2])] = row
    return tuple(_link_table(group, links) for group, links in links_by_group.items())


def _link_table(group: str, links: Mapping[Link, Row]) -> Table:
    ranks = range(1 + max(rank for link in links for rank in link))
    cells: dict[Link, Content] = {}
    for link in combinations(ranks, 2):
        if row := links.get(link):
            bandwidth, latency = row.value("link_bytes_per_s"), row.value("latency_s")
            assert bandwidth is not None
            assert latency is not None
            cells[link] = cells[link[::-1]] = Cell((Number(bandwidth, "B/s"), Number(latency, "s")))
    lines = [{"rank": str(one), **{str(other): cells.get((one, other)) for other in ranks}} for one in ranks]
    return document.table(lines, title=f"Links: send_recv {group}")
