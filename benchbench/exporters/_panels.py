"""How each kind of panel is drawn: bars, samples, alternatives over sizes, histories, prices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from zlib import crc32

from benchbench import format as fmt
from benchbench.documents.document import (
    Bar,
    Bars,
    Panel,
    PricePanel,
    Roofline,
    Strip,
    Strips,
    Sweeps,
    TrendLine,
    TrendPoint,
)
from benchbench.exporters._ticks import even_ticks, log_ticks, tick_text
from benchbench.judging.change_points import Change
from benchbench.stats import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# Okabe & Ito 2008: told apart with any colour vision. Black is for what is computed, yellow fades on white; a
# seventh backend has the dark red of Tol 2021, "dark".
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
WIDE = 10  # an axis is logarithmic when its ends are this many times apart
CUT = 2  # two processes that differ can give an interval of any length; an axis stays readable
MOST_LABEL = 34  # characters of an alternative's label
BAR_STYLE: dict[str, Any] = {"ecolor": "black", "capsize": 2.5, "error_kw": {"elinewidth": 1}}
RING: dict[str, Any] = {"s": 60, "facecolors": "none", "edgecolors": "black", "linewidths": 0.8, "zorder": 4}
HEADLINE = 0.33  # the lanes, of the height of an alternative: its headline
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # of alternatives, in their order
TICKS = 8  # sizes, or points, named below a panel
ROWS = 3  # of what changes came to
ROW = 0.09  # how high one of these is, of the panel
LEAST_DAYS = 0.01  # beside the points of a time axis
MOST_NAME = 18  # characters of a point's name below a panel
CROWDED = 0.01  # of the axis: about as wide as a point
BESIDE = 2.0  # times, beside the outermost mark of a roofline
CHANGE = "0.15"
GREY = "0.65"  # of what is dominated
ROOM = 1.02  # beside the outermost sample, at least
HEADROOM = 1.15  # of the largest value: where an axis from zero ends


def is_wide(panel: Panel) -> bool:
    """Whether its values lie so far apart that a linear scale would hide the small ones."""
    if isinstance(panel, Strips):
        values = [step for strip in panel.strips for process in strip.processes for step in process]
    elif isinstance(panel, TrendLine):
        values = [value for point in panel.points for value in point.processes]
    elif isinstance(panel, PricePanel):
        values = [point.value for point in panel.points]
    else:
        return False  # bars begin at zero, lines over sizes are logarithmic
    return max(values, default=0.0) > WIDE * min(values, default=0.0) > 0


def draw_panel(axes: Axes, panel: Panel, *, wide: bool) -> None:
    """A panel of whatever kind; `wide`: whether one of its picture is, since all have one kind of scale."""
    if isinstance(panel, Bars):
        _rows(axes, panel.bars)
        if any(bar.value is not None for bar in panel.bars):
            draw_bars(axes, panel)
    elif isinstance(panel, Strips):
        _rows(axes, panel.strips)
        if any(strip.processes for strip in panel.strips):
            draw_strips(axes, panel, logarithmic=wide)
    elif isinstance(panel, Sweeps):
        draw_sweeps(axes, panel)
    elif isinstance(panel, Roofline):
        draw_roofline(axes, panel)
    elif isinstance(panel, PricePanel):
        draw_prices(axes, panel, logarithmic=wide)
    else:
        draw_trends(axes, panel, logarithmic=wide)


def _rows(axes: Axes, bars: tuple[Bar, ...]) -> None:
    """A row for each alternative, with its status where it has no value."""
    axes.set_yticks(range(len(bars)), [label_of(bar.label) for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    place = axes.get_yaxis_transform()
    for y, bar in enumerate(bars):
        if bar.value is None:
            above = HEADLINE if isinstance(bar, Strip) and bar.processes else 0
            axes.text(0.02, y - above, bar.status, transform=place, va="center", style="italic")
    if all(bar.value is None for bar in bars):
        axes.set_xticks([])


def draw_bars(axes: Axes, panel: Bars) -> None:
    """The bars that have a value, on an axis that begins at zero."""
    from matplotlib.ticker import MaxNLocator

    shown = [(y, bar, bar.value) for y, bar in enumerate(panel.bars) if bar.value is not None]
    longest = max(value for *_, value in shown)
    power = fmt.si_power(longest)
    scale = 10.0**-power
    errors = [_interval_error(bar, value, scale) for _, bar, value in shown]
    axes.barh(
        [y for y, *_ in shown],
        [value * scale for *_, value in shown],
        height=0.7,
        color=["white" if bar.is_open else colour(bar.backend) for _, bar, _ in shown],
        edgecolor=[colour(bar.backend) for _, bar, _ in shown],
        linewidth=1.2,
        xerr=list(zip(*errors, strict=True)),
        **BAR_STYLE,
    )
    for y, _, value in shown:
        write_beside(axes, y, fmt.visible(fmt.quantity(value, panel.unit)))
    axes.set_xlim(0, min(axes.get_xlim()[1], CUT * longest * scale))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.set_xlabel(fmt.visible(fmt.unit_text(panel.unit, power)))


def _interval_error(bar: Bar, value: float, scale: float) -> tuple[float, float]:
    """The errors below and above; NaN draws none. An interval may have no width, and never a negative one."""
    if bar.low is None or bar.high is None:
        return math.nan, math.nan
    return max(value - bar.low, 0.0) * scale, max(bar.high - value, 0.0) * scale


def draw_strips(axes: Axes, panel: Strips, *, logarithmic: bool) -> None:
    """Samples and headlines on one axis of times; each kind of mark is one artist, since each costs time."""
    steps = [step for strip in panel.strips for process in strip.processes for step in process]
    _samples(axes, panel)
    headlines = [(y, strip, strip.value) for y, strip in enumerate(panel.strips) if strip.value is not None]
    for y, _, value in headlines:
        write_beside(axes, y, fmt.seconds(value))
    ranges = [
        (y - HEADLINE, strip.low, strip.high)
        for y, strip, _ in headlines
        if strip.low is not None and strip.high is not None
    ]
    axes.hlines(*_transposed(ranges, 3), color="black", linewidth=1.5)
    axes.scatter(
        [value for *_, value in headlines],
        [y - HEADLINE for y, *_ in headlines],
        marker="D",
        s=18,
        facecolors=["white" if strip.is_open else "black" for _, strip, _ in headlines],
        edgecolors="black",
        zorder=3,
    )
    _seconds_axis(axes, min(steps), max(steps), logarithmic=logarithmic)


def _samples(axes: Axes, panel: Strips) -> None:
    """A lane per process, with a tick at its median."""
    lanes = [
        (lane, process, colour(strip.backend))
        for y, strip in enumerate(panel.strips)
        for lane, process in zip(_lanes(y, len(strip.processes)), strip.processes, strict=True)
    ]
    dots = [(step, lane, shade) for lane, process, shade in lanes for step in process]
    xs, ys, shades = _transposed(dots, 3)
    # A raster: a vector image of every sample would be megabytes.
    axes.scatter(xs, ys, s=7, color=shades, alpha=0.4, linewidths=0, rasterized=True)
    medians = [(median(process), lane) for lane, process, _ in lanes]
    xs, ys = _transposed(medians, 2)
    axes.scatter(xs, ys, marker="|", s=25, color="black", linewidths=1)


def _transposed(rows: Sequence[tuple[Any, ...]], columns: int) -> list[list[Any]]:
    return [[row[column] for row in rows] for column in range(columns)]


def _lanes(y: int, count: int) -> Sequence[float]:
    return [y - 0.14 + 0.48 * (lane / (count - 1) if count > 1 else 0.5) for lane in range(count)]


def _seconds_axis(axes: Axes, low: float, high: float, *, logarithmic: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if logarithmic:
        axes.set_xscale("log")
    left, right = axes.get_xlim()
    left, right = min(max(left, low / CUT), low / ROOM), max(min(right, high * CUT), high * ROOM)
    axes.set_xlim(left, right)
    ticks = log_ticks(left, right) if logarithmic else even_ticks(left, right)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, "s")))


def draw_sweeps(axes: Axes, panel: Sweeps) -> None:
    """A line for each alternative, named beside the panel."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    used: dict[str, int] = {}
    for sweep in panel.sweeps:
        used[sweep.backend] = used.get(sweep.backend, -1) + 1
        marker = MARKERS[used[sweep.backend] % len(MARKERS)]
        sizes, shade = [point.size for point in sweep.points], colour(sweep.backend)
        values = [point.value for point in sweep.points]
        axes.plot(sizes, values, linewidth=1.2, color=shade)
        _draw_marks(axes, [(each.size, each.value, each.is_open) for each in sweep.points], marker, shade)
        axes.plot(
            [], [], marker=marker, markersize=4, linewidth=1.2, color=shade, label=label_of(sweep.label)
        )
        for point in sweep.points:
            if point.low is not None and point.high is not None and point.low > 0:
                axes.plot([point.size] * 2, [point.low, point.high], color=shade, linewidth=2, alpha=0.6)
        if sweep.knee:
            style = "--" if sweep.knee.is_open else "-"
            axes.scatter([sweep.knee.size], [sweep.knee.value], linestyle=style, **RING)
    _size_axis(axes, sorted({point.size for sweep in panel.sweeps for point in sweep.points}))
    _log_axis(axes.yaxis, axes.get_ylim(), panel.unit)
    axes.set_xlabel(fmt.visible(panel.axis))
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    if panel.sweeps:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=8)


def _draw_marks(axes: Axes, places: Sequence[tuple[float, float, bool]], marker: str, shade: str) -> None:
    """A mark at each place, whose third part says whether it decides nothing: it is hollow then."""
    for hollow in (True, False):
        own = [(x, y) for x, y, is_open in places if is_open == hollow]
        axes.plot(
            [x for x, _ in own],
            [y for _, y in own],
            linestyle="",
            marker=marker,
            markersize=4,
            color=shade,
            markerfacecolor="white" if hollow else shade,
        )


def _size_axis(axes: Axes, sizes: Sequence[float]) -> None:
    """Sizes that were measured, named where there is room."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator(sizes[:: -(-len(sizes) // TICKS) or 1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))


def alternatives(panel: Roofline) -> dict[str, str]:
    """The labels of a roofline's marks and roofs, each with its backend; roofs have none."""
    return {point.label: point.backend for point in panel.points} | {roof.label: "" for roof in panel.roofs}


def roof_ends(panel: Roofline) -> tuple[float, float]:
    """The FLOPs for each byte between which a roofline is drawn: all its marks, and where its roofs bend."""
    places = [point.flops_per_byte for point in panel.points]
    places += [roof.flops_per_s / roof.bytes_per_s for roof in panel.roofs]
    return min(places) / BESIDE, max(places) * BESIDE


def draw_roofline(axes: Axes, panel: Roofline) -> None:
    """The roofs, and a mark for each case."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    left, right = roof_ends(panel)
    for roof, style in zip(panel.roofs, ("-", "--"), strict=False):
        places = [left, roof.flops_per_s / roof.bytes_per_s, right]
        rates = [roof.at(each) for each in places]
        axes.plot(places, rates, style, color="black", linewidth=1, label=label_of(roof.label))
    used: dict[str, int] = {}
    for name, backend in alternatives(panel).items():
        number = used[backend] = used.get(backend, -1) + 1
        marker, shade = MARKERS[number % len(MARKERS)], colour(backend)
        own = [(each.flops_per_byte, each.value, each.is_open) for each in panel.points if each.label == name]
        _draw_marks(axes, own, marker, shade)
        if backend:
            axes.plot([], [], linestyle="", marker=marker, markersize=4, color=shade, label=label_of(name))
    axes.set_xlim(left, right)
    _log_axis(axes.xaxis, axes.get_xlim(), "")
    axes.set_xlabel("FLOPs for each byte")
    _log_axis(axes.yaxis, axes.get_ylim(), "FLOP/s")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=8)


def _log_axis(axis: Axis, ends: tuple[float, float], unit: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(log_ticks(*ends)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, unit)))


def draw_trends(axes: Axes, trend: TrendLine, *, logarithmic: bool) -> None:
    """The points where they belong, then what was made of them."""
    places = _places(axes, trend)
    factor, unit = _trend_unit(trend)
    axes.set_ylabel(unit)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    _points(axes, trend, places, factor)
    _levels(axes, trend, places, factor)
    rows = min(ROWS, len(trend.history.changes))
    values = [value * factor for point in trend.points for value in point.processes]
    _trend_values(axes, values, 0.05 + ROW * rows, logarithmic=logarithmic)
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
    """Changes between their points; what they came to in rows at the top, where no point is."""
    for number, change in enumerate(trend.history.changes):
        x = _between(places, change.index)
        axes.axvline(x, color=CHANGE, linestyle="--", linewidth=1)
        late = x - places[0] > 0.85 * (places[-1] - places[0])
        _tell(axes, change, (x, 0.95 - ROW * (number % ROWS)), late=late)
    for index in trend.boundaries:
        axes.axvline(_between(places, index), color="0.3", linestyle=":", linewidth=1.5)


def _tell(axes: Axes, change: Change, place: tuple[float, float], *, late: bool) -> None:
    """A change in words; `late`: too near the right edge to be written right of its line."""
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
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=TICKS)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        beside = max(0.04 * (times[-1] - times[0]), LEAST_DAYS)
        axes.set_xlim(times[0] - beside, times[-1] + beside)
        return times
    names = [point.started[: len("2026-01-01")] if times else point.name for point in trend.points]
    _number_axis(axes, [cut(fmt.visible(name), MOST_NAME) for name in names])
    return range(len(trend.points))


def _crowded(times: Sequence[float]) -> bool:
    """Whether most points would lie on their neighbours."""
    near = CROWDED * (times[-1] - times[0])
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return sum(gap < near for gap in gaps) > len(gaps) / 2


def _number_axis(axes: Axes, names: Sequence[str]) -> None:
    """Points one after the other; some are named."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    count = len(names)
    axes.xaxis.set_major_locator(FixedLocator(range(0, count, math.ceil(count / TICKS))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names[round(x)]))
    axes.tick_params(axis="x", labelrotation=20)


def _times(points: Sequence[TrendPoint]) -> list[float] | None:
    """The beginnings of runs in matplotlib's days; None if one is unknown, or they are not in order."""
    from matplotlib.dates import date2num

    try:
        found = [datetime.fromisoformat(point.started) for point in points]
    except ValueError:
        return None
    times = [float(date2num(each if each.tzinfo else each.replace(tzinfo=UTC))) for each in found]
    return times if times == sorted(times) else None


def _trend_unit(trend: TrendLine) -> tuple[float, str]:
    """What to multiply values by so that they have few digits, and the unit they are in then."""
    unit, largest = trend.unit, max(point.value for point in trend.points)
    if unit == "B":
        step = min(int(math.log(max(largest, 1), 1024)), len(fmt.BINARY) - 1)
        return 1024.0**-step, fmt.BINARY[step]
    power = fmt.second_power(largest) if unit == "s" else fmt.si_power(largest)
    return 10.0**-power, fmt.unit_text(unit, power)


def _trend_values(axes: Axes, values: Sequence[float], above: float, *, logarithmic: bool) -> None:
    """The axis of values; `above`: how much of the panel the points leave free at its top."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = min(values), max(values)
    if logarithmic and high > low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(low * (low / high) ** 0.1, high * (high / low) ** (1.1 * above / (1 - above)))
    else:
        span = (high - low) or 0.1 * high
        axes.set_ylim(low - 0.1 * span, high + 1.1 * span * above / (1 - above))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))


def draw_prices(axes: Axes, panel: PricePanel, *, logarithmic: bool) -> None:
    """A mark for each hardware, named beside the panel, with the interval of its rate."""
    front = [point for point in panel.points if not point.dominated]
    axes.plot(
        [point.price for point in front],
        [point.value for point in front],
        color="black",
        linewidth=0.8,
        drawstyle="steps-post",
        zorder=1,
    )
    for number, point in enumerate(panel.points):
        marker = MARKERS[number % len(MARKERS)]
        shade = OTHERS[number % len(OTHERS)]
        colour = GREY if point.dominated else shade
        if point.low is not None and point.high is not None:
            axes.plot([point.price] * 2, [point.low, point.high], color=colour, linewidth=1.5, alpha=0.6)
        axes.plot(
            [point.price],
            [point.value],
            marker=marker,
            markersize=5,
            linestyle="",
            color=colour,
            label=label_of(point.label),
        )
    _price_axes(axes, panel, logarithmic=logarithmic)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=8)


def _price_axes(axes: Axes, panel: PricePanel, *, logarithmic: bool) -> None:
    """Axes from zero; logarithmic where the values lie far apart."""
    from matplotlib.ticker import FuncFormatter

    prices = [point.price for point in panel.points]
    values = [point.value for point in panel.points]
    if _far_apart(prices):
        axes.set_xscale("log")
    else:
        axes.set_xlim(0, HEADROOM * max(prices))
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max([HEADROOM * max(values), *(point.high or 0.0 for point in panel.points)]))
    axes.set_xlabel(fmt.visible(f"price, {panel.price_unit}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda price, _: f"{price:g}"))
    axes.set_ylabel("" if panel.unit == "×" else fmt.visible(panel.unit))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_tick(value)))


def _far_apart(values: Sequence[float]) -> bool:
    return max(values) > WIDE * min(values)


def _short_tick(value: float) -> str:
    """A tick without a unit: `2k`, `0.5`."""
    power = max(0, fmt.si_power(value))
    return f"{value / 10.0**power:g}{fmt.PREFIXES[power]}"


def colour(backend: str) -> str:
    """The colour of a backend, the same in every plot; that of one not of ours follows from its name."""
    return COLOURS.get(backend) or OTHERS[crc32(backend.encode()) % len(OTHERS)]


def label_of(text: str) -> str:
    """An alternative's label, on one line."""
    return cut(fmt.visible(text), MOST_LABEL)


def cut(text: str, most: int) -> str:
    """The text, of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def write_beside(axes: Axes, y: float, text: str) -> None:
    """A text right of the axes, where no bar or dot can be."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center")
