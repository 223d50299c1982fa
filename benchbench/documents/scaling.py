"""Several devices beside one, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.analyse.metrics import Value
from benchbench.analyse.rows import Row, by_case, case_key, params_text
from benchbench.analyse.scaling import Scaling
from benchbench.documents import document
from benchbench.documents.document import Cell, Content, Number, Table, number
from benchbench.documents.plots import SizedValue, Sweep, Sweeps
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement, Memory
from benchbench.model.run import Run
from benchbench.stats import median

RATE = "items_per_s"
IDEAL = "ideal"


def scaling_tables(run: Run, found: Sequence[Scaling]) -> tuple[Table, ...]:
    """A line for each case of several devices; no table where there is none beside one device."""
    lines = [_line(run, each) for each in found]
    if not lines:
        return ()
    return (document.table(document.without_empty(lines), title="Several devices beside one"),)


def _line(run: Run, scaling: Scaling) -> dict[str, Content]:
    case = scaling.row.case
    memory, slowest = _ranks(run, case)
    return {
        "work": _work(case),
        "strategy": str(case.placement.strategy),
        "devices": case.placement.devices,
        "beside": f"batch={scaling.alone.case.params['batch']}" if scaling.weak else "the same on one",
        "rate": _rate(scaling.row),
        "speed-up": _ratio(scaling, scaling.speedup, "×"),
        "efficiency": _ratio(scaling, scaling.efficiency, "%"),
        "communication": number(scaling.row.communication.value, "%"),
        "memory a rank": memory,
        "slowest rank": slowest,
    }


def _work(case: Case) -> str:
    where = f"{case.target} {case.mode}, {case.device}"
    return f"{case.workload} {params_text(case.params)}".strip() + f" · {case.dtype} · {where}"


def _rate(row: Row) -> Cell:
    """Marked where others took of a device meanwhile, as the time is in the table of its work."""
    value = row.value(RATE)
    parts = (Number(value, f"{row.item}/s"),) if value is not None else ()
    return Cell((*parts, "contended") if parts and row.contended else parts)


def _ratio(scaling: Scaling, value: Value, unit: str) -> Cell:
    """In doubt where either time is; without a value, why."""
    if value.value is None:
        return Cell(("–",), footnotes=(value.reason,))
    doubted = bool(scaling.row.doubts or scaling.alone.doubts)
    return Cell((Number(value.value, unit, value.low, value.high),), unsure=doubted)


def _ranks(run: Run, case: Case) -> tuple[Content, Content]:
    """The largest peak of any, and which was slowest most often; none where one process drives all."""
    outcomes = [record.outcome for record in by_case(run.records).get(case_key(case), ())]
    measured = [each for each in outcomes if isinstance(each, Measurement) and each.ranks]
    peaks = [_peak(rank.peak_device, rank.peak_host) for each in measured for rank in each.ranks]
    known = [peak for peak in peaks if peak is not None]
    slowest = [
        max(range(len(each.ranks)), key=lambda rank: median(each.ranks[rank].block_s)) for each in measured
    ]
    often = max(set(slowest), key=slowest.count) if slowest else None
    memory = number(max(known), "B") if known else None
    told = None if often is None else f"{often}, {slowest.count(often)} of {len(slowest)} rounds"
    return memory, told


def _peak(device: Memory, host: Memory) -> int | None:
    return host.bytes if device.bytes is None else device.bytes


def scaling_panels(found: Sequence[Scaling]) -> list[Sweeps]:
    """Speed-up over devices, a line for each strategy; what is not ranked, or weak scaling, has none."""
    panels: dict[str, dict[tuple[str, str], list[SizedValue]]] = {}
    for each in found:
        if each.efficiency.value is not None and not each.weak:
            case, value = each.row.case, each.speedup
            assert value.value is not None
            devices = case.placement.devices
            point = SizedValue(size=devices, value=value.value, low=value.low, high=value.high)
            lines = panels.setdefault(_work(case), {})
            lines.setdefault((str(case.placement.strategy), case.backend), []).append(point)
    return [_panel(title, lines) for title, lines in panels.items()]


def _panel(title: str, lines: dict[tuple[str, str], list[SizedValue]]) -> Sweeps:
    """From one device on, beside the ideal line."""
    one = SizedValue(size=1, value=1.0, low=None, high=None)
    sizes = sorted({point.size for points in lines.values() for point in points})
    ideal = [SizedValue(size=size, value=float(size), low=None, high=None) for size in sizes]
    sweeps = [
        Sweep(label=name, backend=backend, points=(one, *sorted(points, key=lambda point: point.size)))
        for (name, backend), points in lines.items()
    ]
    last = Sweep(label=IDEAL, backend=IDEAL, points=(one, *ideal))
    return Sweeps(title=title, axis="devices", unit="×", sweeps=(*sweeps, last))
