"""A panel of samples: every one of each alternative, a lane per process, the headline above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.documents.plots import Strip, Strips
from benchbench.exporters._drawing import CUT, WIDE, colour, write_beside
from benchbench.stats import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_strips(axes: Axes, panel: Strips) -> None:
    """Those that have a value, on one axis of times."""
    steps = [step for strip in panel.strips for process in strip.processes for step in process]
    power = fmt.second_power(median(steps))
    for y, strip in enumerate(panel.strips):
        if strip.value is not None:
            _strip(axes, y, strip, strip.value, 10.0**-power)
            write_beside(axes, y, fmt.seconds(strip.value))
    _time_axis(axes, min(steps) / 10.0**power, max(steps) / 10.0**power)
    logarithmic = ", logarithmic" if axes.get_xscale() == "log" else ""
    axes.set_xlabel(f"{fmt.unit_text('s', power)}{logarithmic}")


def _strip(axes: Axes, y: int, strip: Strip, headline: float, scale: float) -> None:
    lanes = _lanes(y, len(strip.processes))
    for lane, process in zip(lanes, strip.processes, strict=True):
        xs = [step * scale for step in process]
        # A raster: a vector image of every sample would be megabytes.
        axes.scatter(
            xs, [lane] * len(xs), s=7, color=colour(strip.group), alpha=0.4, linewidths=0, rasterized=True
        )
        axes.plot([median(xs)], [lane], marker="|", markersize=5, color="black", markeredgewidth=1)
    if strip.low is not None and strip.high is not None:
        axes.plot([strip.low * scale, strip.high * scale], [y - 0.33] * 2, color="black", linewidth=1.5)
    axes.plot([headline * scale], [y - 0.33], marker="D", markersize=4, color="black")


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
