"""A panel of a history: processes, levels, changes, spikes, and where the hardware changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from benchbench import format as fmt
from benchbench.documents.document import TrendLine, TrendPoint
from benchbench.exporters._drawing import WIDE, colour, cut
from benchbench.trends.change_points import Change

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS, ROW = 3, 0.09  # of what changes came to, and how high one is, of the panel
LEAST_DAYS = 0.01  # beside the points of a time axis
TICKS, MOST_NAME = 8, 18  # points named below a panel, and the characters of a name
CROWDED = 0.01  # of the axis: about as wide as a point
CHANGE = "0.15"


def draw_trends(axes: Axes, trend: TrendLine) -> None:
    """The points where they belong, then what was made of them."""
    places = _places(axes, trend)
    factor, unit = _scale(trend)
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


def _points(axes: Axes, trend: TrendLine, places: Sequence[float], factor: float) -> None:
    processes = [
        (x, value * factor)
        for x, point in zip(places, trend.points, strict=True)
        for value in point.processes
        if len(point.processes) > 1
    ]
    # A raster: a vector image of every process of a year would be megabytes.
    axes.scatter(
        *_columns(processes), s=6, color=colour(trend.backend), alpha=0.3, linewidths=0, rasterized=True
    )
    values = [(x, point.value * factor) for x, point in zip(places, trend.points, strict=True)]
    spikes = [values[index] for index in trend.history.outliers]
    axes.scatter(*_columns(values), s=14, color=colour(trend.backend), linewidths=0, zorder=3)
    axes.scatter(*_columns(spikes), s=40, marker="x", color="black", linewidths=1, zorder=4)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _levels(axes: Axes, trend: TrendLine, places: Sequence[float], factor: float) -> None:
    for segment in trend.history.segments:
        ends = [places[segment.start], places[segment.stop - 1]]
        axes.plot(ends, [segment.level * factor] * 2, color="black", linewidth=1.2, zorder=3.5)


def _changes(axes: Axes, trend: TrendLine, places: Sequence[float]) -> None:
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


def _places(axes: Axes, trend: TrendLine) -> Sequence[float]:
    """Where each point is on the x axis: its time in days or, by a tag or crowded, its number."""
    times = _times(trend.points) if trend.by_time else None
    if times and not _crowded(times):
        _time_axis(axes, times)
        return times
    names = [point.started[: len("2026-01-01")] if times else point.name for point in trend.points]
    _number_axis(axes, [cut(fmt.visible(name), MOST_NAME) for name in names])
    return range(len(trend.points))


def _crowded(times: Sequence[float]) -> bool:
    """Whether most points would lie on their neighbours."""
    near = CROWDED * (times[-1] - times[0])
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return sum(gap < near for gap in gaps) > len(gaps) / 2


def _time_axis(axes: Axes, times: Sequence[float]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=TICKS)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    beside = max(0.04 * (times[-1] - times[0]), LEAST_DAYS)
    axes.set_xlim(times[0] - beside, times[-1] + beside)


def _number_axis(axes: Axes, names: Sequence[str]) -> None:
    """One after the other; some are named."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    count = len(names)
    axes.xaxis.set_major_locator(FixedLocator(range(0, count, math.ceil(count / TICKS))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names[round(x)]))
    axes.tick_params(axis="x", labelrotation=20)


def _times(points: Sequence[TrendPoint]) -> list[float] | None:
    """When each run began, in matplotlib's days; None where one does not say so, or machines took turns."""
    from matplotlib.dates import date2num

    try:
        found = [datetime.fromisoformat(point.started) for point in points]
    except ValueError:
        return None
    times = [float(date2num(each if each.tzinfo else each.replace(tzinfo=UTC))) for each in found]
    return times if times == sorted(times) else None


def _scale(trend: TrendLine) -> tuple[float, str]:
    """What to multiply values by so that they have few digits, and the unit they are in then."""
    unit, largest = trend.unit, max(point.value for point in trend.points)
    if unit == "B":
        step = min(int(math.log(max(largest, 1), 1024)), len(fmt.BINARY) - 1)
        return 1024.0**-step, fmt.BINARY[step]
    power = fmt.second_power(largest) if unit == "s" else fmt.si_power(largest)
    return 10.0**-power, fmt.unit_text(unit, power)


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
