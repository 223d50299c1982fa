"""A panel of alternatives over sizes, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.documents.document import Sweep, Sweeps
from benchbench.exporters._drawing import colour, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # of a backend's alternatives, in their order
TICKS = 8  # sizes named below a panel


def draw_sweeps(axes: Axes, panel: Sweeps) -> None:
    """A line for each alternative, named beside the panel."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    used: dict[str, int] = {}
    for sweep in panel.sweeps:
        used[sweep.backend] = used.get(sweep.backend, -1) + 1
        _line(axes, sweep, MARKERS[used[sweep.backend] % len(MARKERS)])
    _size_axis(axes, sorted({point.size for sweep in panel.sweeps for point in sweep.points}))
    _value_axis(axes, panel)
    axes.set_xlabel(fmt.visible(panel.axis))
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    if panel.sweeps:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=8)


def _line(axes: Axes, sweep: Sweep, marker: str) -> None:
    sizes, shade = [point.size for point in sweep.points], colour(sweep.backend)
    values = [point.value for point in sweep.points]
    axes.plot(
        sizes, values, marker=marker, markersize=4, linewidth=1.2, color=shade, label=label_of(sweep.label)
    )
    for point in sweep.points:
        if point.low is not None and point.high is not None and point.low > 0:
            axes.plot([point.size] * 2, [point.low, point.high], color=shade, linewidth=2, alpha=0.6)


def _size_axis(axes: Axes, sizes: Sequence[float]) -> None:
    """Sizes that were measured, named where there is room."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(sizes[:: -(-len(sizes) // TICKS) or 1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))


def _value_axis(axes: Axes, panel: Sweeps) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    values = [point.value for sweep in panel.sweeps for point in sweep.points]
    narrow = max(values) < 100 * min(values)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, panel.unit)))


def _tick(value: float, unit: str) -> str:
    """`20 ms`, `0.5 ×`."""
    if unit == "×":
        return f"{value:g} ×"
    power = fmt.second_power(value) if unit == "s" else fmt.si_power(value)
    return f"{value / 10.0**power:g} {fmt.unit_text(unit, power)}"
