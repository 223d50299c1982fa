"""Marks on a ruler as SVG that stands in a table's cell: logarithmic, complete without styles and scripts.

Colours are attributes, so that viewers that forbid styles show them; lines and texts take the page's colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from zlib import crc32

from benchbench import format as fmt
from benchbench.documents.document import Mark, Spread
from benchbench.exporters._panels import colour
from benchbench.exporters._text import html_text
from benchbench.exporters._ticks import apart, log_ticks, tick_text
from benchbench.stats import median, quantile

WIDTH = 300.0  # pixels of a drawing
EDGE = 12.0  # pixels beside the ruler, for a mark or a label at its ends
LETTER = 6.0  # pixels of one of a tick, about
LINE = 12.0  # pixels between marks, and from the edge to the first
LANE = 6.0  # pixels between processes
MOST_LANES = 12  # processes that are drawn; more are a smear
CLIPPED = 2.0  # times beyond the values: two processes that differ can give an interval of any length
LEAST_SPAN = 1.1  # of a ruler: noise of a percent looks small
PLAIN = "#808080"  # of a mark that belongs to no backend
NAMED = ("torch", "tensorflow", "jax", "onnxruntime", "torch_xla", "openvino", "fake")
SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-3.5,-3.5h7v7h-7z",
    "M0,-5L5,0L0,5L-5,0z",
    "M0,-4.5L4.5,3.5H-4.5z",
    "M0,4.5L4.5,-3.5H-4.5z",
    "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.5,-1.5L0,-5L4.5,-1.5L3,4H-3z",
)


@dataclass(frozen=True)
class Ruler:
    """A logarithmic scale from `low` to `high`, both positive, in `unit`."""

    low: float
    high: float
    unit: str

    def x(self, value: float) -> float:
        """Where a value stands, in pixels; at the ends of the ruler where it lies beyond them."""
        start, per_pixel = self._logs
        return min(max(EDGE + (math.log(max(value, 1e-300)) - start) * per_pixel, EDGE), WIDTH - EDGE)

    @cached_property
    def _logs(self) -> tuple[float, float]:
        """The logarithm at its start, and pixels for each unit of it."""
        start = math.log(self.low)
        return start, (WIDTH - 2 * EDGE) / (math.log(self.high) - start)

    @cached_property
    def ticks(self) -> list[float]:
        """The values that are named."""
        return log_ticks(self.low, self.high)


def ruler_of(spreads: Sequence[Spread]) -> Ruler | None:
    """A ruler that holds all values and, as far as it stays readable, intervals and processes."""
    marks = [mark for spread in spreads for mark in spread.marks]
    values = [value for mark in marks for value in _values(mark) if value > 0]
    if not values:
        return None
    low, high = min(values), max(values)
    ends = [end for mark in marks for end in (mark.low, mark.high) if end is not None and end > 0]
    ends += [step for mark in marks for own in mark.processes for step in _five(own) if step > 0]
    bottom = max(min([low, *ends]), low / CLIPPED)
    top = min(max([high, *ends]), high * CLIPPED)
    beside = max(LEAST_SPAN / (top / bottom), 1.0) ** 0.5
    return Ruler(bottom / beside, top * beside, spreads[0].unit)


def _values(mark: Mark) -> list[float]:
    """Its value, or where its processes disagree theirs."""
    return [mark.value] if mark.value is not None else [median(own) for own in mark.processes]


def drawing(spread: Spread, ruler: Ruler, heights: Sequence[str] = ()) -> str:
    """The marks, each at the height of its label in `heights`, and below each the lanes of its processes."""
    parts = [f'<path stroke="#8886" d="{_grid(ruler, _height(spread, heights))}"/>']
    several = len(spread.marks) > 1  # of a single one, the number beside it says the same, and its row whose
    for number, mark in enumerate(spread.marks):
        line = heights.index(mark.label) if mark.label in heights else number
        own = [*_mark(mark, ruler, LINE * (line + 0.5)), *_lanes(mark, ruler, LINE * (line + 1))]
        backend = f' data-b="{html_text(mark.backend)}"' if several else ""
        parts.append(f'<g{backend} stroke="{shade_of(mark.backend)}">{"".join(own)}</g>')
    told = "; ".join(_told(mark, spread.unit) for mark in spread.marks) if several else ""
    return _svg(parts, _height(spread, heights), told)


def axis(ruler: Ruler) -> str:
    """The names of the ruler's ticks, those that have room."""
    names = [(ruler.x(value), tick_text(value, ruler.unit)) for value in ruler.ticks]
    names = [(x, name) for x, name in names if len(name) * LETTER / 2 <= min(x, WIDTH - x)]  # none is cut off
    parts = [f'<text x="{x:.1f}" y="11">{escape(name)}</text>' for x, name in apart(names, LETTER)]
    paint = 'font-size="10" text-anchor="middle" fill="currentColor"'
    return _svg([f"<g {paint}>{''.join(parts)}</g>"], 15, "")


def shape_of(backend: str) -> str:
    """The outline of a backend's marks around the origin, the same on every page."""
    known = NAMED.index(backend) if backend in NAMED else crc32(backend.encode())
    return SHAPES[known % len(SHAPES)]


def shade_of(backend: str) -> str:
    """The colour of a backend, as in pictures."""
    return colour(backend) if backend else PLAIN


def symbol(backend: str) -> str:
    """A backend's mark alone, for a legend."""
    mark = f'<path fill="{shade_of(backend)}" transform="translate(6,6)" d="{shape_of(backend)}"/>'
    return f'<svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true">{mark}</svg>'


def _svg(parts: Iterable[str], height: float, told: str) -> str:
    told = html_text(told)
    role = f'role="img" aria-label="{told}"' if told else 'aria-hidden="true"'
    size = f'width="{WIDTH:g}" height="{height:g}" viewBox="0 0 {WIDTH:g} {height:g}"'
    return f"<svg {role} {size}>{''.join(parts)}</svg>"


def _height(spread: Spread, heights: Sequence[str]) -> float:
    lanes = max((min(len(mark.processes), MOST_LANES) for mark in spread.marks), default=0)
    return LINE * max(len(heights), len(spread.marks)) + LANE * lanes + 4


@lru_cache(100)  # the rows of a table ask for the same
def _grid(ruler: Ruler, height: float) -> str:
    return "".join(f"M{ruler.x(value):.0f},0V{height:g}" for value in ruler.ticks)


def _mark(mark: Mark, ruler: Ruler, y: float) -> Iterator[str]:
    """Its interval, then the mark; nothing where its processes disagree."""
    if mark.value is None:
        return
    if mark.low is not None and mark.high is not None:
        yield f'<path stroke-width="2" d="M{ruler.x(mark.low):.1f},{y:g}H{ruler.x(mark.high):.1f}"/>'
    yield mark_path(mark.backend, f"{ruler.x(mark.value):.1f},{y:g}", is_open=mark.is_open)


def mark_path(backend: str, place: str, *, is_open: bool) -> str:
    """The mark of a backend at a place `x,y`, its line as what it stands in says; hollow where it is open."""
    paint = 'fill="none" stroke-width="1.5"' if is_open else f'fill="{shade_of(backend)}"'
    return f'<path {paint} transform="translate({place})" d="{shape_of(backend)}"/>'


def _lanes(mark: Mark, ruler: Ruler, top: float) -> list[str]:
    """5th to 95th percentile, quartiles and median of each process; a path for all of a kind."""
    ranges, quartiles, medians = [], [], []
    for number, samples in enumerate(mark.processes[:MOST_LANES]):
        y = top + LANE * number + LANE / 2
        p5, p25, p50, p75, p95 = map(ruler.x, _five(samples))
        ranges.append(f"M{p5:.0f},{y:g}H{p95:.0f}")
        quartiles.append(f"M{p25:.0f},{y:g}H{p75:.0f}")
        medians.append(f"M{p50:.0f},{y - 2:g}v4")
    if not ranges:
        return []
    return [
        f'<path stroke-opacity=".5" d="{"".join(ranges)}"/>',
        f'<path stroke-width="3" stroke-opacity=".6" d="{"".join(quartiles)}"/>',
        f'<path stroke="currentColor" d="{"".join(medians)}"/>',
    ]


@lru_cache(1000)  # the ruler of a table asks, then each of its rows
def _five(samples: tuple[float, ...]) -> tuple[float, ...]:
    ordered = sorted(samples)  # once: what is in order is soon sorted again
    low, first, third, high = (quantile(ordered, each) for each in (0.05, 0.25, 0.75, 0.95))
    return low, first, median(ordered), third, high


def _told(mark: Mark, unit: str) -> str:
    if mark.value is None:
        return mark.label
    value = fmt.quantity_with_interval(mark.value, unit, mark.low, mark.high)
    return " ".join(filter(None, (mark.label, value, "undecided" if mark.is_open else "")))
