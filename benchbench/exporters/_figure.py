"""A plot as the bytes of a picture: how every plot looks. The same plot gives the same bytes.

Text from data is never parsed as maths.
"""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import TYPE_CHECKING

from benchbench.documents.document import Bar, Bars, Document, Panel, Plot, PricePanel, Strips, Sweeps
from benchbench.exporters import _bars, _prices, _strips, _sweeps, _trends
from benchbench.exporters._drawing import label_of
from benchbench.exporters._layout import FigureLayout, Spot, layout_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "svg.hashsalt": "accelbench",  # else ids differ from one export to the next
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI, PIXELS = 150, 60_000  # Agg draws no more than 2¹⁶ pixels either way


def pictures(document: Document, extension: str) -> dict[str, bytes]:
    """A file per plot, as matplotlib writes that extension."""
    return {f"{plot.name}.{extension}": _picture(plot, extension) for plot in document.plots}


def _picture(plot: Plot, extension: str) -> bytes:
    import matplotlib as mpl

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script the font lacks shows boxes
        layout = layout_of(plot)
        content = BytesIO()
        metadata = {"Date": None} if extension == "svg" else None
        dpi = min(DPI, PIXELS / layout.height)
        _figure(plot, layout).savefig(content, format=extension, dpi=dpi, metadata=metadata)
    return content.getvalue()


def _figure(plot: Plot, layout: FigureLayout) -> Figure:
    """The title, on what it was measured, the panels, and how to read them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(layout.width, layout.height))
    for line in layout.texts:
        weight, size = ("bold", 10) if line.title else ("normal", 8)
        colour = "black" if line.title else "0.3"
        x, y = line.left / layout.width, 1 - line.top / layout.height
        figure.text(x, y, line.text, va="top", weight=weight, fontsize=size, color=colour, linespacing=1.3)
    for panel, place in zip(plot.panels, layout.panels, strict=True):
        axes = figure.add_axes(_rectangle(place, layout))
        axes.set_title(place.title, linespacing=1.2)
        _draw(axes, panel)
    return figure


def _rectangle(place: Spot, layout: FigureLayout) -> tuple[float, float, float, float]:
    """Left, bottom, width, height, as fractions of the figure."""
    bottom = layout.height - place.top - place.height
    return (
        place.left / layout.width,
        bottom / layout.height,
        place.width / layout.width,
        place.height / layout.height,
    )


def _draw(axes: Axes, panel: Panel) -> None:
    if isinstance(panel, Bars):
        _rows(axes, panel.bars)
        if any(bar.value is not None for bar in panel.bars):
            _bars.draw_bars(axes, panel)
    elif isinstance(panel, Strips):
        _rows(axes, panel.strips)
        if any(strip.processes for strip in panel.strips):
            _strips.draw_strips(axes, panel)
    elif isinstance(panel, Sweeps):
        _sweeps.draw_sweeps(axes, panel)
    elif isinstance(panel, PricePanel):
        _prices.draw_prices(axes, panel)
    else:
        _trends.draw_trends(axes, panel)


def _rows(axes: Axes, bars: tuple[Bar, ...]) -> None:
    """A row for each alternative, with its status where it has no value."""
    axes.set_yticks(range(len(bars)), [label_of(bar.label) for bar in bars])
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
