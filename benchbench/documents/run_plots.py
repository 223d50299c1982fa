"""The plots of a report: throughput, latency, and latency over sizes; a panel per work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from benchbench.analyse.rows import Row, case_key, params_text
from benchbench.analyse.view import RunView
from benchbench.documents.document import (
    Bar,
    Bars,
    Panel,
    Plot,
    SizedValue,
    Strip,
    Strips,
    Sweep,
    Sweeps,
    paged,
)
from benchbench.documents.run_overview import summary
from benchbench.documents.run_table import Work, is_open
from benchbench.model.case import Cache, Case, Phase, Scalar
from benchbench.model.run import Run

INTERVALS = "with its 95 % interval over processes, which may run off the axis"
HOLLOW = "What is hollow decides nothing: what differs between rounds, others, or warming up may explain it."
BARS = f"A bar is a rate {INTERVALS}; the fastest is first. {HOLLOW}"
STRIPS = (
    "A dot is a block of steps, a lane is a process, its tick the median; "
    f"the diamond is the headline {INTERVALS}. The fastest is first. {HOLLOW}"
)
LINES = "Both axes are logarithmic. A line at each point is the 95 % interval over processes."
SPEEDUPS = (
    "Both axes are logarithmic. A point is the rate over that of one device in the same rounds, its line the "
    "95 % interval; on the ideal line each device adds as much as the first."
)
LATENCY = "Latency of a step (less is better)"
NOTHING = "nothing was measured"
RATES = {"throughput": "flops_per_s", "bandwidth": "bytes_per_s", "training": "items_per_s"}
TITLES = {
    "throughput": "Throughput (more is better)",
    "bandwidth": "Bandwidth (more is better)",
    "training": "Training rate (more is better)",
}
UNITS = {"flops_per_s": "FLOP/s", "bytes_per_s": "B/s"}
MOST_TITLE = 60  # characters of a workload with its parameters, above a panel
LEAST = 3  # sizes that make a line
MOST_TIED = 3  # parameters that are one size, as m = n = k
Sizes = dict[int, Work]  # size → the work that has it
Axis = tuple[str, ...]  # parameters of one value


def run_plots(view: RunView, works: Sequence[Work], scaling: Sequence[Panel] = ()) -> tuple[Plot, ...]:
    """The plots `throughput`, `bandwidth` of what computes nothing, `training`, `latency`, and `sizes`.

    `scaling`: panels over numbers of devices.
    """
    facts = tuple(_facts(view.run, [row for work in works for row in work.rows]))

    def plots(name: str, title: str, reading: str, panels: Sequence[Panel]) -> tuple[Plot, ...]:
        return paged(
            Plot(name=name, title=title, facts=facts, reading=reading, empty=NOTHING, panels=tuple(panels))
        )

    def ranking(name: str, what: str, reading: str, own: Sequence[Work], panels: Sequence[Panel]) -> None:
        """Pictures of alternatives: their title is who is fastest."""
        compared = [work for work in own if work.verdict.others]
        common = _common([work.title for work in own])
        for plot in plots(name, str(summary(compared)) if compared else what, reading, panels):
            shared = " · ".join((*([what] if compared else []), *common))
            made.append(replace(plot, shared=shared, panels=tuple(_without(common, plot.panels))))

    made: list[Plot] = []
    for name, metric in RATES.items():
        own = [work for work in works if _rate_of(work) == name]
        if own or (name == "throughput" and not works):
            ranking(name, TITLES[name], BARS, own, [_bars(work, metric) for work in own])
    ranking("latency", LATENCY, STRIPS, works, [_strips(work, view) for work in works])
    if lines := size_panels(works):
        made += plots("sizes", "Latency of a step over sizes (less is better)", LINES, lines)
    if scaling:
        made += plots("scaling", "Speed-up over one device (more is better)", SPEEDUPS, scaling)
    return tuple(made)


def _common(titles: Sequence[str]) -> tuple[str, ...]:
    """What all titles end in, of the parts between ` · `: `float32`, `cpu`."""
    ends = [tuple(title.split(" · ")[1:]) for title in titles]
    return tuple(part for part in ends[0] if all(part in end for end in ends)) if ends else ()


def _without(common: Sequence[str], panels: Sequence[Panel]) -> Iterator[Panel]:
    """The panels, their titles without what all have in common."""
    for panel in panels:
        head, *context = panel.title.split(" · ")
        title = " · ".join((head, *(part for part in context if part not in common)))
        yield replace(panel, title=title)


def _facts(run: Run, shown: Sequence[Row]) -> Iterator[str]:
    """Where, with what, and when the run was measured."""
    info, machine = run.info, run.info.machine
    devices = {f"{row.case.device}: {row.device_name}" for row in shown if row.device_name}
    versions = {f"{row.case.target} {row.framework_version}" for row in shown if row.framework_version}
    yield "; ".join(
        (
            f"{machine.cpu}, {info.settings.threads} of {machine.threads} threads",
            *sorted(devices - {f"cpu: {machine.cpu}"}),
        )
    )
    if versions:
        yield ", ".join(sorted(versions))
    yield f"{info.started}, run {info.id}"


def _rate_of(work: Work) -> str:
    """The plot a work is in: of items/s if it trains, of FLOP/s, or of B/s where it computes nothing."""
    if any(row.case.phase is Phase.TRAIN for row in work.rows):
        return "training"
    computes = any(row.value("flops_per_s") is not None for row in work.rows)
    moves = any(row.value("bytes_per_s") is not None for row in work.rows)
    return "bandwidth" if moves and not computes else "throughput"


def _bars(work: Work, metric: str) -> Bars:
    items = {row.item for row in work.rows if row.item}
    bars = [
        Bar(
            label=name,
            backend=row.case.backend,
            status=_status(row),
            is_open=is_open(work.beside(row)),
            value=row.value(metric),
            low=row.metric(metric).low,
            high=row.metric(metric).high,
        )
        for name, row in zip(work.names, work.rows, strict=True)
    ]
    unit = UNITS.get(metric, f"{' or '.join(sorted(items)) or 'item'}/s")
    return Bars(
        title=_panel_title(work),
        unit=unit,
        bars=tuple(sorted(bars, key=lambda bar: math.inf if bar.value is None else -bar.value)),
    )


def _strips(work: Work, view: RunView) -> Strips:
    strips = [
        Strip(
            label=name,
            backend=row.case.backend,
            status=_status(row),
            is_open=is_open(work.beside(row)),
            value=row.value("latency_s"),
            low=row.metric("latency_s").low,
            high=row.metric("latency_s").high,
            processes=_processes(row, view),
        )
        for name, row in zip(work.names, work.rows, strict=True)
    ]
    return Strips(
        title=_panel_title(work),
        strips=tuple(sorted(strips, key=lambda bar: math.inf if bar.value is None else bar.value)),
    )


def _panel_title(work: Work) -> str:
    """The work's title; where that fills more than a line, only what tells it from the others."""
    return work.title if len(work.title.partition(" · ")[0]) <= MOST_TITLE else work.short_title


def _status(row: Row) -> str:
    """Why the bar has no value."""
    return row.metric("latency_s").reason if row.ok else str(row.status)


def _processes(row: Row, view: RunView) -> tuple[tuple[float, ...], ...]:
    """The steps of each process, whether or not these agree."""
    return view.steps.get(case_key(row.case), ()) if row.ok else ()


def size_panels(works: Sequence[Work]) -> list[Sweeps]:
    """A panel for each parameter, or parameters of one value, that alone tells three works apart or more."""
    swept: dict[tuple[object, Axis], Sizes] = {}
    for work in works:
        case = work.rows[0].case
        for axis in _axes(case.params):
            swept.setdefault((_rest(case, axis), axis), {})[int(case.params[axis[0]])] = work
    return [
        _panel(axis, dict(sorted(sizes.items()))) for (_, axis), sizes in swept.items() if len(sizes) >= LEAST
    ]


def _axes(params: Mapping[str, Scalar]) -> Iterator[Axis]:
    """Parameters that may be a size: each whole number, and two or three of one value."""
    numbers = [name for name, value in params.items() if type(value) is int and value > 0]
    yield from ((name,) for name in numbers)
    for value in {params[name] for name in numbers}:
        same = [name for name in numbers if params[name] == value]
        for count in range(2, MOST_TIED + 1):
            yield from combinations(same, count)


def _rest(case: Case, axis: Axis) -> tuple[object, ...]:
    """What else tells the work from others, besides the sizes on the axis."""
    params = tuple((name, value) for name, value in case.params.items() if name not in axis)
    return case.suite, case.workload, params, case.dtype, case.phase, case.cache


def _panel(axis: Axis, sizes: Sizes) -> Sweeps:
    case = next(iter(sizes.values())).rows[0].case
    fixed = {name: value for name, value in case.params.items() if name not in axis}
    caches = "" if case.cache is Cache.HOT else f"{case.cache} caches"
    head = f"{case.workload}  {params_text(fixed)}".rstrip()
    return Sweeps(
        title=" · ".join(filter(None, (head, case.dtype, caches))),
        axis=" = ".join(axis),
        unit="s",
        sweeps=tuple(_sweeps(sizes)),
    )


def _sweeps(sizes: Sizes) -> Iterator[Sweep]:
    """A line for each alternative that has a latency; the uppermost at the right end comes first."""
    points: dict[tuple[str, str], list[SizedValue]] = {}
    for size, work in sizes.items():
        for name, row in zip(work.names, work.rows, strict=True):
            latency = row.metric("latency_s")
            if latency.value is not None:
                point = SizedValue(size=size, value=latency.value, low=latency.low, high=latency.high)
                points.setdefault((name, row.case.backend), []).append(point)
    for (name, backend), found in sorted(points.items(), key=lambda item: -item[1][-1].value):
        yield Sweep(label=name, backend=backend, points=tuple(found))
