"""A plot as the bytes of a picture: how every plot looks. The same plot gives the same bytes.

Text from data is never parsed as maths.
"""

from __future__ import annotations

import warnings
from io import BytesIO
from textwrap import fill, shorten
from typing import TYPE_CHECKING

from benchbench.documents.document import Document
from benchbench.documents.plots import Bar, Bars, Panel, Plot, Strips, TrendLine
from benchbench.exporters import _bars, _strips, _trends
from benchbench.format import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "svg.hashsalt": "accelbench",  # else ids differ from one export to the next
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI, PIXELS = 150, 60_000  # Agg draws no more than 2¹⁶ pixels either way
# Inches: of a panel, of its title, axis and margins, of a row in it, and of the figure's own texts.
PANEL, AROUND, BAR, STRIP, TREND, TEXTS = 5.5, 0.95, 0.27, 0.45, 2.6, 0.8


def pictures(document: Document, extension: str) -> dict[str, bytes]:
    """A file per plot, as matplotlib writes that extension."""
    return {f"{plot.name}.{extension}": _picture(plot, extension) for plot in document.plots}


def _picture(plot: Plot, extension: str) -> bytes:
    """With its title above and, below, how to read it."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks shows boxes
        figure = _figure(plot)
        width, height = figure.get_size_inches()
        figure.suptitle(fill(visible(plot.title), int(width * 13)), fontsize=10)
        figure.supxlabel(fill(visible(plot.reading), int(width * 15)), fontsize=8)
        content = BytesIO()
        metadata = {"Date": None} if extension == "svg" else None
        figure.savefig(content, format=extension, dpi=min(DPI, PIXELS / height), metadata=metadata)
    return content.getvalue()


def _figure(plot: Plot) -> Figure:
    """Panels in two columns; one if there is one panel."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.03)
    across = min(2, max(1, len(plot.panels)))
    starts = range(0, len(plot.panels), across)
    heights = [max(map(_height, plot.panels[start : start + across])) for start in starts]
    figure = Figure(figsize=(PANEL * across, sum(heights, start=TEXTS)), layout=layout)
    if not heights:
        figure.text(0.5, 0.5, plot.empty, ha="center")
        return figure
    grid = figure.subplots(len(heights), across, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, plot.panels, strict=False):
        _draw(axes, panel)
    for axes in grid.flat[len(plot.panels) :]:
        axes.remove()
    return figure


def _height(panel: Panel) -> float:
    if isinstance(panel, TrendLine):
        return TREND
    return AROUND + (BAR * len(panel.bars) if isinstance(panel, Bars) else STRIP * len(panel.strips))


def _draw(axes: Axes, panel: Panel) -> None:
    if isinstance(panel, TrendLine):
        _trends.draw_trends(axes, panel)
    elif isinstance(panel, Strips):
        _rows(axes, panel.title, panel.strips)
        if any(strip.value is not None for strip in panel.strips):
            _strips.draw_strips(axes, panel)
    else:
        _rows(axes, panel.title, panel.bars)
        if any(bar.value is not None for bar in panel.bars):
            _bars.draw_bars(axes, panel)


def _rows(axes: Axes, title: str, bars: tuple[Bar, ...]) -> None:
    """A row for each alternative, with its status where it has no value."""
    axes.set_title(fill(shorten(visible(title), 130, placeholder="…"), 44))
    axes.set_yticks(range(len(bars)), [shorten(visible(bar.label), 34, placeholder="…") for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    place = axes.get_yaxis_transform()
    for y, bar in enumerate(bars):
        if bar.value is None:
            axes.text(0.02, y, bar.status, transform=place, va="center", style="italic")
    if all(bar.value is None for bar in bars):
        axes.set_xticks([])
