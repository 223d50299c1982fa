"""A plot as the bytes of a picture: where its panels and texts are. The same plot gives the same bytes.

Text from data is never parsed as maths.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from textwrap import fill
from typing import TYPE_CHECKING, Any

from benchbench.documents.document import Bars, Document, Panel, Plot, PricePanel, Roofline, Strips, Sweeps
from benchbench.exporters._panels import alternatives, cut, draw_panel, is_wide, label_of
from benchbench.format import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {
    "svg.hashsalt": "accelbench",  # else ids differ from one export to the next
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI, PIXELS = 150, 60_000  # Agg draws no more than 2¹⁶ pixels either way
ONE_COLUMN = (0, 1, 2, 3, 5)  # panels that two columns would leave a hole beside


class Role(Enum):
    """What a text of a figure is."""

    TITLE = "title"
    SHARED = "shared"
    SMALL = "small"
    PANEL = "panel"


STYLES: dict[Role, dict[str, Any]] = {
    Role.TITLE: {"weight": "bold", "fontsize": 10, "color": "black"},
    Role.SHARED: {"weight": "bold", "fontsize": 8, "color": "0.3"},
    Role.SMALL: {"fontsize": 8, "color": "0.3"},
    Role.PANEL: {"weight": "bold", "fontsize": 8, "color": "black"},
}
# Inches. Every text has its room by its length: to measure texts takes minutes for many panels.
CHARACTER, LINE, TITLE_LINE = 0.061, 0.155, 0.19  # about, of the font at its size
CHARACTERS = {Role.TITLE: 0.088, Role.SHARED: 0.068, Role.SMALL: CHARACTER, Role.PANEL: 0.068}
MARGIN, BETWEEN = 0.15, 0.14  # of a figure; below a panel's axis
NUMBERS, AXIS = 0.22, 0.4  # the numbers of an axis, alone and with its unit
NARROWEST = 5.0  # a figure, for its title
WIDER = 1.2  # axes that have the figure's width to themselves
VALUES, UNIT = 8, 0.2  # left of a panel: characters of a value, and the unit
BESIDE = 16  # characters right of a panel: `1.24k image/s`
ROW = {Bars: 0.22, Strips: 0.42}  # of each alternative
# Of a panel within its axes.
WIDTH = {Bars: 2.6, Strips: 3.0, Sweeps: 3.2, Roofline: 3.2, PricePanel: 3.2}
HEIGHT = {Sweeps: 2.2, Roofline: 2.2, PricePanel: 2.2}
TREND_WIDTH, TREND_HEIGHT = 4.6, 1.7


def pictures(document: Document, extension: str) -> dict[str, bytes]:
    """A file per plot, as matplotlib writes that extension; one of nothing only where all are."""
    drawn = [plot for plot in document.plots if plot.panels] or document.plots
    return {f"{plot.name}.{extension}": _picture(plot, extension) for plot in drawn}


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
        x, y = line.left / layout.width, 1 - line.top / layout.height
        figure.text(x, y, line.text, va="top", linespacing=1.3, **STYLES[line.role])
    wide = any(map(is_wide, plot.panels))
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
        draw_panel(axes, panel, wide=wide)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The place of a panel's axes."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedText:
    """A text of the figure, on one line or wrapped."""

    text: str
    left: float
    top: float
    role: Role


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
    across = 1 if len(plot.panels) in ONE_COLUMN else 2
    column = _column(plot.panels, WIDER if across == 1 else 0.0)
    width = max(2 * MARGIN + across * column.width, NARROWEST)
    head = _lines([plot.title], Role.TITLE, MARGIN, width)
    head += _lines([plot.shared] if plot.shared else [], Role.SHARED, _below(head), width)
    head += _lines(plot.facts, Role.SMALL, _below(head), width)
    panels, titles, bottom = _places(plot.panels, column, across, _below(head) + LINE / 2)
    foot = _lines([_reading(plot)], Role.SMALL, bottom, width)
    return FigureLayout(
        width=width,
        height=_below(foot) + MARGIN,
        texts=(*head, *titles, *foot),
        panels=tuple(panels),
    )


def _reading(plot: Plot) -> str:
    if not plot.panels:
        return plot.empty
    scale = "Times are on logarithmic axes." if isinstance(plot.panels[0], Strips) else ""
    return " ".join(filter(None, (plot.reading, scale if any(map(is_wide, plot.panels)) else "")))


def _column(panels: Sequence[Panel], wider: float) -> _Column:
    """The column that all panels of a figure have, so that their axes line up; `wider`: its axes."""
    kind = type(panels[0]) if panels else Bars
    labels = max((len(label_of(label)) for panel in panels for label in _labels(panel)), default=0)
    values = VALUES * CHARACTER + UNIT
    named = labels * CHARACTER + 0.1
    if kind in ROW:
        return _Column(left=named, axes=WIDTH[kind] + wider, right=BESIDE * CHARACTER)
    if kind in HEIGHT:
        return _Column(left=values, axes=WIDTH[kind] + wider, right=named + 0.4)
    return _Column(left=values, axes=TREND_WIDTH + wider, right=0.1)


def _labels(panel: Panel) -> Iterator[str]:
    if isinstance(panel, Bars):
        yield from (bar.label for bar in panel.bars)
    elif isinstance(panel, Strips):
        yield from (strip.label for strip in panel.strips)
    elif isinstance(panel, Sweeps):
        yield from (sweep.label for sweep in panel.sweeps)
    elif isinstance(panel, Roofline):
        yield from alternatives(panel)
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
    if isinstance(panel, Roofline):
        return max(HEIGHT[Roofline], 0.18 * len(alternatives(panel)))
    if isinstance(panel, PricePanel):
        return max(HEIGHT[PricePanel], 0.18 * len(panel.points))
    return TREND_HEIGHT


def _places(
    panels: Sequence[Panel], column: _Column, across: int, top: float
) -> tuple[list[Spot], list[PlacedText], float]:
    """The places of the panels, their titles, and where the last ends."""
    places: list[Spot] = []
    titles: list[PlacedText] = []
    characters = int(column.width / CHARACTERS[Role.PANEL])
    for start in range(0, len(panels), across):
        line = panels[start : start + across]
        for index, panel in enumerate(line):
            left = MARGIN + index * column.width
            title = cut(visible(panel.title), characters)
            titles.append(PlacedText(text=title, left=left, top=top, role=Role.PANEL))
            spot = Spot(
                left=left + column.left, top=top + LINE + 0.05, width=column.axes, height=_height(panel)
            )
            places.append(spot)
        top += LINE + 0.05 + max(map(_height, line)) + _axis(line[0]) + BETWEEN
    return places, titles, top


def _axis(panel: Panel) -> float:
    """The height of what is written below a panel's axes: numbers, and where these have none their unit."""
    return NUMBERS if isinstance(panel, Strips) else AXIS


def _lines(texts: Sequence[str], role: Role, top: float, width: float) -> list[PlacedText]:
    """The texts one below the other, wrapped."""
    lines: list[PlacedText] = []
    characters = int((width - 2 * MARGIN) / CHARACTERS[role])
    for text in texts:
        lines.append(PlacedText(text=fill(visible(text), characters), left=MARGIN, top=top, role=role))
        top = _below(lines)
    return lines


def _below(lines: Sequence[PlacedText]) -> float:
    last = lines[-1]
    height = TITLE_LINE if last.role is Role.TITLE else LINE
    return last.top + height * (last.text.count("\n") + 1) + 0.03
