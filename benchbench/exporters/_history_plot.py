"""The plot of a history: a panel per case, with its processes, levels, changes, spikes and hardware. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from textwrap import fill
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.analyse.metrics import Metric
from benchbench.documents.history import Trend, name
from benchbench.exporters._figure import COLOURS, image
from benchbench.trends.change_points import Change
from benchbench.trends.series import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 20  # panels that can still be looked at
WIDTH, HEIGHT, AROUND = 5.5, 2.6, 0.8  # inches: of a panel, and above and below all of them
WIDE = 10  # an axis is logarithmic when its ends are this many times apart
ROWS, ROW = 3, 0.09  # of what changes came to, and how high one is, of the panel
LEAST_DAYS = 0.01  # beside the points of a time axis
TICKS = 8  # values of a tag named below a panel
PROCESS, POINT, CHANGE = COLOURS[5], COLOURS[0], COLOURS[3]
READING = (
    "Small dots are processes, circles their {what}, crosses spikes; a black line is a level. "
    "A dashed line with a triangle is a change: up is slower, down is faster. "
    "A dotted line is other hardware: nothing is compared across it."
)


def plot(found: Sequence[Trend], extension: str) -> bytes:
    """At most twenty panels, those that changed most; as matplotlib writes that extension.

    The same trends give the same bytes.
    """
    shown = biggest(found)
    return image(lambda: _figure(shown), _title(shown, len(found)), _reading(shown), extension)


def biggest(found: Sequence[Trend]) -> list[Trend]:
    """All in their order, or the twenty whose biggest change is biggest, first and last point after those."""
    if len(found) <= MOST:
        return list(found)
    return sorted(found, key=_extent, reverse=True)[:MOST]


def _extent(trend: Trend) -> tuple[float, float]:
    changes = [abs(math.log(change.ratio)) for change in trend.history.changes]
    return max(changes, default=0.0), abs(math.log(trend.points[-1].value / trend.points[0].value))


def _title(shown: Sequence[Trend], count: int) -> str:
    if not shown:
        return "History"
    metric, by = shown[0].metric, shown[0].by
    title = f"{metric.name} by {fmt.visible(by)}" if by else f"{metric.name} over time"
    better = "less" if metric.better == "lower" else "more"
    some = f"; {len(shown)} of {count} cases, the biggest changes first" if len(shown) < count else ""
    return f"{title} ({better} is better){some}"


def _reading(shown: Sequence[Trend]) -> str:
    return READING.format(what="value for the tag" if shown and shown[0].by else "value in a run")


def _figure(shown: Sequence[Trend]) -> Figure:
    """Panels in two columns; one if there is one case."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    across = min(2, max(1, len(shown)))
    down = math.ceil(len(shown) / across)
    layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.03)
    figure = Figure(figsize=(WIDTH * across, AROUND + HEIGHT * down), layout=layout)
    if not shown:
        figure.text(0.5, 0.5, "no stored run has a value for that", ha="center")
        return figure
    grid = figure.subplots(down, across, squeeze=False)
    for axes, trend in zip(grid.flat, shown, strict=False):
        _panel(axes, trend)
    for axes in grid.flat[len(shown) :]:
        axes.remove()
    return figure


def _panel(axes: Axes, trend: Trend) -> None:
    places = _places(axes, trend)
    factor, unit = _scale(trend)
    axes.set_title(fill(_cut(fmt.visible(trend.case), 130), 60))
    axes.set_ylabel(unit)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    _points(axes, trend, places, factor)
    _levels(axes, trend, places, factor)
    rows = min(ROWS, len(trend.history.changes))
    _value_axis(
        axes, [value * factor for point in trend.points for value in point.processes], 0.05 + ROW * rows
    )
    _changes(axes, trend, places)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _points(axes: Axes, trend: Trend, places: Sequence[float], factor: float) -> None:
    processes = [
        (x, value * factor)
        for x, point in zip(places, trend.points, strict=True)
        for value in point.processes
        if len(point.processes) > 1
    ]
    # A raster: a vector image of every process of a year would be megabytes.
    axes.scatter(*_columns(processes), s=6, color=PROCESS, alpha=0.6, linewidths=0, rasterized=True)
    values = [(x, point.value * factor) for x, point in zip(places, trend.points, strict=True)]
    spikes = [values[index] for index in trend.history.outliers]
    axes.scatter(*_columns(values), s=14, color=POINT, linewidths=0, zorder=3)
    axes.scatter(*_columns(spikes), s=40, marker="x", color="black", linewidths=1, zorder=4)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _levels(axes: Axes, trend: Trend, places: Sequence[float], factor: float) -> None:
    for segment in trend.history.segments:
        ends = [places[segment.start], places[segment.stop - 1]]
        axes.plot(ends, [segment.level * factor] * 2, color="black", linewidth=1.2, zorder=3.5)


def _changes(axes: Axes, trend: Trend, places: Sequence[float]) -> None:
    """Between the points where they happened; what they came to in rows at the top, where no point is."""
    for number, change in enumerate(trend.history.changes):
        x = _between(places, change.index)
        axes.axvline(x, color=CHANGE, linestyle="--", linewidth=1)
        late = x - places[0] > 0.85 * (places[-1] - places[0])
        _tell(axes, change, (x, 0.95 - ROW * (number % ROWS)), late=late)
    for index in trend.boundaries:
        axes.axvline(_between(places, index), color="0.3", linestyle=":", linewidth=1.5)


def _tell(axes: Axes, change: Change, place: tuple[float, float], *, late: bool) -> None:
    """`late`: too near the right edge to be written right of its line."""
    above = axes.get_xaxis_transform()
    marker = "^" if change.direction == "slower" else "v"
    axes.plot(*([each] for each in place), marker=marker, color=CHANGE, transform=above, zorder=6)
    axes.annotate(
        fmt.ratio(change.ratio),
        xy=place,
        xycoords=above,
        xytext=(-5 if late else 5, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="center",
        zorder=5,
    )


def _between(places: Sequence[float], index: int) -> float:
    return (places[index - 1] + places[index]) / 2


def _places(axes: Axes, trend: Trend) -> Sequence[float]:
    """Where each point is on the x axis: its time in days, or the number of its value of the tag."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import FixedLocator, FuncFormatter

    times = None if trend.by else _times(trend.points)
    if times:
        locator = AutoDateLocator(maxticks=TICKS)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        beside = max(0.04 * (max(times) - min(times)), LEAST_DAYS)
        axes.set_xlim(min(times) - beside, max(times) + beside)
        return times
    count = len(trend.points)
    axes.xaxis.set_major_locator(FixedLocator(range(0, count, math.ceil(count / TICKS))))
    names = [_cut(name(point), 18) for point in trend.points]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names[round(x)]))
    axes.tick_params(axis="x", labelrotation=20)
    return range(count)


def _times(points: Sequence[Point]) -> list[float] | None:
    """When each run began, in matplotlib's days; None where one does not say so, or machines took turns."""
    from matplotlib.dates import date2num

    try:
        found = [datetime.fromisoformat(point.started) for point in points]
    except ValueError:
        return None
    times = [float(date2num(each if each.tzinfo else each.replace(tzinfo=UTC))) for each in found]
    return times if times == sorted(times) else None


def _scale(trend: Trend) -> tuple[float, str]:
    """What to multiply values by so that they have few digits, and the unit they are in then."""
    unit, largest = trend.metric.unit, max(point.value for point in trend.points)
    if unit == "B":
        step = min(int(math.log(max(largest, 1), 1024)), len(fmt.BINARY) - 1)
        return 1024.0**-step, fmt.BINARY[step]
    power = fmt.second_power(largest) if unit == "s" else fmt.si_power(largest)
    return 10.0**-power, _prefixed(trend.metric, power)


def _prefixed(metric: Metric, power: int) -> str:
    """`ms`; `k item/s`, where the prefix is of the number."""
    space = " " if metric.unit.startswith("item") else ""
    return f"{fmt.PREFIXES[power]}{space}{metric.unit}".strip()


def _value_axis(axes: Axes, values: Sequence[float], above: float) -> None:
    """`above`: how much of the panel the points leave free at its top."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = min(values), max(values)
    if high > WIDE * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(low * (low / high) ** 0.1, high * (high / low) ** (1.1 * above / (1 - above)))
    else:
        span = (high - low) or 0.1 * high
        axes.set_ylim(low - 0.1 * span, high + 1.1 * span * above / (1 - above))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
