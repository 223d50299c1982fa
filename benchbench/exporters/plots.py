"""Pictures of plots: positions of panels and texts. Equal plots give equal bytes.

Text from data is never parsed as mathematics.
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
from benchbench.exporters.panels import alternatives, cut, draw_panel, is_wide, label_of
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
ONE_COLUMN = (0, 1, 2, 3, 5)  # numbers of panels that are in one column


class Role(Enum):
    """Role of a text in a figure."""

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
# Inches. A text's size is estimated from its length: measuring the texts of many panels takes minutes.
CHARACTER, LINE, TITLE_LINE = 0.061, 0.155, 0.19  # approximate sizes of the font
CHARACTERS = {Role.TITLE: 0.088, Role.SHARED: 0.068, Role.SMALL: CHARACTER, Role.PANEL: 0.068}
MARGIN, BETWEEN = 0.15, 0.14  # margin of a figure; space below a panel's axis
NUMBERS, AXIS = 0.22, 0.4  # height of an axis's numbers, without and with its unit
MIN_WIDTH = 5.0  # of a figure, for its title
WIDER = 1.2  # additional width of axes in one column
VALUES, UNIT = 8, 0.2  # left of a panel: characters of a value, and width of the unit
TICK = 6  # characters of a tick besides its unit, as in `500 MFLOP/s`
BESIDE = 16  # characters right of a panel, such as `1.24k image/s`
ROW = {Bars: 0.22, Strips: 0.42}  # height of each alternative
# Width and height of a panel's axes.
WIDTH = {Bars: 2.6, Strips: 3.0, Sweeps: 3.2, Roofline: 3.2, PricePanel: 3.2}
HEIGHT = {Sweeps: 2.2, Roofline: 2.2, PricePanel: 2.2}
TICKED = (Sweeps, Roofline)  # have units in their ticks
TREND_WIDTH, TREND_HEIGHT = 4.6, 1.7


def png(document: Document) -> dict[str, bytes]:
    """A picture per plot; equal plots give equal bytes."""
    return _pictures(document, "png")


def svg(document: Document) -> dict[str, bytes]:
    """A picture per plot; equal plots give equal bytes."""
    return _pictures(document, "svg")


def _pictures(document: Document, extension: str) -> dict[str, bytes]:
    """Draw a file per plot in a format of matplotlib. Empty plots are drawn only if all are empty."""
    plots = [plot for plot in document.plots if plot.panels] or document.plots
    return {f"{plot.name}.{extension}": _picture(plot, extension) for plot in plots}


def figure_of(plot: Plot) -> Figure:
    """Draw a plot as a figure of matplotlib."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        return _figure(plot, layout_of(plot))


def _picture(plot: Plot, extension: str) -> bytes:
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        layout = layout_of(plot)
        return _saved(_figure(plot, layout), extension, dpi=min(DPI, PIXELS / layout.height))


def _saved(figure: Figure, extension: str, dpi: float) -> bytes:
    content = BytesIO()
    metadata = {"Date": None} if extension == "svg" else None
    with warnings.catch_warnings():
        # Characters that the font lacks are shown as boxes.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(content, format=extension, dpi=dpi, metadata=metadata)
    return content.getvalue()


def chart(panel: Panel) -> bytes:
    """SVG of one panel, without texts around it, for a page; empty for bars and samples, which tables show.

    Texts stay texts, in a font of the viewer, which takes a fifth of the bytes of their outlines.
    """
    if isinstance(panel, Bars | Strips):
        return b""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    column, height = _column([panel], WIDER), _height(panel)
    size = column.width + 2 * MARGIN, height + _axis(panel) + 2 * MARGIN
    box = column.left + MARGIN, _axis(panel) + MARGIN, column.axes, height
    with mpl.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure = Figure(figsize=size)
        axes = figure.add_axes((box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1]))
        draw_panel(axes, panel, wide=is_wide(panel))
        return _saved(figure, "svg", DPI)


def _figure(plot: Plot, layout: FigureLayout) -> Figure:
    """Draw the title, the facts, the panels and the explanation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(layout.width, layout.height))
    for line in layout.texts:
        x, y = line.left / layout.width, 1 - line.top / layout.height
        figure.text(x, y, line.text, va="top", linespacing=1.3, **STYLES[line.role])
    wide = any(map(is_wide, plot.panels))
    for panel, spot in zip(plot.panels, layout.panels, strict=True):
        bottom = layout.height - spot.top - spot.height
        axes = figure.add_axes(
            (
                spot.left / layout.width,
                bottom / layout.height,
                spot.width / layout.width,
                spot.height / layout.height,
            )
        )
        draw_panel(axes, panel, wide=wide)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Position of a panel's axes."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedText:
    """Text of the figure, on one line or wrapped."""

    text: str
    left: float
    top: float
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLayout:
    """Layout of a figure; `panels` in the order of the plot."""

    width: float
    height: float
    texts: tuple[PlacedText, ...]
    panels: tuple[Spot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Widths of a column of panels: left of the axes, of the axes, and right of them."""

    left: float
    axes: float
    right: float

    @property
    def width(self) -> float:
        return self.left + self.axes + self.right


def layout_of(plot: Plot) -> FigureLayout:
    """Lay out title and facts at the top, panels in columns, and the explanation at the bottom."""
    across = 1 if len(plot.panels) in ONE_COLUMN else 2
    column = _column(plot.panels, WIDER if across == 1 else 0.0)
    width = max(2 * MARGIN + across * column.width, MIN_WIDTH)
    head = _lines([plot.title], Role.TITLE, MARGIN, width)
    head += _lines([plot.shared] if plot.shared else [], Role.SHARED, _below(head), width)
    head += _lines(plot.facts, Role.SMALL, _below(head), width)
    panels, titles, bottom = _place_panels(plot.panels, column, across, _below(head) + LINE / 2)
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
    """Column for all panels of a figure, so that their axes are aligned; `wider`: additional
    width of axes.
    """
    kind = type(panels[0]) if panels else Bars
    labels = max((len(label_of(label)) for panel in panels for label in _labels(panel)), default=0)
    units = [
        panel.unit if isinstance(panel, Sweeps) else "FLOP/s" for panel in panels if type(panel) in TICKED
    ]
    characters = max([VALUES, *(len(unit) + TICK for unit in units)])
    values = characters * CHARACTER + UNIT
    label_width = labels * CHARACTER + 0.1
    if kind in ROW:
        return _Column(left=label_width, axes=WIDTH[kind] + wider, right=BESIDE * CHARACTER)
    if kind in HEIGHT:
        return _Column(left=values, axes=WIDTH[kind] + wider, right=label_width + 0.4)
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
    """Height of a panel's axes."""
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


def _place_panels(
    panels: Sequence[Panel], column: _Column, across: int, top: float
) -> tuple[list[Spot], list[PlacedText], float]:
    """Positions of the panels, their titles, and the lower end of the last panel."""
    spots: list[Spot] = []
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
            spots.append(spot)
        top += LINE + 0.05 + max(map(_height, line)) + _axis(line[0]) + BETWEEN
    return spots, titles, top


def _axis(panel: Panel) -> float:
    """Height of the labels below a panel's axes: numbers, and the unit if the numbers do not include it."""
    return NUMBERS if isinstance(panel, Strips) else AXIS


def _lines(texts: Sequence[str], role: Role, top: float, width: float) -> list[PlacedText]:
    """Texts below each other, wrapped."""
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
