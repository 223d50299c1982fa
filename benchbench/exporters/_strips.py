"""A panel of samples: every one of each alternative, a lane per process, the headline above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchbench import format as fmt
from benchbench.documents.document import Strips
from benchbench.exporters._drawing import CUT, WIDE, colour, write_beside
from benchbench.stats import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOVE = 0.33  # the lanes, of the height of an alternative: its headline


def draw_strips(axes: Axes, panel: Strips) -> None:
    """Samples and headlines on one axis of times; each kind of mark is one artist, since each costs time."""
    steps = [step for strip in panel.strips for process in strip.processes for step in process]
    power = fmt.second_power(median(steps))
    scale = 10.0**-power
    _samples(axes, panel, scale)
    headlines = [(y, strip, strip.value) for y, strip in enumerate(panel.strips) if strip.value is not None]
    for y, _, value in headlines:
        write_beside(axes, y, fmt.seconds(value))
    ranges = [
        (y - ABOVE, strip.low * scale, strip.high * scale)
        for y, strip, _ in headlines
        if strip.low is not None and strip.high is not None
    ]
    axes.hlines(*_transposed(ranges, 3), color="black", linewidth=1.5)
    axes.scatter(
        [value * scale for *_, value in headlines],
        [y - ABOVE for y, *_ in headlines],
        marker="D",
        s=18,
        color="black",
        zorder=3,
    )
    _time_axis(axes, min(steps) * scale, max(steps) * scale)
    logarithmic = ", logarithmic" if axes.get_xscale() == "log" else ""
    axes.set_xlabel(f"{fmt.unit_text('s', power)}{logarithmic}")


def _samples(axes: Axes, panel: Strips, scale: float) -> None:
    """A lane per process, with a tick at its median."""
    lanes = [
        (lane, process, colour(strip.backend))
        for y, strip in enumerate(panel.strips)
        for lane, process in zip(_lanes(y, len(strip.processes)), strip.processes, strict=True)
    ]
    dots = [(step * scale, lane, shade) for lane, process, shade in lanes for step in process]
    xs, ys, shades = _transposed(dots, 3)
    # A raster: a vector image of every sample would be megabytes.
    axes.scatter(xs, ys, s=7, color=shades, alpha=0.4, linewidths=0, rasterized=True)
    medians = [(median(process) * scale, lane) for lane, process, _ in lanes]
    xs, ys = _transposed(medians, 2)
    axes.scatter(xs, ys, marker="|", s=25, color="black", linewidths=1)


def _transposed(rows: Sequence[tuple[Any, ...]], columns: int) -> list[list[Any]]:
    return [[row[column] for row in rows] for column in range(columns)]


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
