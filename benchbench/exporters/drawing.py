"""Colours of backends, ticks of axes, and drawings in table cells as SVG: marks on a logarithmic ruler.

Colours are attributes, so that viewers without styles show them. Lines and texts have the page's colour.
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
from benchbench.exporters.text import html_text
from benchbench.stats import median, quantile

COARSE = ((1.0,), (1.0, 2.0, 5.0))  # ticks in a decade
EVEN = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps of even ticks
FEWEST_TICKS, MOST_TICKS = 3, 6
MOST_LOG_TICKS = 7
NARROW = 4  # ratio of an axis's ends below which a logarithmic axis has even ticks
NEARLY = 1 + 1e-9  # round values are equal within this factor
ROUNDING = 1e-9  # the same, as a number of steps
FEW_DECADES = 1000  # ratio of an axis's ends from which it ends at powers of ten


def log_ticks(low: float, high: float) -> list[float]:
    """Round values for a logarithmic axis: by decades if it spans enough of them, else evenly spaced.

    Ends of the axis that are round have a tick.
    """
    choices = [_log_candidates(low, high, steps) for steps in COARSE]
    enough = [ticks for ticks in choices if len(ticks) >= FEWEST_TICKS]
    for ticks in enough if high > NARROW * low else []:
        if ticks[0] <= low * NEARLY and ticks[-1] * NEARLY >= high:
            return _thinned(ticks)
    evenly = even_ticks(low, high)
    covered = evenly[0] <= low * NEARLY and evenly[-1] * NEARLY >= high
    return evenly if covered or high <= NARROW * low or not enough else _thinned(enough[0])


def _log_candidates(low: float, high: float, steps: Sequence[float]) -> list[float]:
    """Round values between `low` and `high`, which may themselves be such values."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    candidates = [round(step * 10.0**power, 12 - power) for power in decades for step in steps]
    return [value for value in candidates if low <= value * NEARLY and value <= high * NEARLY]


def _thinned(ticks: list[float]) -> list[float]:
    """At most `MOST_LOG_TICKS` ticks, always with the first and the last."""
    stride = -(-(len(ticks) - 1) // (MOST_LOG_TICKS - 1)) or 1
    thinned = ticks[::stride]
    if thinned[-1] != ticks[-1]:
        thinned = [*thinned[: -1 if stride > 2 else None], ticks[-1]]
    return thinned


def enclosing(low: float, high: float, *, logarithmic: bool) -> tuple[float, float]:
    """Ends of an axis that are ticks: the nearest round values outside `low` to `high`."""
    if logarithmic and high > NARROW * low:
        steps = COARSE[0] if high > FEW_DECADES * low else COARSE[1]
        values = _log_candidates(low / 10, high * 10, steps)
        bottom = max(value for value in values if value <= low * NEARLY)
        top = min(value for value in values if value * NEARLY >= high)
        if len(_log_candidates(bottom, top, COARSE[1])) >= FEWEST_TICKS:
            return bottom, top
    step = _even_step(low, high)
    bottom, top = math.floor(low / step + ROUNDING) * step, math.ceil(high / step - ROUNDING) * step
    return (bottom, top) if bottom > 0 or not logarithmic else (low, top)


def even_ticks(low: float, high: float) -> list[float]:
    """Evenly spaced round values."""
    step = _even_step(low, high)
    first, last = math.ceil(low / step - ROUNDING), math.floor(high / step + ROUNDING)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _even_step(low: float, high: float) -> float:
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in EVEN if factor * power >= rough * 0.999)


def tick_text(value: float, unit: str) -> str:
    """Label of a tick: `20 ms`, `1.5×`, `5 GB/s`, `2k images/s`."""
    if unit in ("×", ""):
        return f"{value:g}{unit}"
    if unit == "B":
        return fmt.size(value)
    power = fmt.axis_power(value, unit)
    number = f"{value / 10.0**power:.4g}"
    if unit == "s" or unit in fmt.PREFIXED:
        return f"{number} {fmt.unit_text(unit, power)}"
    return f"{number}{fmt.PREFIXES[power]} {fmt.unit_text(unit, 0)}"


def date_names(started: Sequence[str]) -> list[str]:
    """Labels of runs by their start (ISO 8601): dates, with the time if several runs share a day.

    The year is omitted if it is the same and there is a time: `11-26 14:05`.
    """
    dates = [text[: len("2026-01-01")] for text in started]
    if len(set(dates)) == len(dates):
        return dates
    skipped = len("2026-") if len({text[:4] for text in started}) == 1 else 0
    return [text[skipped : len("2026-01-01T00:00")].replace("T", " ") for text in started]


def without_overlap(names: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Drop labels that overlap the previous one on an axis."""
    labels: list[tuple[float, str]] = []
    for position, name in names:
        if not labels or position - labels[-1][0] > LETTER * ((len(name) + len(labels[-1][1])) / 2 + 1):
            labels.append((position, name))
    return labels


# Okabe & Ito 2008: distinguishable with any colour vision. Black marks computed lines, and yellow is too
# bright on white. The seventh backend has the dark red of Tol 2021, "dark".
COLOURS = {
    "torch": "#D55E00",
    "tensorflow": "#E69F00",
    "jax": "#0072B2",
    "onnxruntime": "#009E73",
    "openvino": "#663333",
    "torch_xla": "#CC79A7",
    "fake": "#56B4E9",
}
OTHERS = ("#332288", "#882255", "#999933", "#44AA99", "#AA4499", "#DDCC77")  # Tol 2021, "muted"
WIDTH = 300.0  # pixels of a drawing
EDGE = 24.0  # pixels on both sides of the ruler, for marks and labels at its ends
LETTER = 6.0  # approximate width of a letter of a tick, in pixels
LINE = 17.0  # pixels between marks, and from the edge to the first mark
LANE = 6.0  # pixels between processes
MAX_LANES = 12  # processes that are drawn; more would be unreadable
CLIPPED = 2.0  # intervals are cut off at this multiple of the values: two processes can give any length
MIN_SPAN = 1.1  # smallest ratio of a ruler's ends, so that noise of one per cent looks small
PLAIN = "#808080"  # colour of marks without a backend
NAMED = ("torch", "tensorflow", "jax", "onnxruntime", "torch_xla", "openvino", "fake")
SHAPES = (
    "M-5.5,0a5.5,5.5 0 1,0 11,0a5.5,5.5 0 1,0 -11,0z",
    "M-5,-5h10v10h-10z",
    "M0,-7L7,0L0,7L-7,0z",
    "M0,-6.5L6.5,5H-6.5z",
    "M0,6.5L6.5,-5H-6.5z",
    "M-2,-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
    "M-6.5,-2L0,-7L6.5,-2L4,5.5H-4z",
)


@dataclass(frozen=True)
class Ruler:
    """Logarithmic scale from `low` to `high`, both positive, in `unit`."""

    low: float
    high: float
    unit: str

    def x(self, value: float) -> float:
        """Position of a value in pixels; values outside are at the ends of the ruler."""
        start, per_pixel = self._logs
        return min(max(EDGE + (math.log(max(value, 1e-300)) - start) * per_pixel, EDGE), WIDTH - EDGE)

    @cached_property
    def _logs(self) -> tuple[float, float]:
        """Logarithm of the start, and pixels per unit of it."""
        start = math.log(self.low)
        return start, (WIDTH - 2 * EDGE) / (math.log(self.high) - start)

    @cached_property
    def ticks(self) -> list[float]:
        """Values with a label."""
        return log_ticks(self.low, self.high)


def ruler_of(spreads: Sequence[Spread]) -> Ruler | None:
    """Choose a ruler for all values and, as far as it stays readable, intervals and processes."""
    marks = [mark for spread in spreads for mark in spread.marks]
    values = [value for mark in marks for value in _values(mark) if value > 0]
    if not values:
        return None
    low, high = min(values), max(values)
    ends = [end for mark in marks for end in (mark.low, mark.high) if end is not None and end > 0]
    ends += [step for mark in marks for samples in mark.processes for step in _five(samples) if step > 0]
    bottom = max(min([low, *ends]), low / CLIPPED)
    top = min(max([high, *ends]), high * CLIPPED)
    margin = max(MIN_SPAN / (top / bottom), 1.0) ** 0.5
    return Ruler(*enclosing(bottom / margin, top * margin, logarithmic=True), spreads[0].unit)


def _values(mark: Mark) -> list[float]:
    """Value of a mark, or the medians of its processes if they disagree."""
    return [mark.value] if mark.value is not None else [median(samples) for samples in mark.processes]


def drawing(spread: Spread, ruler: Ruler, heights: Sequence[str] = ()) -> str:
    """Draw marks at the heights of their labels in `heights`, with lanes of their processes below."""
    parts = [f'<path stroke="#8886" d="{_grid(ruler, _height(spread, heights))}"/>']
    several = len(spread.marks) > 1  # the row of a single mark already has its number and backend
    for number, mark in enumerate(spread.marks):
        line = heights.index(mark.label) if mark.label in heights else number
        shapes = [*_mark(mark, ruler, LINE * (line + 0.5)), *_lanes(mark, ruler, LINE * (line + 1))]
        backend = f' data-b="{html_text(mark.backend)}"' if several else ""
        parts.append(f'<g{backend} stroke="{colour(mark.backend)}">{"".join(shapes)}</g>')
    label = "; ".join(_label(mark, spread.unit) for mark in spread.marks) if several else ""
    return _svg(parts, _height(spread, heights), label)


def axis(ruler: Ruler) -> str:
    """Labels of the ruler's ticks, as far as they have room."""
    names = [(ruler.x(value), tick_text(value, ruler.unit)) for value in ruler.ticks]
    names = [
        (x, name) for x, name in names if len(name) * LETTER / 2 <= min(x, WIDTH - x)
    ]  # without labels that would be cut off
    parts = [f'<text x="{x:.1f}" y="11">{escape(name)}</text>' for x, name in without_overlap(names)]
    paint = 'font-size="10" text-anchor="middle" fill="currentColor"'
    return _svg([f"<g {paint}>{''.join(parts)}</g>"], 15, "")


def shape_of(backend: str) -> str:
    """Outline of a backend's marks around the origin, the same on every page."""
    index = NAMED.index(backend) if backend in NAMED else crc32(backend.encode())
    return SHAPES[index % len(SHAPES)]


def colour(backend: str) -> str:
    """Colour of a backend, the same in every plot; for other backends it depends on the name."""
    return COLOURS.get(backend) or (OTHERS[crc32(backend.encode()) % len(OTHERS)] if backend else PLAIN)


def symbol(backend: str) -> str:
    """Mark of a backend, for a legend."""
    mark = f'<path fill="{colour(backend)}" transform="translate(8,8)" d="{shape_of(backend)}"/>'
    return f'<svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">{mark}</svg>'


def _svg(parts: Iterable[str], height: float, label: str) -> str:
    label = html_text(label)
    role = f'role="img" aria-label="{label}"' if label else 'aria-hidden="true"'
    size = f'width="{WIDTH:g}" height="{height:g}" viewBox="0 0 {WIDTH:g} {height:g}"'
    return f"<svg {role} {size}>{''.join(parts)}</svg>"


def _height(spread: Spread, heights: Sequence[str]) -> float:
    lanes = max((min(len(mark.processes), MAX_LANES) for mark in spread.marks), default=0)
    return LINE * max(len(heights), len(spread.marks)) + LANE * lanes + 4


@lru_cache(100)  # shared by the rows of a table
def _grid(ruler: Ruler, height: float) -> str:
    return "".join(f"M{ruler.x(value):.0f},0V{height:g}" for value in ruler.ticks)


def _mark(mark: Mark, ruler: Ruler, y: float) -> Iterator[str]:
    """Yield the interval and the mark, or nothing if processes disagree."""
    if mark.value is None:
        return
    if mark.low is not None and mark.high is not None:
        yield f'<path stroke-width="2" d="M{ruler.x(mark.low):.1f},{y:g}H{ruler.x(mark.high):.1f}"/>'
    yield mark_path(mark.backend, f"{ruler.x(mark.value):.1f},{y:g}", is_undecided=mark.is_undecided)


def mark_path(backend: str, position: str, *, is_undecided: bool) -> str:
    """Mark of a backend at `x,y`, hollow if it is open. Its line has the colour of the
    surrounding element.
    """
    paint = 'fill="none" stroke-width="1.5"' if is_undecided else f'fill="{colour(backend)}"'
    return f'<path {paint} transform="translate({position})" d="{shape_of(backend)}"/>'


def _lanes(mark: Mark, ruler: Ruler, top: float) -> list[str]:
    """Draw 5th to 95th percentile, quartiles and median of each process; one path per kind."""
    ranges, quartiles, medians = [], [], []
    for number, samples in enumerate(mark.processes[:MAX_LANES]):
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


@lru_cache(1000)  # used by the ruler of a table and by its rows
def _five(samples: tuple[float, ...]) -> tuple[float, ...]:
    ordered = sorted(samples)  # sorting a sorted list again is fast
    low, first, third, high = (quantile(ordered, share) for share in (0.05, 0.25, 0.75, 0.95))
    return low, first, median(ordered), third, high


def _label(mark: Mark, unit: str) -> str:
    if mark.value is None:
        return mark.label
    value = fmt.quantity_with_interval(mark.value, unit, mark.low, mark.high)
    return " ".join(filter(None, (mark.label, value, "undecided" if mark.is_undecided else "")))
