"""A plot as the bytes of a picture: where its panels and texts are. The same plot gives the same bytes.

Text from data is never parsed as maths.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING

from benchbench.documents.document import Bars, Document, Panel, Plot, PricePanel, Strips, Sweeps
from benchbench.exporters._panels import cut, draw_panel, label_of
from benchbench.format import visible

if TYPE_CHECKING:
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
MOST_TITLE = 150  # characters of a panel's title
# Inches. Every text has its room by its length: to measure texts takes minutes for many panels.
CHARACTER, BOLD, LINE = 0.061, 0.068, 0.155  # about, of the font at its size
MARGIN, BETWEEN = 0.15, 0.25  # of a figure; below a panel's axis
AXIS = 0.4  # its numbers and its unit
NARROWEST = 5.0  # a figure, for its title
VALUES, UNIT = 8, 0.2  # left of a panel: characters of a value, and the unit
BESIDE = 16  # characters right of a panel: `1.24k image/s`
ROW = {Bars: 0.22, Strips: 0.42}  # of each alternative
# Of a panel within its axes.
WIDTH, HEIGHT = {Bars: 2.6, Strips: 3.0, Sweeps: 3.2, PricePanel: 3.2}, {Sweeps: 2.2, PricePanel: 2.2}
TREND_WIDTH, TREND_HEIGHT = 4.6, 1.7


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
        bottom = layout.height - place.top - place.height
        axes = figure.add_axes(
            (
                place.left / layout.width,
                bottom / layout.height,
                place.width / layout.width,
                place.height / layout.height,
            )
        )
        axes.set_title(place.title, linespacing=1.2)
        draw_panel(axes, panel)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The place of a panel: its title, and its axes."""

    title: str
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedText:
    """A text of the figure's own; `title`: whether it is the figure's title."""

    text: str
    left: float
    top: float
    title: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLayout:
    """The layout of a figure; `panels` in the order of the plot's."""

    width: float
    height: float
    texts: tuple[PlacedText, ...]
    panels: tuple[Spot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column of panels: the widths left of the axes, of the axes, and right of them."""

    left: float
    axes: float
    right: float

    @property
    def width(self) -> float:
        return self.left + self.axes + self.right


def layout_of(plot: Plot) -> FigureLayout:
    """Title and facts above, panels in two columns, and how to read them below."""
    column = _column(plot.panels)
    across = min(2, max(1, len(plot.panels)))
    width = max(2 * MARGIN + across * column.width, NARROWEST)
    head = _lines([plot.title, *plot.facts], MARGIN, width)
    panels, bottom = _places(plot.panels, column, across, _below(head) + LINE)
    foot = _lines([plot.reading if plot.panels else plot.empty], bottom, width)
    return FigureLayout(
        width=width,
        height=_below(foot) + MARGIN,
        texts=(*(replace(line, title=line is head[0]) for line in head), *foot),
        panels=tuple(panels),
    )


def _column(panels: Sequence[Panel]) -> _Column:
    """The column that all panels of a figure have, so that their axes line up."""
    kind = type(panels[0]) if panels else Bars
    labels = max((len(label_of(label)) for panel in panels for label in _labels(panel)), default=0)
    values = VALUES * CHARACTER + UNIT
    named = labels * CHARACTER + 0.1
    if kind in ROW:
        return _Column(left=named, axes=WIDTH[kind], right=BESIDE * CHARACTER)
    if kind in HEIGHT:
        return _Column(left=values, axes=WIDTH[kind], right=named + 0.4)
    return _Column(left=values, axes=TREND_WIDTH, right=0.1)


def _labels(panel: Panel) -> Iterator[str]:
    if isinstance(panel, Bars):
        yield from (bar.label for bar in panel.bars)
    elif isinstance(panel, Strips):
        yield from (strip.label for strip in panel.strips)
    elif isinstance(panel, Sweeps):
        yield from (sweep.label for sweep in panel.sweeps)
    elif isinstance(panel, PricePanel):
        yield from (point.label for point in panel.points)


def _height(panel: Panel) -> float:
    """The height of a panel's axes."""
    if isinstance(panel, Bars):
        return ROW[Bars] * len(panel.bars)
    if isinstance(panel, Strips):
        return ROW[Strips] * len(panel.strips)
    if isinstance(panel, Sweeps):
        return max(HEIGHT[Sweeps], 0.18 * len(panel.sweeps))
    if isinstance(panel, PricePanel):
        return max(HEIGHT[PricePanel], 0.18 * len(panel.points))
    return TREND_HEIGHT


def _places(panels: Sequence[Panel], column: _Column, across: int, top: float) -> tuple[list[Spot], float]:
    """The places of the panels, and where the last ends. Axes of one line of panels begin at one height."""
    places: list[Spot] = []
    characters = int((column.axes + column.right) / BOLD)
    for start in range(0, len(panels), across):
        line = panels[start : start + across]
        titles = [fill(cut(visible(panel.title), MOST_TITLE), characters) for panel in line]
        top += LINE * max(title.count("\n") + 1 for title in titles) + 0.08
        for index, (panel, title) in enumerate(zip(line, titles, strict=True)):
            left = MARGIN + index * column.width + column.left
            places.append(Spot(title=title, left=left, top=top, width=column.axes, height=_height(panel)))
        top += max(map(_height, line)) + AXIS + BETWEEN
    return places, top


def _lines(texts: Sequence[str], top: float, width: float) -> list[PlacedText]:
    """The texts one below the other, wrapped."""
    lines: list[PlacedText] = []
    characters = int((width - 2 * MARGIN) / CHARACTER)
    for text in texts:
        lines.append(PlacedText(text=fill(visible(text), characters), left=MARGIN, top=top))
        top = _below(lines)
    return lines


def _below(lines: Sequence[PlacedText]) -> float:
    return lines[-1].top + LINE * (lines[-1].text.count("\n") + 1) + 0.03
