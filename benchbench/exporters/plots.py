"""Pictures of plots, and charts for a page. Equal plots give equal bytes.

Text from data is never parsed as mathematics.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from benchbench.documents.document import (
    Bars,
    Document,
    Panel,
    Plot,
    PricePanel,
    Roofline,
    Strips,
    Sweeps,
    TrendLine,
)
from benchbench.exporters.panels import alternatives, cut, draw_panel, is_wide
from benchbench.format import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {
    "svg.hashsalt": "accelbench",  # makes ids reproducible
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI, PIXELS = 150, 60_000  # Agg draws at most 2¹⁶ pixels in each direction
# Inches.
COLUMN = 6.2  # width of a column of panels
LINE = 0.17  # height of a line of text
CHARACTER = 0.066  # approximate width of a letter
AROUND = 0.65  # height of a panel's title, axis and space
MAX_ONE_COLUMN = 3  # panels
TITLE: dict[str, Any] = {"weight": "bold", "fontsize": 10, "color": "black"}
SMALL: dict[str, Any] = {"fontsize": 8, "color": "0.3"}
SHARED = SMALL | {"weight": "bold"}


def png(document: Document) -> dict[str, bytes]:
    """A picture per plot; equal plots give equal bytes."""
    return _pictures(document, "png")


def svg(document: Document) -> dict[str, bytes]:
    """A picture per plot; equal plots give equal bytes."""
    return _pictures(document, "svg")


def _pictures(document: Document, extension: str) -> dict[str, bytes]:
    """Draw a file per plot in a format of matplotlib. Empty plots are drawn only if all are empty."""
    all_plots = document.plots()
    plots = [plot for plot in all_plots if plot.panels] or all_plots
    with _style():
        return {f"{plot.name}.{extension}": _saved(_figure(plot), extension) for plot in plots}


def figure_of(plot: Plot) -> Figure:
    """Draw a plot as a figure of matplotlib."""
    with _style():
        return _figure(plot)


def chart(panel: Panel) -> bytes:
    """SVG of one panel, without texts around it, for a page; empty for bars and samples, which tables show.

    Texts stay texts, in a font of the viewer, which takes a fifth of the bytes of their outlines.
    """
    if isinstance(panel, Bars | Strips):
        return b""
    with _style(**{"svg.fonttype": "none"}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(COLUMN, _height(panel) + AROUND), layout="constrained")
        draw_panel(figure.add_subplot(), panel, wide=is_wide(panel))
        _fix_layout(figure)
        return _saved(figure, "svg")


@contextmanager
def _style(**more: Any) -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context({**STYLE, **more}), warnings.catch_warnings():
        # Characters that the font lacks are shown as boxes.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def _saved(figure: Figure, extension: str) -> bytes:
    content = BytesIO()
    metadata = {"Date": None} if extension == "svg" else None
    dpi = min(DPI, PIXELS / figure.get_figheight())
    figure.savefig(content, format=extension, dpi=dpi, metadata=metadata)
    return content.getvalue()


def _figure(plot: Plot) -> Figure:
    """Draw the title and the facts, the panels in one or two columns, and the explanation."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = 1 if len(plot.panels) <= MAX_ONE_COLUMN else 2
    width = across * COLUMN
    wide = any(map(is_wide, plot.panels))
    head = [(line, TITLE) for line in _wrapped(plot.title, width / 1.4)]
    head += [(line, SHARED) for line in _wrapped(plot.shared, width / 1.1)]
    head += [(line, SMALL) for fact in plot.facts for line in _wrapped(fact, width)]
    foot = [(line, SMALL) for line in _wrapped(_reading(plot, wide=wide), width)]
    rows = [plot.panels[start : start + across] for start in range(0, len(plot.panels), across)]
    row_heights = [max(map(_height, row)) + AROUND for row in rows]
    above, below = LINE * (len(head) + 1), LINE * (len(foot) + 1)
    height = above + sum(row_heights) + below
    room = (0, below / height, 1, sum(row_heights) / height)
    figure = Figure((width, height), layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1, rect=room))
    for start, lines in ((height, head), (below, foot)):
        for number, (line, style) in enumerate(lines):
            y = (start - LINE * (number + 0.5)) / height
            figure.text(0.1 / width, y, line, va="top", **style)
    grid = figure.add_gridspec(max(len(rows), 1), across, height_ratios=row_heights or [1.0])
    for number, panel in enumerate(plot.panels):
        axes = figure.add_subplot(grid[number // across, number % across])
        title = cut(visible(panel.title), int(COLUMN / CHARACTER))
        axes.set_title(title, loc="left", weight="bold", fontsize=8)
        draw_panel(axes, panel, wide=wide)
    _fix_layout(figure)
    return figure


def _fix_layout(figure: Figure) -> None:
    """Lay the figure out and round the positions, whose last digits differ from one layout to the next."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(length, 4) for length in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def _reading(plot: Plot, *, wide: bool) -> str:
    if not plot.panels:
        return plot.empty
    has_scale = wide and isinstance(plot.panels[0], Strips)
    return " ".join(filter(None, (plot.reading, "Times are on logarithmic axes." if has_scale else "")))


def _wrapped(text: str, width: float) -> list[str]:
    return wrap(visible(text), int(width / CHARACTER))


def _height(panel: Panel) -> float:
    """Height of a panel's axes, with room for each alternative or entry of the legend."""
    if isinstance(panel, Bars):
        return 0.22 * len(panel.marks)
    if isinstance(panel, Strips):
        return 0.42 * len(panel.marks)
    if isinstance(panel, TrendLine):
        return 1.7
    return max(2.2, 0.18 * _legend_entries(panel))


def _legend_entries(panel: Sweeps | Roofline | PricePanel) -> int:
    if isinstance(panel, Sweeps):
        return len(panel.sweeps)
    return len(alternatives(panel)) if isinstance(panel, Roofline) else len(panel.points)
