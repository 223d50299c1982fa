"""A panel of rates against prices: a line joins what nothing else beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.documents.document import PricedPoint, PricePanel
from benchbench.exporters._drawing import OTHERS, WIDE, label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "0.65"  # of what is dominated
ABOVE = 1.15  # of the largest value: where an axis from zero ends


def draw_prices(axes: Axes, panel: PricePanel) -> None:
    """A mark for each hardware, named beside the panel, with the interval of its rate."""
    front = [point for point in panel.points if not point.dominated]
    axes.plot(
        [point.price for point in front],
        [point.value for point in front],
        color="black",
        linewidth=0.8,
        drawstyle="steps-post",
        zorder=1,
    )
    for number, point in enumerate(panel.points):
        _mark(axes, point, MARKERS[number % len(MARKERS)], OTHERS[number % len(OTHERS)])
    _scale(axes, panel)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=8)


def _mark(axes: Axes, point: PricedPoint, marker: str, shade: str) -> None:
    colour = GREY if point.dominated else shade
    if point.low is not None and point.high is not None:
        axes.plot([point.price] * 2, [point.low, point.high], color=colour, linewidth=1.5, alpha=0.6)
    axes.plot(
        [point.price],
        [point.value],
        marker=marker,
        markersize=5,
        linestyle="",
        color=colour,
        label=label_of(point.label),
    )


def _scale(axes: Axes, panel: PricePanel) -> None:
    """From zero; logarithmic where the values lie far apart."""
    from matplotlib.ticker import FuncFormatter

    prices = [point.price for point in panel.points]
    values = [point.value for point in panel.points]
    if _far_apart(prices):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, ABOVE * max(prices))
    if _far_apart(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max([ABOVE * max(values), *(point.high or 0.0 for point in panel.points)]))
    axes.set_xlabel(fmt.visible(f"price, {panel.price_unit}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda price, _: f"{price:g}"))
    axes.set_ylabel("" if panel.unit == "×" else fmt.visible(panel.unit))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))


def _far_apart(values: Sequence[float]) -> bool:
    return max(values) > WIDE * min(values)


def _tick(value: float) -> str:
    """`2k`, `0.5`."""
    power = max(0, fmt.si_power(value))
    return f"{value / 10.0**power:g}{fmt.PREFIXES[power]}"
