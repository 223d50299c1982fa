"""A panel of bars: a rate of each alternative, with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench import format as fmt
from benchbench.documents.plots import Bar, Bars
from benchbench.exporters._drawing import CUT, colour, write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[str, Any] = {"ecolor": "black", "capsize": 2.5, "error_kw": {"elinewidth": 1}}


def draw_bars(axes: Axes, panel: Bars) -> None:
    """Those that have a value, on an axis that begins at zero."""
    from matplotlib.ticker import MaxNLocator

    longest = max(bar.value for bar in panel.bars if bar.value is not None)
    power = fmt.si_power(longest)
    for y, bar in enumerate(panel.bars):
        if bar.value is not None:
            errors = _errors(bar, bar.value, 10.0**-power)
            axes.barh(y, bar.value / 10**power, height=0.7, color=colour(bar.group), xerr=errors, **STYLE)
            write_beside(axes, y, fmt.visible(fmt.quantity(bar.value, panel.unit)))
    axes.set_xlim(0, min(axes.get_xlim()[1], CUT * longest / 10**power))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(fmt.visible(fmt.unit_text(panel.unit, power)))


def _errors(bar: Bar, value: float, scale: float) -> list[list[float]] | None:
    """Below and above. Rounding: an interval may have no width, and must not have a negative one."""
    if bar.low is None or bar.high is None:
        return None
    return [[max(value - bar.low, 0.0) * scale], [max(bar.high - value, 0.0) * scale]]
