"""The two plots of a report: throughput and latency, a panel per work with an axis of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.metrics import steps_s
from benchbench.analyse.rows import Row, by_case, case_key
from benchbench.documents.plots import Bar, Bars, Plot, Strip, Strips
from benchbench.model.case import Phase
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Run

BARS = "Bars have their 95 % interval over processes, which may run off the axis."
STRIPS = (
    "A dot is a block of steps, a lane is a process, its tick the median; "
    "the diamond is the headline with its 95 % interval over processes, which may run off the axis."
)
NOTHING = "nothing was measured"
Recorded = dict[tuple[str, str], list[Record]]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One work: a row per column of the report, None where a column does not have it."""

    title: str
    rows: tuple[Row | None, ...]


def run_plots(run: Run, works: Sequence[Alternatives]) -> tuple[Plot, ...]:
    """`throughput` and `latency`; what is of one target has one colour in all panels."""
    targets = list(dict.fromkeys(row.case.target for work in works for row in work.rows if row))
    recorded = by_case(run.records)
    return (
        Plot(
            name="throughput",
            title=f"Throughput (more is better); run {run.info.id}",
            reading=BARS,
            empty=NOTHING,
            panels=tuple(_bars(work, targets) for work in works),
        ),
        Plot(
            name="latency",
            title=f"Latency of a step (less is better); run {run.info.id}",
            reading=STRIPS,
            empty=NOTHING,
            panels=tuple(_strips(work, targets, recorded) for work in works),
        ),
    )


def _bars(work: Alternatives, targets: Sequence[str]) -> Bars:
    """FLOP/s of a forward pass, items/s of training; the order of the bars is the same in either unit."""
    present = [row for row in work.rows if row]
    first = next((row for row in present if row.value("latency_s") is not None), None)
    flops = first and first.case.phase == Phase.FORWARD and first.value("flops_per_s") is not None
    metric, unit = ("flops_per_s", "FLOP/s") if flops else ("items_per_s", f"{first.item if first else ''}/s")
    bars = tuple(
        Bar(
            label=_label(row),
            group=targets.index(row.case.target),
            status=_status(row),
            value=row.value(metric),
            low=row.metric(metric).low,
            high=row.metric(metric).high,
        )
        for row in present
    )
    return Bars(title=work.title, unit=unit, bars=bars)


def _strips(work: Alternatives, targets: Sequence[str], recorded: Recorded) -> Strips:
    strips = tuple(
        Strip(
            label=_label(row),
            group=targets.index(row.case.target),
            status=_status(row),
            value=row.value("latency_s"),
            low=row.metric("latency_s").low,
            high=row.metric("latency_s").high,
            processes=_processes(row, recorded),
        )
        for row in work.rows
        if row
    )
    return Strips(title=work.title, strips=strips)


def _label(row: Row) -> str:
    label = f"{row.case.target} {row.case.device} {row.case.mode}".strip()
    return f"{label}, contended" if row.contended else label


def _status(row: Row) -> str:
    """Why there is no value."""
    return row.metric("latency_s").reason if row.ok else str(row.status)


def _processes(row: Row, recorded: Recorded) -> tuple[tuple[float, ...], ...]:
    """Of a case that has a latency: the steps of each."""
    if row.value("latency_s") is None:
        return ()
    outcomes = [record.outcome for record in recorded.get(case_key(row.case), [])]
    return tuple(tuple(steps_s(each)) for each in outcomes if isinstance(each, Measurement))
