"""The two plots: a panel per work with an axis of its own, a row per column of the report.

Text from data is never parsed as maths, and the same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

from benchbench import format as fmt
from benchbench.documents.run import Cell, Column, Group, Report
from benchbench.exporters._drawing import COLOURS
from benchbench.exporters._old_figure import image
from benchbench.model.case import Phase
from benchbench.stats import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Rows = list[tuple[Cell, Column, str]]  # with the column's colour
    Draw = Callable[[Axes, Rows], None]

PANEL = 5.5  # inches wide
AROUND = 0.95  # inches of a panel's title, axis and margins
CUT = 2  # two processes that differ can give an interval of any length; the bars stay readable
WIDE = 10  # a latency axis is logarithmic when its ends are this many times apart
BARS = "Bars have their 95 % interval over processes, which may run off the axis."
STRIPS = (
    "A dot is a block of steps, a lane is a process, its tick the median; "
    "the diamond is the headline with its 95 % interval over processes, which may run off the axis."
)


def files(report: Report, extension: str) -> dict[str, bytes]:
    """`throughput` and `latency`, as matplotlib writes that extension."""
    return {f"{name}.{extension}": _image(report, extension, plot) for name, plot in _plots().items()}


@dataclass(frozen=True, slots=True)
class _Plot:
    draw: Draw
    row: float  # inches
    title: str
    reading: str


def _plots() -> dict[str, _Plot]:
    return {
        "throughput": _Plot(_bars, 0.27, "Throughput (more is better)", BARS),
        "latency": _Plot(_strips, 0.45, "Latency of a step (less is better)", STRIPS),
    }


def _image(report: Report, extension: str, plot: _Plot) -> bytes:
    title = f"{plot.title}; run {fmt.visible(report.info.id)}"
    return image(lambda: _figure(report, plot), title, plot.reading, extension)


def _figure(report: Report, plot: _Plot) -> Figure:
    """Panels in two columns; one if there is one work."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.03)
    across = min(2, max(1, len(report.groups)))
    starts = range(0, len(report.groups), across)
    heights = [AROUND + plot.row * max(map(_count, report.groups[i : i + across])) for i in starts]
    figure = Figure(figsize=(PANEL * across, sum(heights, start=0.8)), layout=layout)
    if not heights:
        figure.text(0.5, 0.5, "nothing was measured", ha="center")
        return figure
    grid = figure.subplots(len(heights), across, squeeze=False, height_ratios=heights)
    for axes, group in zip(grid.flat, report.groups, strict=False):
        _panel(axes, report, group, plot.draw)
    for axes in grid.flat[len(report.groups) :]:
        axes.remove()
    return figure


def _count(group: Group) -> int:
    return sum(cell is not None for cell in group.cells)


def _panel(axes: Axes, report: Report, group: Group, draw: Draw) -> None:
    targets = list(dict.fromkeys(column.target for column in report.columns))
    rows = [
        (cell, column, COLOURS[targets.index(column.target) % len(COLOURS)])
        for cell, column in zip(group.cells, report.columns, strict=True)
        if cell
    ]
    axes.set_title(fill(shorten(group.title, 130, placeholder="…"), 44))
    axes.set_yticks(range(len(rows)), [shorten(column.name, 34, placeholder="…") for _, column, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    for y, (cell, _, _) in enumerate(rows):
        if not cell.ok:
            axes.text(
                0.02, y, cell.row.status, transform=axes.get_yaxis_transform(), va="center", style="italic"
            )
    if any(cell.ok for cell, _, _ in rows):
        draw(axes, rows)
    else:
        axes.set_xticks([])


def _bars(axes: Axes, rows: Rows) -> None:
    """FLOP/s of a forward pass, items/s of training; the order of the bars is the same in either unit."""
    from matplotlib.ticker import MaxNLocator

    measured = [(y, cell, colour) for y, (cell, _, colour) in enumerate(rows) if cell.ok]
    first = measured[0][1].row
    flops = first.case.phase == Phase.FORWARD and first.value("flops_per_s") is not None
    name, unit = (
        ("flops_per_s", "FLOP/s") if flops else ("items_per_s", f" {fmt.visible(first.item or '')}/s")
    )
    rates = [cell.row.value(name) or 0.0 for _, cell, _ in measured]
    power = fmt.si_power(max(rates))
    for rate, (y, cell, colour) in zip(rates, measured, strict=True):
        axes.barh(y, rate / 10**power, height=0.7, color=colour, xerr=_errors(cell, rate / 10**power), **BAR)
        _value(axes, y, fmt.rate(rate, unit) if flops else fmt.per_second(rate, unit[1:-2]))
    axes.set_xlim(0, min(axes.get_xlim()[1], CUT * max(rates) / 10**power))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(f"{fmt.PREFIXES[power]}{unit}".strip())


BAR: dict[str, Any] = {"ecolor": "black", "capsize": 2.5, "error_kw": {"elinewidth": 1}}


def _errors(cell: Cell, rate: float) -> list[list[float]] | None:
    """Below and above: a rate is work / latency, so the ends change places."""
    latency = cell.row.metric("latency_s")
    if latency.low is None or latency.high is None:
        return None
    below, above = rate - rate * cell.latency_s / latency.high, rate * cell.latency_s / latency.low - rate
    return [[max(below, 0.0)], [max(above, 0.0)]]  # rounding: an interval may have no width


def _strips(axes: Axes, rows: Rows) -> None:
    """Every sample, a lane per process, the headline above them."""
    steps = [step for cell, _, _ in rows if cell.ok for process in cell.processes for step in process]
    power = fmt.second_power(median(steps))
    for y, (cell, _, colour) in enumerate(rows):
        if cell.ok:
            _strip(axes, y, cell, colour, 10.0**-power)
            _value(axes, y, fmt.seconds(cell.latency_s))
    _time_axis(axes, min(steps) / 10.0**power, max(steps) / 10.0**power)
    logarithmic = ", logarithmic" if axes.get_xscale() == "log" else ""
    axes.set_xlabel(f"{fmt.PREFIXES[power]}s{logarithmic}")


def _strip(axes: Axes, y: int, cell: Cell, colour: str, scale: float) -> None:
    lanes = _lanes(y, len(cell.processes))
    for lane, process in zip(lanes, cell.processes, strict=True):
        xs = [step * scale for step in process]
        # A raster: a vector image of every sample would be megabytes.
        axes.scatter(xs, [lane] * len(xs), s=7, color=colour, alpha=0.4, linewidths=0, rasterized=True)
        axes.plot([median(xs)], [lane], marker="|", markersize=5, color="black", markeredgewidth=1)
    latency = cell.row.metric("latency_s")
    if latency.low is not None and latency.high is not None:
        ends = [latency.low * scale, latency.high * scale]
        axes.plot(ends, [y - 0.33] * 2, color="black", linewidth=1.5)
    axes.plot([cell.latency_s * scale], [y - 0.33], marker="D", markersize=4, color="black")


def _lanes(y: int, count: int) -> Sequence[float]:
    return [y - 0.14 + 0.48 * (lane / (count - 1) if count > 1 else 0.5) for lane in range(count)]


def _time_axis(axes: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if high > WIDE * low:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    left, right = axes.get_xlim()
    axes.set_xlim(max(left, low / CUT), min(right, high * CUT))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _value(axes: Axes, y: int, text: str) -> None:
    """A number right of the axes, where no bar or dot can be."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center")
