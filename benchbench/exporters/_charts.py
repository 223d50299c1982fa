"""Charts of a page as SVG: rates over sizes, rooflines, histories, prices. Tables show bars and samples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchbench import format as fmt
from benchbench.documents.document import Panel, PricePanel, Roofline, Sweep, Sweeps, TrendLine
from benchbench.exporters._drawing import mark_path, shade_of, symbol
from benchbench.exporters._panels import label_of, roof_ends
from benchbench.exporters._text import html_text
from benchbench.exporters._ticks import (
    date_names,
    enclosing,
    even_ticks,
    log_ticks,
    tick_text,
    without_overlap,
)
from benchbench.judging.change_points import Change

Box = tuple[float, float, float, float]  # left, right, top, bottom
WIDTH, HEIGHT = 640.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 12.0, 22.0, 34.0
LETTER = 7.0  # approximate width of a letter beside an axis, in pixels
MAX_LEFT = 240.0
WIDE = 10  # ratio of an axis's ends above which it is logarithmic
ROOM = 0.08  # free share of the axis beyond the outermost values
MAX_NAMES = 8  # labelled points of a history
MAX_NAME_LENGTH = 16  # characters
ROOFS = ("", ' stroke-dasharray="6,3"')  # measured ceilings, and those of the datasheet
MARK = 7.0  # radius of a mark, in pixels
RING = 8.0  # radius of the ring at the knee of a line, in pixels
DASHES = ("", "6,3", "2,2", "8,3,2,3")  # patterns for several lines of one backend


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between `low` and `high` to pixels between `start` and `stop`."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool

    def __call__(self, value: float) -> float:
        form = math.log if self.logarithmic else float
        share = (form(value) - form(self.low)) / (form(self.high) - form(self.low))
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)

    @property
    def ticks(self) -> list[float]:
        """A few round values."""
        return log_ticks(self.low, self.high) if self.logarithmic else even_ticks(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a chart with its interval; `is_undecided`: the difference is not significant."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    is_undecided: bool = False


def chart(panel: Panel) -> str:
    """Draw the panel as SVG; empty for bars and samples, which the page's tables show, and without points."""
    if isinstance(panel, Sweeps):
        return _sweeps(panel)
    if isinstance(panel, Roofline):
        return _roofline(panel)
    if isinstance(panel, TrendLine):
        return _trend(panel)
    if isinstance(panel, PricePanel):
        return _prices(panel)
    return ""


def legend(panel: Panel) -> list[tuple[str, str]]:
    """Labels of the panel's lines, with a sample of each line."""
    if isinstance(panel, Sweeps):
        return [(sweep.label, _key(sweep.backend, dashes)) for sweep, dashes in _with_dashes(panel.sweeps)]
    if isinstance(panel, Roofline):
        roofs = [(roof.label, _key("", dashes)) for roof, dashes in zip(panel.roofs, ROOFS, strict=False)]
        backends = dict.fromkeys(point.backend for point in panel.points)
        return [*roofs, *((name, symbol(name)) for name in backends)]
    return []


def _key(backend: str, dashes: str) -> str:
    """Sample of a line, with its backend's mark."""
    mark = mark_path(backend, "16,8", is_undecided=False) if backend else ""
    line = f'<path fill="none" stroke-width="1.5"{dashes} d="M0,8H32"/>'
    paint = f'<g stroke="{shade_of(backend) if backend else "currentColor"}">{line}{mark}</g>'
    return f'<svg width="32" height="16" viewBox="0 0 32 16" aria-hidden="true">{paint}</svg>'


def _with_dashes(sweeps: Sequence[Sweep]) -> Iterator[tuple[Sweep, str]]:
    """Yield each line with its dash pattern: lines of one backend share colour and mark."""
    used: dict[str, int] = {}
    for sweep in sweeps:
        number = used[sweep.backend] = used.get(sweep.backend, -1) + 1
        pattern = DASHES[number % len(DASHES)]
        yield sweep, f' stroke-dasharray="{pattern}"' if pattern else ""


def _sweeps(panel: Sweeps) -> str:
    points = [point for sweep in panel.sweeps for point in sweep.points]
    if not points:
        return ""
    y = _scale([point.value for point in points], HEIGHT - BOTTOM, TOP, logarithmic=True)
    axis_x = _axis_x(y, panel.unit)
    x = _scale([point.size for point in points], axis_x, WIDTH - RIGHT, logarithmic=True)
    names = [(x(size), f"{size:,.0f}") for size in sorted({point.size for point in points})]
    parts = [_axes(y, panel.unit, axis_x), _names(without_overlap(names, LETTER), panel.axis)]
    for sweep, dashes in _with_dashes(panel.sweeps):
        line_points = [
            Point(
                sweep_point.size,
                sweep_point.value,
                sweep_point.low,
                sweep_point.high,
                sweep_point.is_undecided,
            )
            for sweep_point in sweep.points
        ]
        parts.append(_line(line_points, sweep.backend, dashes, x, y))
        if sweep.knee:
            dotted = ' stroke-dasharray="3,2"' if sweep.knee.is_undecided else ""
            position = f'cx="{x(sweep.knee.size):.1f}" cy="{y(sweep.knee.value):.1f}"'
            parts.append(f'<circle fill="none" stroke="currentColor"{dotted} r="{RING:g}" {position}/>')
    return _svg(parts, panel.title)


def _roofline(panel: Roofline) -> str:
    rates = [point.value for point in panel.points]
    y = _scale([*rates, *(roof.flops_per_s for roof in panel.roofs)], HEIGHT - BOTTOM, TOP, logarithmic=True)
    axis_x = _axis_x(y, "FLOP/s")
    x = Scale(*roof_ends(panel), axis_x, WIDTH - RIGHT, logarithmic=True)
    names = [(x(tick), f"{tick:g}") for tick in x.ticks]
    parts = [_axes(y, "FLOP/s", axis_x), _names(without_overlap(names, LETTER), "FLOPs for each byte")]
    for roof, dashes in zip(panel.roofs, ROOFS, strict=False):
        bend, start = roof.flops_per_s / roof.bytes_per_s, max(x.low, y.low / roof.bytes_per_s)
        bent = (
            f"M{x(start):.1f},{y(roof.at(start)):.1f}L{x(bend):.1f},{y(roof.flops_per_s):.1f}H{x(x.high):.1f}"
        )
        parts.append(f'<path fill="none" stroke="currentColor" stroke-width="1.5"{dashes} d="{bent}"/>')
    for point in panel.points:
        position = Point(point.flops_per_byte, point.value, point.low, point.high, point.is_undecided)
        title = html_text(f"{point.work}, {point.label}: {fmt.quantity(point.value, 'FLOP/s')}")
        mark = _mark(position, point.backend, x, y)
        parts.append(f'<g data-b="{html_text(point.backend)}"><title>{title}</title>{mark}</g>')
    return _svg([*parts, *_work_names(panel, x, y)], panel.title)


def _work_names(panel: Roofline, x: Scale, y: Scale) -> Iterator[str]:
    """Yield the name of each work next to its fastest point, if there is room; fast works first."""
    marks = [(x(point.flops_per_byte), y(point.value)) for point in panel.points]
    occupied = [(at - MARK, at + MARK, height - MARK, height + MARK) for at, height in marks]
    fastest = {point.work: point for point in sorted(panel.points, key=lambda point: point.value)}
    for work, point in reversed(fastest.items()):
        at, height, wide = x(point.flops_per_byte), y(point.value), LETTER * len(label_of(work))
        for left, base in (
            *((at - wide / 2, height - 8), (at + 8, height + 4), (at - 8 - wide, height + 4)),
            (at - wide / 2, height + 16),
        ):
            box = left, left + wide, base - 9, base + 2
            if (
                left >= x.start
                and box[1] <= x.stop
                and not any(_overlap(box, taken_box) for taken_box in occupied)
            ):
                occupied.append(box)
                yield _text(left + wide / 2, base, work, "middle")
                break


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _trend(panel: TrendLine) -> str:
    values = [value for point in panel.points for value in (point.value, *point.processes)]
    spans = max(values) > WIDE * min(values) > 0
    last = max(len(panel.points) - 1, 1)
    y = _scale(values, HEIGHT - BOTTOM, TOP, logarithmic=spans)
    axis_x = _axis_x(y, panel.unit)
    x = Scale(-0.5, last + 0.5, axis_x, WIDTH - RIGHT, logarithmic=False)
    every = -(-len(panel.points) // MAX_NAMES)
    texts = (
        date_names([point.started for point in panel.points])
        if panel.by_time
        else [point.name for point in panel.points]
    )
    names = [
        (x(number), fmt.visible(text)[:MAX_NAME_LENGTH])
        for number, text in enumerate(texts)
        if number % every == 0
    ]
    parts = [_axes(y, panel.unit, axis_x), _names(without_overlap(names, LETTER), "")]
    shade = shade_of(panel.backend)
    for number, point in enumerate(panel.points):
        dots = "".join(f"M{x(number):.1f},{y(value):.1f}h.01" for value in point.processes)
        dotted = 'stroke-width="3" stroke-linecap="round" stroke-opacity=".35"'
        parts.append(f'<path stroke="{shade}" {dotted} d="{dots}"/>')
        parts.append(_mark(Point(number, point.value), panel.backend, x, y))
    spikes = [(x(number), y(panel.points[number].value)) for number in panel.history.outliers]
    crosses = "".join(f"M{at - 5:.1f},{level - 5:.1f}l10,10m0,-10l-10,10" for at, level in spikes)
    parts += [f'<path stroke="currentColor" d="{crosses}"/>'] if crosses else []
    for segment in panel.history.segments:
        level = f"M{x(segment.start):.1f},{y(segment.level):.1f}H{x(segment.stop - 1):.1f}"
        parts.append(f'<path stroke="currentColor" stroke-width="1.5" d="{level}"/>')
    parts += [_change(change, x) for change in panel.history.changes]
    parts += [_vertical(x(index - 0.5), "2,3") for index in panel.boundaries]
    return _svg(parts, panel.title)


def _change(change: Change, x: Scale) -> str:
    at = x(change.index - 0.5)
    sign = "▲" if change.direction == "slower" else "▼"
    words = f"{sign} {fmt.ratio(change.ratio)}"
    anchor = "end" if at > 0.8 * WIDTH else "start"
    offset = -4 if anchor == "end" else 4
    return _vertical(at, "5,4") + _text(at + offset, TOP - 6, words, anchor)


def _prices(panel: PricePanel) -> str:
    if not panel.points:
        return ""
    prices, values = [point.price for point in panel.points], [point.value for point in panel.points]
    y = _scale(values, HEIGHT - BOTTOM, TOP, logarithmic=max(values) > WIDE * min(values))
    axis_x = _axis_x(y, panel.unit)
    x = _scale(prices, axis_x, WIDTH - RIGHT, logarithmic=max(prices) > WIDE * min(prices))
    names = [(x(tick), f"{tick:g}") for tick in x.ticks]
    parts = [_axes(y, panel.unit, axis_x), _names(names, panel.price_unit), _front(panel, x, y)]
    for point in panel.points:
        position = Point(point.price, point.value, point.low, point.high)
        parts.append(_mark(position, "" if point.dominated else point.label, x, y))
        end = x(point.price) > 0.7 * WIDTH
        parts.append(
            _text(
                x(point.price) + (-8 if end else 8),
                y(point.value) - 6,
                point.label,
                "end" if end else "start",
            )
        )
    return _svg(parts, panel.title)


def _front(panel: PricePanel, x: Scale, y: Scale) -> str:
    """Line in steps through the hardware that no other beats."""
    front = [point for point in panel.points if not point.dominated]
    steps = "".join(f"H{x(point.price):.1f}V{y(point.value):.1f}" for point in front[1:])
    if not steps:
        return ""
    start = f"M{x(front[0].price):.1f},{y(front[0].value):.1f}"
    return f'<path fill="none" stroke="currentColor" stroke-width=".8" d="{start}{steps}"/>'


def _axis_x(y: Scale, unit: str) -> float:
    """Left end of the axes, with room for the longest label."""
    longest = max((len(tick_text(tick, unit)) for tick in y.ticks), default=0)
    return min(max(LEFT, LETTER * longest + 12), MAX_LEFT)


def _scale(values: Sequence[float], start: float, stop: float, *, logarithmic: bool) -> Scale:
    low, high = min(values), max(values)
    if logarithmic and low > 0:
        factor = (high / low) ** ROOM if high > low else 2.0
        ends = enclosing(low / factor, high * factor, logarithmic=True)
        return Scale(*ends, start, stop, logarithmic=True)
    margin = ROOM * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(*enclosing(low - margin, high + margin, logarithmic=False), start, stop, logarithmic=False)


def _axes(y: Scale, unit: str, left: float) -> str:
    lines = "".join(f"M{left:g},{y(tick):.1f}H{WIDTH - RIGHT:g}" for tick in y.ticks)
    texts = "".join(_text(left - 6, y(tick) + 4, tick_text(tick, unit), "end") for tick in y.ticks)
    return f'<path stroke="#8886" d="{lines}"/>{texts}'


def _names(positions: Sequence[tuple[float, str]], axis: str) -> str:
    texts = "".join(_text(x, HEIGHT - BOTTOM + 14, name, "middle") for x, name in positions)
    return texts + (_text((LEFT + WIDTH) / 2, HEIGHT - 4, axis, "middle") if axis else "")


def _line(points: Sequence[Point], backend: str, dashes: str, x: Scale, y: Scale) -> str:
    path = "L".join(f"{x(point.x):.1f},{y(point.y):.1f}" for point in points)
    line = f'<path fill="none" stroke-width="1.5"{dashes} d="M{path}"/>'
    paint = f'data-b="{html_text(backend)}" stroke="{shade_of(backend)}"'
    return f"<g {paint}>{line}{_marks(points, backend, x, y)}</g>"


def _mark(point: Point, backend: str, x: Scale, y: Scale) -> str:
    return f'<g stroke="{shade_of(backend)}">{_marks([point], backend, x, y)}</g>'


def _marks(points: Sequence[Point], backend: str, x: Scale, y: Scale) -> str:
    """Intervals as one path, then the marks, in the colour of the surrounding element."""
    intervals = "".join(
        f"M{x(point.x):.1f},{y(point.low):.1f}V{y(point.high):.1f}"
        for point in points
        if point.low is not None and point.high is not None and point.low > 0
    )
    interval_path = f'<path stroke-width="2" stroke-opacity=".6" d="{intervals}"/>' if intervals else ""
    marks = (
        mark_path(backend, f"{x(point.x):.1f},{y(point.y):.1f}", is_undecided=point.is_undecided)
        for point in points
    )
    return interval_path + "".join(marks)


def _vertical(x: float, dashes: str) -> str:
    line = f"M{x:.1f},{TOP:g}V{HEIGHT - BOTTOM:g}"
    return f'<path stroke="currentColor" stroke-dasharray="{dashes}" d="{line}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    words = html_text(label_of(text))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" '
        f'fill="currentColor">{words}</text>'
    )


def _svg(parts: Sequence[str], title: str) -> str:
    label = html_text(title)
    size = f'width="{WIDTH:g}" height="{HEIGHT:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}"'
    return f'<svg class="chart" role="img" aria-label="{label}" {size}>{"".join(parts)}</svg>'
