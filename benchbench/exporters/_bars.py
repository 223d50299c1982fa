"""A panel of bars: a rate of each alternative, with its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchbench import format as fmt
from benchbench.documents.document import Bar, Bars
from benchbench.exporters._drawing import CUT, colour, write_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[str, Any] = {"ecolor": "black", "capsize": 2.5, "error_kw": {"elinewidth": 1}}


def draw_bars(axes: Axes, panel: Bars) -> None:
    """Those that have a value, on an axis that begins at zero."""
    from matplotlib.ticker import MaxNLocator

    shown = [(y, bar, bar.value) for y, bar in enumerate(panel.bars) if bar.value is not None]
    longest = max(value for *_, value in shown)
    power = fmt.si_power(longest)
    scale = 10.0**-power
    errors = [_error(bar, value, scale) for _, bar, value in shown]
    axes.barh(
        [y for y, *_ in shown],
        [value * scale for *_, value in shown],
        height=0.7,
        color=[colour(bar.backend) for _, bar, _ in shown],
        xerr=list(zip(*errors, strict=True)),
        **STYLE,
    )
    for y, _, value in shown:
        write_beside(axes, y, fmt.visible(fmt.quantity(value, panel.unit)))
    axes.set_xlim(0, min(axes.get_xlim()[1], CUT * longest * scale))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(fmt.visible(fmt.unit_text(panel.unit, power)))


def _error(bar: Bar, value: float, scale: float) -> tuple[float, float]:
    """Below and above; NaN draws none. Rounding: an interval may have no width, and never a negative one."""
    if bar.low is None or bar.high is None:
        return math.nan, math.nan
    return max(value - bar.low, 0.0) * scale, max(bar.high - value, 0.0) * scale
