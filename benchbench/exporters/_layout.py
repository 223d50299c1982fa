"""Where the panels and texts of a figure are, in inches from its left and its top.

Every text has its room by its length: a layout that measures texts takes minutes for many panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill

from benchbench.documents.document import Bars, Panel, Plot, PricePanel, Strips, Sweeps
from benchbench.exporters._drawing import MOST_TITLE, cut, label_of
from benchbench.format import visible

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Of a panel: its title, and its axes."""

    title: str
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedText:
    """A text of the figure's own; `title`: rather than what is said of it."""

    text: str
    left: float
    top: float
    title: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLayout:
    """Of a figure; `panels` in the order of the plot's."""

    width: float
    height: float
    texts: tuple[PlacedText, ...]
    panels: tuple[Spot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """Left of the axes of its panels, the axes, right of them."""

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
        texts=(*(_titled(line, line is head[0]) for line in head), *foot),
        panels=tuple(panels),
    )


def _column(panels: Sequence[Panel]) -> _Column:
    """As all panels of a figure have it, so that their axes line up."""
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
    """Of its axes."""
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
    """Of the panels, and where the last of them ends. Axes of one line of panels begin at one height."""
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
    """One below the other, wrapped."""
    lines: list[PlacedText] = []
    characters = int((width - 2 * MARGIN) / CHARACTER)
    for text in texts:
        lines.append(PlacedText(text=fill(visible(text), characters), left=MARGIN, top=top))
        top = _below(lines)
    return lines


def _below(lines: Sequence[PlacedText]) -> float:
    return lines[-1].top + LINE * (lines[-1].text.count("\n") + 1) + 0.03


def _titled(line: PlacedText, title: bool) -> PlacedText:
    return PlacedText(text=line.text, left=line.left, top=line.top, title=title)
