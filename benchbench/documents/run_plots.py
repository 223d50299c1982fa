"""Plots of a report: throughput and latency per work, rates over sizes, rooflines and scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby

from benchbench.analyse.roofline import Roofs, case_roofs, device_of
from benchbench.analyse.rows import Row, params_text, unit_of
from benchbench.analyse.scaling import RunView
from benchbench.documents.answers import listed, works_summary
from benchbench.documents.document import (
    Bars,
    Panel,
    Plot,
    Roof,
    Roofline,
    RoofPoint,
    SizedValue,
    Strips,
    Sweep,
    Sweeps,
    paged,
)
from benchbench.documents.run_table import Work, is_undecided, row_mark
from benchbench.format import count_of, share
from benchbench.judging.ranking import EQUIVALENCE, Standing
from benchbench.model.case import Cache, Case, Phase, Scalar
from benchbench.model.run import Run

KNEE_SHARE = 0.95  # of the highest rate: the knee is the smallest size that reaches it
FALLEN = 0.5  # of the highest rate: a largest size with less is reported
MAX_SPANS = 2  # stretches of sizes that are listed
MIN_SIZES = 3  # for a line
MAX_TIED = 3  # parameters that form one size, such as m = n = k
# The first known one is plotted: work and bytes grow with a size.
RATES = ("flops_per_s", "bytes_per_s", "items_per_s")
FALLBACK_RATE = "items_per_s"
UNDECIDED = {
    Standing.OPEN: "undecided",
    Standing.TIED: f"the fastest are within {EQUIVALENCE:.0%} of each other",
}
Sizes = dict[int, Work]  # works by size
Axis = tuple[str, ...]  # parameters with equal values


def size_panels(works: Sequence[Work]) -> list[Sweeps]:
    """Panels for each parameter, or group of equal parameters, that takes at least three values.

    Other parameters are equal within a panel. `works` must have their verdicts.
    """
    swept: dict[tuple[object, Axis], Sizes] = {}
    for work in works:
        case = work.rows[0].case
        for axis in _candidate_axes(case.params):
            swept.setdefault((_fixed_fields(case, axis), axis), {})[int(case.params[axis[0]])] = work
    panels = [
        _size_panel(axis, dict(sorted(sizes.items())))
        for (_, axis), sizes in swept.items()
        if len(sizes) >= MIN_SIZES
    ]
    return [panel for panel in panels if panel.sweeps]


def _candidate_axes(params: Mapping[str, Scalar]) -> Iterator[Axis]:
    """Candidate axes: each integer parameter, and groups of two or three with equal values."""
    numbers = [name for name, value in params.items() if type(value) is int and value > 0]
    yield from ((name,) for name in numbers)
    for value in {params[name] for name in numbers}:
        tied = [name for name in numbers if params[name] == value]
        for count in range(2, MAX_TIED + 1):
            yield from combinations(tied, count)


def _fixed_fields(case: Case, axis: Axis) -> tuple[object, ...]:
    """Fields of the case except the sizes on the axis."""
    params = tuple((name, value) for name, value in case.params.items() if name not in axis)
    return case.suite, case.workload, params, case.dtype, case.phase, case.cache


def _size_panel(axis: Axis, sizes: Sizes) -> Sweeps:
    case = next(iter(sizes.values())).rows[0].case
    fixed = {name: value for name, value in case.params.items() if name not in axis}
    caches = "" if case.cache is Cache.HOT else f"{case.cache} caches"
    head = f"{case.workload}  {params_text(fixed)}".rstrip()
    rows = [row for work in sizes.values() for row in work.rows]
    rates = RATES[1:] if all(row.is_memory_bound_work for row in rows if row.cost) else RATES
    rate = next((name for name in rates if any(row.value(name) is not None for row in rows)), FALLBACK_RATE)
    name, sweeps = " = ".join(axis), tuple(_sweeps(sizes, rate))
    sentences = [*filter(None, (_fastest_text(sizes), _knees_text(sweeps)))]
    return Sweeps(
        title=" · ".join(filter(None, (head, case.dtype, caches))),
        summary=f"over {name}, {sentences[0]}" if sentences else "",
        details="".join(sentences[1:]),
        axis=name,
        unit=next((unit_of(row, rate) for row in rows if row.value(rate) is not None), ""),
        sweeps=sweeps,
    )


def _sweeps(sizes: Sizes, rate: str) -> Iterator[Sweep]:
    """Sweep of each alternative that has a rate, ordered by the rate at its largest size, descending."""
    points: dict[tuple[str, str], list[SizedValue]] = {}
    for size, work in sizes.items():
        for name, row in zip(work.names, work.rows, strict=True):
            value = row.metric(rate)
            if value.value is not None:
                point = SizedValue(
                    size=size,
                    value=value.value,
                    low=value.low,
                    high=value.high,
                    is_undecided=is_undecided(work.ratio_to_fastest(row)),
                )
                points.setdefault((name, row.case.backend), []).append(point)
    for (name, backend), values in sorted(points.items(), key=lambda item: -item[1][-1].value):
        yield Sweep(label=name, backend=backend, points=tuple(values), knee=_knee(values))


def _knee(points: Sequence[SizedValue]) -> SizedValue | None:
    """Smallest size with at least `KNEE_SHARE` of the highest rate; undecided if a smaller one may have it.

    None with fewer than three sizes, or if only the largest size has it, since the rate may rise further.
    """
    highest = max(point.value for point in points)
    index = next(index for index, point in enumerate(points) if point.value >= KNEE_SHARE * highest)
    if len(points) < MIN_SIZES or index == len(points) - 1:
        return None
    may_be_less = index == 0 or _may_reach(points[index - 1], highest)
    return SizedValue(size=points[index].size, value=points[index].value, is_undecided=may_be_less)


def _may_reach(point: SizedValue, highest: float) -> bool:
    """True if the point may reach `KNEE_SHARE` of the highest rate, by the upper end of its interval."""
    return point.high is None or point.high >= KNEE_SHARE * highest


def _fastest_text(sizes: Sizes) -> str:
    """`torch is fastest up to 256, jax from 512; undecided at 384`, or empty."""
    compared = [(size, work.verdict) for size, work in sizes.items() if work.verdict.compared_rivals]
    ends = [size for size, _ in (*compared[:1], *compared[-1:])]
    spans: dict[tuple[Standing, str], list[list[int]]] = {}
    for outcome, group in groupby(compared, key=lambda item: (item[1].standing, item[1].winner)):
        spans.setdefault(outcome, []).append([size for size, _ in group])
    texts = {outcome: _spans_text(stretches, ends, len(compared)) for outcome, stretches in spans.items()}
    won = [(winner, text) for (_, winner), text in texts.items() if winner]
    winners = [f"{name} is fastest {text}" for name, text in won[:1]]
    winners += [f"{name} {text}" for name, text in won[1:]]
    undecided = [f"{UNDECIDED[standing]} {text}" for (standing, winner), text in texts.items() if not winner]
    return "; ".join(filter(None, (", ".join(winners), *undecided)))


def _spans_text(stretches: Sequence[Sequence[int]], ends: Sequence[int], count: int) -> str:
    """`up to 256 and at 1,024`; with more than two stretches only the number of sizes."""
    if len(stretches) > MAX_SPANS:
        return f"at {sum(map(len, stretches))} of {count} sizes"
    return " and ".join(_span_text(stretch[0], stretch[-1], ends) for stretch in stretches)


def _span_text(first: int, last: int, ends: Sequence[int]) -> str:
    """`at every size`, `at 256`, `up to 256`, `from 512` or `from 512 to 1,024`."""
    if [first, last] == ends and first != last:
        return "at every size"
    if first == last:
        return f"at {first:,}"
    if first == ends[0]:
        return f"up to {last:,}"
    return f"from {first:,}" if last == ends[1] else f"from {first:,} to {last:,}"


def _knees_text(sweeps: Sequence[Sweep]) -> str:
    """`the rate stops rising at 512 for torch eager, beyond 1,024 for jax jit`, and where it falls."""
    long = [sweep for sweep in sweeps if len(sweep.points) >= MIN_SIZES]
    labels_by_stop: dict[tuple[float, str], list[str]] = {}
    for sweep in long:
        labels_by_stop.setdefault(_stop_text(sweep), []).append(sweep.label)
    stops = [f"{where} for {listed(names)}" for (_, where), names in sorted(labels_by_stop.items())]
    fallen: dict[float, list[str]] = {}
    for sweep in long:
        ratio = sweep.points[-1].value / max(point.value for point in sweep.points)
        if ratio < FALLEN:
            text = f"{share(float(f'{ratio:.2g}'))} for {sweep.label}"
            fallen.setdefault(sweep.points[-1].size, []).append(text)
    falls = [f"at {size:,.0f} it has fallen to {', '.join(texts)}" for size, texts in fallen.items()]
    return "; ".join(filter(None, (f"the rate stops rising {', '.join(stops)}" if stops else "", *falls)))


def _stop_text(sweep: Sweep) -> tuple[float, str]:
    """Size where the rate stops rising, for sorting, and its text."""
    if sweep.knee:
        return sweep.knee.size, f"at {sweep.knee.size:,.0f}{' or less' * sweep.knee.is_undecided}"
    *_, before, last = sweep.points
    may_be_smaller = _may_reach(before, last.value)
    return last.size, f"at {last.size:,.0f} or beyond" if may_be_smaller else f"beyond {last.size:,.0f}"


CEILINGS, DATASHEET = "ceilings measured here", "datasheet"
Place = tuple[str, int | None, str, int]  # device model, threads, dtype, number of devices


@dataclass
class _Group:
    """The cases of one place, with its rooflines or the reasons for their absence."""

    measured: Roofs
    datasheet: Roofs
    points: list[RoofPoint] = field(default_factory=list)

    @property
    def roofs(self) -> tuple[Roof, ...]:
        """Complete roofs, measured ceilings before the datasheet."""
        return tuple(
            Roof(label=label, flops_per_s=roofs.flops_per_s, bytes_per_s=roofs.bytes_per_s)
            for label, roofs in ((CEILINGS, self.measured), (DATASHEET, self.datasheet))
            if roofs.flops_per_s and roofs.bytes_per_s
        )

    @property
    def why_none(self) -> str:
        """Reasons for the absence of a roof."""
        reasons = [
            reason
            for roofs in (self.measured, self.datasheet)
            for rate, reason in ((roofs.flops_per_s, roofs.no_flops), (roofs.bytes_per_s, roofs.no_bytes))
            if not rate
        ]
        return "; ".join(dict.fromkeys(reasons))


def roofline_panels(view: RunView, works: Sequence[Work]) -> tuple[list[Roofline], str]:
    """Panels for each device and dtype with a known roof, and the reasons for the missing panels."""
    groups: dict[Place, _Group] = {}
    for work in works:
        for row, name in zip(work.rows, work.names, strict=True):
            if point := _roof_point(work, row, name):
                place = _place(view, row)
                if place not in groups:
                    groups[place] = _Group(
                        *case_roofs(view.run.info, row.case, row.device_name, view.ceilings)
                    )
                groups[place].points.append(point)
    panels = [
        Roofline(
            title=_place_title(place),
            summary=_summary_text(group.roofs[0], group.points),
            roofs=group.roofs,
            points=tuple(group.points),
        )
        for place, group in groups.items()
        if group.roofs
    ]
    missing_panels = [
        f"{_place_title(place)}: {group.why_none}" for place, group in groups.items() if not group.roofs
    ]
    return panels, ". ".join(missing_panels)


def _place(view: RunView, row: Row) -> Place:
    model, threads = device_of(view.run.info, row.case, row.device_name)
    return model or row.case.device, threads, str(row.case.computes_in.compute), row.case.hardware_count


def _place_title(place: Place) -> str:
    """`float32 · Example CPU, 2 threads`."""
    model, threads, dtype, count = place
    several = (count_of(threads, "thread") if threads else "", f"{count} devices" if count > 1 else "")
    return f"{dtype} · {', '.join(filter(None, (model, *several)))}"


def _roof_point(work: Work, row: Row, name: str) -> RoofPoint | None:
    """Point of a case; None without a speed or a known intensity, and for user functions."""
    rate, intensity = row.metric("flops_per_s"), row.position.flops_per_byte
    if not row.ok or row.case.dtype is None or rate.value is None or intensity is None:
        return None
    return RoofPoint(
        label=name,
        work=" ".join(work.short_title.partition(" · ")[0].split()),
        backend=row.case.backend,
        flops_per_byte=intensity,
        value=rate.value,
        low=rate.low,
        high=rate.high,
        is_undecided=bool(row.doubts),
    )


def _summary_text(roof: Roof, points: Sequence[RoofPoint]) -> str:
    """`torch eager comes closest to the roof, 82 % in gemm m=1024; memory bounds 3 of 9 works`."""
    shares = {
        point: point.value / roof.at(point.flops_per_byte) for point in points if not point.is_undecided
    }
    below = {point: ratio for point, ratio in shares.items() if ratio <= 1}
    by_memory = {point.work: roof.at(point.flops_per_byte) < roof.flops_per_s for point in points}
    above = {point.work for point, ratio in shares.items() if ratio > 1}
    best = max(below, key=lambda point: below[point], default=None)
    bound = f"memory bounds {sum(by_memory.values())} of {count_of(len(by_memory), 'work')}"
    parts = [
        f"{best.label} comes closest to the roof, with {share(round(below[best], 2))} of it in {best.work}"
        if best
        else "",
        f"{count_of(len(above), 'work')} above the roof" if above else "",
        bound,
    ]
    return "; ".join(filter(None, parts))


INTERVALS = "with its 95 % interval over processes, which may run off the axis"
HOLLOW = "Hollow marks are not significant: rounds, other programs or warm-up may explain the difference."
BARS = f"A bar is a rate {INTERVALS}; the fastest is first. {HOLLOW}"
STRIPS = (
    "A dot is a block of steps, a lane is a process, its tick the median; "
    f"the diamond is the headline {INTERVALS}. The fastest is first. {HOLLOW}"
)
LINES = (
    "Both axes are logarithmic. A line at a point is the 95 % interval over processes. A ring is the knee, "
    f"the smallest size with {KNEE_SHARE:.0%} of the highest rate; dashed, a smaller one may have it. "
    f"{HOLLOW}"
)
SPEEDUPS = (
    "Both axes are logarithmic. A point is the rate over that of one device in the same rounds, its line the "
    "95 % interval; on the ideal line each device adds as much as the first."
)
LATENCY = "Latency of a step (less is better)"
ROOFS = (
    "Both axes are logarithmic: FLOP/s over the FLOPs for each byte that must move. The line is the roof: "
    "the limits of memory and arithmetic; dashed, those of the datasheet. Data in a cache may exceed it. A "
    "mark is a case. Hollow marks are in doubt: other programs ran, or the case was still warming up."
)
ROOFLINE = "How near to the roof (more is better)"
SIZES = "Rate over sizes (more is better)"
NOTHING = "nothing was measured"
TITLES = {  # of the pictures of rates
    "throughput": "Throughput (more is better)",
    "bandwidth": "Bandwidth (more is better)",
    "training": "Training rate (more is better)",
}
UNITS = {"flops_per_s": "FLOP/s", "bytes_per_s": "B/s", "link_bytes_per_s": "B/s"}
MAX_TITLE = 60  # characters of a workload with its parameters, above a panel


def run_plots(view: RunView, works: Sequence[Work], scaling: Sequence[Panel] = ()) -> tuple[Plot, ...]:
    """The plots `throughput`, `bandwidth`, `training`, `latency`, `sizes`, `roofline` and `scaling`, if any.

    `scaling` has panels over numbers of devices.
    """
    facts = tuple(_facts(view.run, [row for work in works for row in work.rows]))

    def plots(name: str, title: str, reading: str, panels: Sequence[Panel]) -> tuple[Plot, ...]:
        return paged(
            Plot(name=name, title=title, facts=facts, reading=reading, empty=NOTHING, panels=tuple(panels))
        )

    def add_ranking(
        name: str, subject: str, reading: str, plotted: Sequence[Work], panels: Sequence[Panel]
    ) -> None:
        """Add plots of alternatives; their title is the summary of the works if they are compared."""
        compared = [work for work in plotted if work.verdict.compared_rivals]
        common = _shared_parts([work.title for work in plotted])
        for plot in plots(name, str(works_summary(compared)) if compared else subject, reading, panels):
            shared = " · ".join((*([subject] if compared else []), *common))
            all_plots.append(replace(plot, shared=shared, panels=tuple(_without_parts(common, plot.panels))))

    all_plots: list[Plot] = []
    for name, title in TITLES.items():
        plotted = [work for work in works if _rate_plot_of(work) == name]
        if plotted or (name == "throughput" and not works):
            reading = " ".join([BARS, *_elsewhere(name, works)])
            panels = [_bars(work, _bar_metric(work, name)) for work in plotted]
            add_ranking(name, title, reading, plotted, panels)
    add_ranking("latency", LATENCY, STRIPS, works, [_strips(work, view) for work in works])
    if lines := size_panels(works):
        all_plots += _titled(plots("sizes", SIZES, LINES, lines), lines)
    roofs, why_none = roofline_panels(view, works)
    reading = f"{ROOFS} Not drawn: {why_none}." if why_none else ROOFS
    if roofs or why_none:
        titled = _titled(plots("roofline", ROOFLINE, reading, roofs), roofs)
        all_plots += [replace(plot, empty=why_none) for plot in titled]
    if scaling:
        all_plots += plots("scaling", "Speed-up over one device (more is better)", SPEEDUPS, scaling)
    return tuple(all_plots)


def _titled(plots: Sequence[Plot], panels: Sequence[Sweeps | Roofline]) -> list[Plot]:
    """Set the title to the summary of the panel if there is only one."""
    if len(panels) != 1 or not panels[0].summary:
        return list(plots)
    return [replace(plot, title=panels[0].summary, shared=plot.title) for plot in plots]


def _shared_parts(titles: Sequence[str]) -> tuple[str, ...]:
    """Trailing parts (separated by ` · `) that all titles share: `float32`, `cpu`."""
    ends = [tuple(title.split(" · ")[1:]) for title in titles]
    return tuple(part for part in ends[0] if all(part in end for end in ends)) if ends else ()


def _without_parts(common: Sequence[str], panels: Sequence[Panel]) -> Iterator[Panel]:
    """Remove the shared parts from the titles of panels."""
    for panel in panels:
        head, *context = panel.title.split(" · ")
        title = " · ".join((head, *(part for part in context if part not in common)))
        yield replace(panel, title=title)


def _facts(run: Run, rows: Sequence[Row]) -> Iterator[str]:
    """Hardware, versions and date of the run."""
    info, machine = run.info, run.info.machine
    devices = {f"{row.case.device}: {row.device_name}" for row in rows if row.device_name}
    versions = {f"{row.case.target} {row.framework_version}" for row in rows if row.framework_version}
    yield "; ".join(
        (
            f"{machine.cpu}, {info.settings.threads} of {count_of(machine.threads, 'thread')}",
            *sorted(devices - {f"cpu: {machine.cpu}"}),
        )
    )
    if versions:
        yield ", ".join(sorted(versions))
    yield f"{info.started}, run {info.id}"


def _rate_plot_of(work: Work) -> str:
    """Name of the throughput plot for a work: `training`, `bandwidth` (memory-bound) or `throughput`."""
    if any(row.case.phase is Phase.TRAIN for row in work.rows):
        return "training"
    moves = any(row.is_memory_bound_work and row.value(row.rate_metric) is not None for row in work.rows)
    return "bandwidth" if moves else "throughput"


def _elsewhere(plot: str, works: Sequence[Work]) -> list[str]:
    """Sentence with the works that other plots of rates show."""
    names: dict[str, dict[str, None]] = {}
    for work in works:
        if (other := _rate_plot_of(work)) != plot:
            names.setdefault(other, {})[work.rows[0].case.workload] = None
    texts = [f"{', '.join(workloads)} (plot {other})" for other, workloads in names.items()]
    return [f"Not in this plot: {'; '.join(texts)}."] if texts else []


def _bar_metric(work: Work, plot: str) -> str:
    """Metric of the bars of a work, the same as in its table."""
    if plot == "training":
        return "items_per_s"
    moving = [row.rate_metric for row in work.rows if row.is_memory_bound_work]
    return moving[0] if plot == "bandwidth" else "flops_per_s"


def _bars(work: Work, metric: str) -> Bars:
    items = {row.item for row in work.rows if row.item}
    unit = UNITS.get(metric, f"{' or '.join(sorted(items)) or 'item'}/s")
    marks = [row_mark(row, name, metric, work) for name, row in zip(work.names, work.rows, strict=True)]
    marks.sort(key=lambda mark: math.inf if mark.value is None else -mark.value)
    return Bars(title=_panel_title(work), unit=unit, marks=tuple(marks))


def _strips(work: Work, view: RunView) -> Strips:
    marks = [
        row_mark(row, name, "latency_s", work, view) for name, row in zip(work.names, work.rows, strict=True)
    ]
    marks.sort(key=lambda mark: math.inf if mark.value is None else mark.value)
    return Strips(title=_panel_title(work), marks=tuple(marks))


def _panel_title(work: Work) -> str:
    """The work's title, or its short title if the first part is too long for a panel."""
    return work.title if len(work.title.partition(" · ")[0]) <= MAX_TITLE else work.short_title
