"""Draw panels: bars, samples, alternatives over sizes, histories, prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from benchbench import format as fmt
from benchbench.documents.document import (
    Bars,
    Mark,
    Panel,
    PricePanel,
    Roofline,
    Strips,
    Sweeps,
    TrendLine,
    TrendPoint,
)
from benchbench.exporters.drawing import (
    OTHERS,
    colour,
    date_names,
    enclosing,
    even_ticks,
    log_ticks,
    tick_text,
)
from benchbench.judging.change_points import Change
from benchbench.stats import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDE = 10  # ratio of an axis's ends above which it is logarithmic
CUT = 2  # intervals are cut off at this multiple of the values: two processes can give any length
MAX_LABEL_LENGTH = 34  # characters
BAR_STYLE: dict[str, Any] = {"ecolor": "black", "capsize": 2.5, "error_kw": {"elinewidth": 1}}
RING: dict[str, Any] = {"s": 60, "facecolors": "none", "edgecolors": "black", "linewidths": 0.8, "zorder": 4}
HEADLINE = 0.33  # distance of the headline above the lanes, as a share of an alternative's height
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # for alternatives of one backend
TICKS = 8  # labelled sizes or points below a panel
ROWS = 3  # rows for the labels of changes
ROW = 0.09  # height of such a row, as a share of the panel
MIN_DAYS = 0.01  # margin of a time axis
MAX_NAME_LENGTH = 18  # characters of a point's name below a panel
CROWDED = 0.01  # width of a point, as a share of the axis
BESIDE = 2.0  # factor between the outermost marks of a roofline and its ends
CHANGE = "0.15"
GREY = "0.65"  # colour of dominated hardware
ROOM = 1.02  # smallest factor between the outermost samples and the axis's ends
HEADROOM = 1.15  # end of an axis from zero, as a multiple of the largest value


def is_wide(panel: Panel) -> bool:
    """True if a linear scale would hide the small values of a panel."""
    if isinstance(panel, Strips):
        values = [step for strip in panel.marks for process in strip.processes for step in process]
    elif isinstance(panel, TrendLine):
        values = [value for point in panel.points for value in point.processes]
    elif isinstance(panel, PricePanel):
        values = [point.value for point in panel.points]
    else:
        return False  # bars start at zero, lines over sizes are logarithmic
    return max(values, default=0.0) > WIDE * min(values, default=0.0) > 0


def draw_panel(axes: Axes, panel: Panel, *, wide: bool) -> None:
    """Draw a panel; `wide`: a panel of the picture has a wide range, and all share the kind of scale."""
    if isinstance(panel, Bars):
        _rows(axes, panel.marks)
        if any(bar.value is not None for bar in panel.marks):
            draw_bars(axes, panel)
    elif isinstance(panel, Strips):
        _rows(axes, panel.marks)
        if any(strip.processes for strip in panel.marks):
            draw_strips(axes, panel, logarithmic=wide)
    elif isinstance(panel, Sweeps):
        draw_sweeps(axes, panel)
    elif isinstance(panel, Roofline):
        draw_roofline(axes, panel)
    elif isinstance(panel, PricePanel):
        draw_prices(axes, panel, logarithmic=wide)
    else:
        draw_trends(axes, panel, logarithmic=wide)


def _rows(axes: Axes, bars: Sequence[Mark]) -> None:
    """Label a row for each alternative, with its status if it has no value."""
    axes.set_yticks(range(len(bars)), [label_of(bar.label) for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    transform = axes.get_yaxis_transform()
    for y, bar in enumerate(bars):
        if bar.value is None:
            above = HEADLINE if bar.processes else 0
            axes.text(0.02, y - above, bar.status, transform=transform, va="center", style="italic")
    if all(bar.value is None for bar in bars):
        axes.set_xticks([])


def draw_bars(axes: Axes, panel: Bars) -> None:
    """Draw the bars that have a value, on an axis from zero."""
    bars = [(y, bar, bar.value) for y, bar in enumerate(panel.marks) if bar.value is not None]
    longest = max(value for *_, value in bars)
    power = fmt.axis_power(longest, panel.unit)
    scale = 10.0**-power
    errors = [_interval_error(bar, value, scale) for _, bar, value in bars]
    axes.barh(
        [y for y, *_ in bars],
        [value * scale for *_, value in bars],
        height=0.7,
        color=["white" if bar.is_undecided else colour(bar.backend) for _, bar, _ in bars],
        edgecolor=[colour(bar.backend) for _, bar, _ in bars],
        linewidth=1.2,
        xerr=list(zip(*errors, strict=True)),
        **BAR_STYLE,
    )
    for y, _, value in bars:
        write_beside(axes, y, fmt.visible(fmt.quantity(value, fmt.unit_text(panel.unit, 0))))
    ends = enclosing(0.0, min(axes.get_xlim()[1], CUT * longest * scale), logarithmic=False)
    axes.set_xlim(*ends)
    axes.set_xticks(even_ticks(*ends))
    axes.set_xlabel(fmt.visible(fmt.unit_text(panel.unit, power)))


def _interval_error(bar: Mark, value: float, scale: float) -> tuple[float, float]:
    """Errors below and above; NaN draws none. An interval's ends may equal its value."""
    if bar.low is None or bar.high is None:
        return math.nan, math.nan
    return max(value - bar.low, 0.0) * scale, max(bar.high - value, 0.0) * scale


def draw_strips(axes: Axes, panel: Strips, *, logarithmic: bool) -> None:
    """Draw samples and headlines on one time axis; one artist per kind of mark, since each is slow."""
    steps = [step for strip in panel.marks for process in strip.processes for step in process]
    _samples(axes, panel)
    headlines = [(y, strip, strip.value) for y, strip in enumerate(panel.marks) if strip.value is not None]
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
        facecolors=["white" if strip.is_undecided else "black" for _, strip, _ in headlines],
        edgecolors="black",
        zorder=3,
    )
    _seconds_axis(axes, min(steps), max(steps), logarithmic=logarithmic)


def _samples(axes: Axes, panel: Strips) -> None:
    """Draw a lane per process, with a tick at its median."""
    lanes = [
        (lane, process, colour(strip.backend))
        for y, strip in enumerate(panel.marks)
        for lane, process in zip(_lanes(y, len(strip.processes)), strip.processes, strict=True)
    ]
    dots = [(step, lane, shade) for lane, process, shade in lanes for step in process]
    xs, ys, shades = _transposed(dots, 3)
    # Rasterized, since a vector image of every sample would have megabytes.
    axes.scatter(xs, ys, s=7, color=shades, alpha=0.4, linewidths=0, rasterized=True)
    medians = [(median(process), lane) for lane, process, _ in lanes]
    xs, ys = _transposed(medians, 2)
    axes.scatter(xs, ys, marker="|", s=25, color="black", linewidths=1)


def _transposed(rows: Sequence[tuple[Any, ...]], columns: int) -> list[list[Any]]:
    return [[row[column] for row in rows] for column in range(columns)]


def _lanes(y: int, count: int) -> Sequence[float]:
    return [y - 0.14 + 0.48 * (lane / (count - 1) if count > 1 else 0.5) for lane in range(count)]


def _seconds_axis(axes: Axes, low: float, high: float, *, logarithmic: bool) -> None:
    if logarithmic:
        axes.set_xscale("log")
    left, right = axes.get_xlim()
    left, right = min(max(left, low / CUT), low / ROOM), max(min(right, high * CUT), high * ROOM)
    left, right = enclosing(left, right, logarithmic=logarithmic)
    axes.set_xlim(left, right)
    ticks = log_ticks(left, right) if logarithmic else even_ticks(left, right)
    _set_ticks(axes.xaxis, ticks, lambda value: tick_text(value, "s"))


def _set_ticks(axis: Axis, ticks: Sequence[float], text: Callable[[float], str]) -> None:
    """Set the ticks of an axis, and the function that labels them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def _grid(axes: Axes, *, legend: bool) -> None:
    """Draw a grid below the marks, and a legend beside the panel."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), frameon=False, fontsize=8)


def draw_sweeps(axes: Axes, panel: Sweeps) -> None:
    """Draw a line for each alternative, with a legend beside the panel."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    used: dict[str, int] = {}
    for sweep in panel.sweeps:
        used[sweep.backend] = used.get(sweep.backend, -1) + 1
        marker = MARKERS[used[sweep.backend] % len(MARKERS)]
        sizes, shade = [point.size for point in sweep.points], colour(sweep.backend)
        values = [point.value for point in sweep.points]
        axes.plot(sizes, values, linewidth=1.2, color=shade)
        _draw_marks(
            axes, [(point.size, point.value, point.is_undecided) for point in sweep.points], marker, shade
        )
        axes.plot(
            [], [], marker=marker, markersize=4, linewidth=1.2, color=shade, label=label_of(sweep.label)
        )
        intervals = [
            (point.size, end)
            for point in sweep.points
            if point.low is not None and point.high is not None and point.low > 0
            for end in (point.low, point.high, math.nan)  # NaN interrupts the line
        ]
        axes.plot(*_columns(intervals), color=shade, linewidth=2, alpha=0.6)
        if sweep.knee:
            style = "--" if sweep.knee.is_undecided else "-"
            axes.scatter([sweep.knee.size], [sweep.knee.value], linestyle=style, **RING)
    sizes = sorted({point.size for sweep in panel.sweeps for point in sweep.points})
    # As many measured sizes as there is room for.
    _set_ticks(axes.xaxis, sizes[:: -(-len(sizes) // TICKS) or 1], lambda size: f"{size:,.0f}")
    _log_axis(axes, "y", panel.unit)
    axes.set_xlabel(fmt.visible(panel.axis))
    _grid(axes, legend=bool(panel.sweeps))


def _draw_marks(axes: Axes, marks: Sequence[tuple[float, float, bool]], marker: str, shade: str) -> None:
    """Draw marks at (x, y, is_undecided); undecided ones are hollow."""
    for hollow in (True, False):
        points = [(x, y) for x, y, is_undecided in marks if is_undecided == hollow]
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            linestyle="",
            marker=marker,
            markersize=4,
            color=shade,
            markerfacecolor="white" if hollow else shade,
        )


def alternatives(panel: Roofline) -> dict[str, str]:
    """Labels of a roofline's marks and roofs, with their backends; roofs have none."""
    return {point.label: point.backend for point in panel.points} | {roof.label: "" for roof in panel.roofs}


def roof_ends(panel: Roofline) -> tuple[float, float]:
    """Ends of a roofline in FLOPs per byte, around all marks and the bends of the roofs."""
    intensities = [point.flops_per_byte for point in panel.points]
    intensities += [roof.flops_per_s / roof.bytes_per_s for roof in panel.roofs]
    return min(intensities) / BESIDE, max(intensities) * BESIDE


def draw_roofline(axes: Axes, panel: Roofline) -> None:
    """Draw the roofs, and a mark for each case."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    left, right = roof_ends(panel)
    for roof, style in zip(panel.roofs, ("-", "--"), strict=False):
        intensities = [left, roof.flops_per_s / roof.bytes_per_s, right]
        rates = [roof.at(intensity) for intensity in intensities]
        axes.plot(intensities, rates, style, color="black", linewidth=1, label=label_of(roof.label))
    used: dict[str, int] = {}
    for name, backend in alternatives(panel).items():
        number = used[backend] = used.get(backend, -1) + 1
        marker, shade = MARKERS[number % len(MARKERS)], colour(backend)
        marks = [
            (intensity.flops_per_byte, intensity.value, intensity.is_undecided)
            for intensity in panel.points
            if intensity.label == name
        ]
        _draw_marks(axes, marks, marker, shade)
        if backend:
            axes.plot([], [], linestyle="", marker=marker, markersize=4, color=shade, label=label_of(name))
    axes.set_xlim(left, right)
    _log_axis(axes, "x", "")
    axes.set_xlabel("FLOPs for each byte")
    _log_axis(axes, "y", "FLOP/s")
    _grid(axes, legend=True)


def _log_axis(axes: Axes, name: Literal["x", "y"], unit: str) -> None:
    """Set up a logarithmic axis that ends at ticks."""
    low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
    ends = enclosing(low, high, logarithmic=True)
    axes.set(**{f"{name}lim": ends})
    axis = axes.xaxis if name == "x" else axes.yaxis
    _set_ticks(axis, log_ticks(*ends), lambda value: tick_text(value, unit))


def draw_trends(axes: Axes, trend: TrendLine, *, logarithmic: bool) -> None:
    """Draw points, then levels and changes."""
    positions = _point_positions(axes, trend)
    factor, unit = _trend_unit(trend)
    axes.set_ylabel(unit)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    _points(axes, trend, positions, factor)
    _levels(axes, trend, positions, factor)
    rows = min(ROWS, len(trend.history.changes))
    values = [value * factor for point in trend.points for value in point.processes]
    _trend_values(axes, values, 0.05 + ROW * rows, logarithmic=logarithmic)
    _changes(axes, trend, positions)


def _points(axes: Axes, trend: TrendLine, positions: Sequence[float], factor: float) -> None:
    processes = [
        (x, value * factor)
        for x, point in zip(positions, trend.points, strict=True)
        for value in point.processes
        if len(point.processes) > 1
    ]
    # Rasterized, since a vector image of a year's processes would have megabytes.
    axes.scatter(
        *_columns(processes), s=6, color=colour(trend.backend), alpha=0.3, linewidths=0, rasterized=True
    )
    values = [(x, point.value * factor) for x, point in zip(positions, trend.points, strict=True)]
    spikes = [values[index] for index in trend.history.outliers]
    axes.scatter(*_columns(values), s=14, color=colour(trend.backend), linewidths=0, zorder=3)
    axes.scatter(*_columns(spikes), s=40, marker="x", color="black", linewidths=1, zorder=4)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]


def _levels(axes: Axes, trend: TrendLine, positions: Sequence[float], factor: float) -> None:
    for segment in trend.history.segments:
        ends = [positions[segment.start], positions[segment.stop - 1]]
        axes.plot(ends, [segment.level * factor] * 2, color="black", linewidth=1.2, zorder=3.5)


def _changes(axes: Axes, trend: TrendLine, positions: Sequence[float]) -> None:
    """Draw changes between their points, with labels in rows at the top, above all points."""
    for number, change in enumerate(trend.history.changes):
        x = _between(positions, change.index)
        axes.axvline(x, color=CHANGE, linestyle="--", linewidth=1)
        late = x - positions[0] > 0.85 * (positions[-1] - positions[0])
        _label_change(axes, change, (x, 0.95 - ROW * (number % ROWS)), late=late)
    for index in trend.boundaries:
        axes.axvline(_between(positions, index), color="0.3", linestyle=":", linewidth=1.5)


def _label_change(axes: Axes, change: Change, position: tuple[float, float], *, late: bool) -> None:
    """Label a change; `late`: too close to the right edge for a label on the right."""
    transform = axes.get_xaxis_transform()
    marker = "^" if change.direction == "slower" else "v"
    axes.plot(
        *([coordinate] for coordinate in position), marker=marker, color=CHANGE, transform=transform, zorder=6
    )
    axes.annotate(
        fmt.ratio(change.ratio),
        xy=position,
        xycoords=transform,
        xytext=(-5 if late else 5, 0),
        textcoords="offset points",
        ha="right" if late else "left",
        va="center",
        zorder=5,
    )


def _between(positions: Sequence[float], index: int) -> float:
    return (positions[index - 1] + positions[index]) / 2


def _point_positions(axes: Axes, trend: TrendLine) -> Sequence[float]:
    """Position of each point on the x axis: its time in days, or its number for tags and crowded times."""
    times = _times(trend.points) if trend.by_time else None
    if times and not _crowded(times):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=3, maxticks=TICKS)  # 5, the default, fits no span of 4 days
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        margin = max(0.04 * (times[-1] - times[0]), MIN_DAYS)
        axes.set_xlim(times[0] - margin, times[-1] + margin)
        return times
    names = (
        date_names([point.started for point in trend.points])
        if times
        else [point.name for point in trend.points]
    )
    _number_axis(axes, [cut(fmt.visible(name), MAX_NAME_LENGTH) for name in names])
    return range(len(trend.points))


def _crowded(times: Sequence[float]) -> bool:
    """True if most points would overlap with their neighbours."""
    near = CROWDED * (times[-1] - times[0])
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return sum(gap < near for gap in gaps) > len(gaps) / 2


def _number_axis(axes: Axes, names: Sequence[str]) -> None:
    """Number the points, and label some of them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    count = len(names)
    axes.xaxis.set_major_locator(FixedLocator(range(0, count, math.ceil(count / TICKS))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names[round(x)]))
    axes.tick_params(axis="x", labelrotation=20)


def _times(points: Sequence[TrendPoint]) -> list[float] | None:
    """Start times of runs in matplotlib's days; None if one is unknown or they are not sorted."""
    from matplotlib.dates import date2num

    try:
        starts = [datetime.fromisoformat(point.started) for point in points]
    except ValueError:
        return None
    times = [float(date2num(start if start.tzinfo else start.replace(tzinfo=UTC))) for start in starts]
    return times if times == sorted(times) else None


def _trend_unit(trend: TrendLine) -> tuple[float, str]:
    """Factor that gives values few digits, and the resulting unit."""
    unit, largest = trend.unit, max(point.value for point in trend.points)
    if unit == "B":
        step = min(int(math.log(max(largest, 1), 1024)), len(fmt.BINARY) - 1)
        return 1024.0**-step, fmt.BINARY[step]
    power = fmt.axis_power(largest, unit)
    return 10.0**-power, fmt.unit_text(unit, power)


def _trend_values(axes: Axes, values: Sequence[float], above: float, *, logarithmic: bool) -> None:
    """Set up the value axis; `above`: share of the panel that stays free at the top."""
    low, high = min(values), max(values)
    is_log = logarithmic and high > low > 0
    if is_log:
        axes.set_yscale("log")
        low, high = low * (low / high) ** 0.1, high * (high / low) ** (1.1 * above / (1 - above))
    else:
        span = (high - low) or 0.1 * high
        low, high = low - 0.1 * span, high + 1.1 * span * above / (1 - above)
    ends = enclosing(low, high, logarithmic=is_log)
    axes.set_ylim(*ends)
    ticks = log_ticks(*ends) if is_log else even_ticks(*ends)
    _set_ticks(axes.yaxis, ticks, lambda value: f"{value:.6g}")


def draw_prices(axes: Axes, panel: PricePanel, *, logarithmic: bool) -> None:
    """Draw a mark with an interval for each hardware, with a legend beside the panel."""
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
    _grid(axes, legend=True)


def _price_axes(axes: Axes, panel: PricePanel, *, logarithmic: bool) -> None:
    """Set up axes from zero, or logarithmic ones for a wide range; both end at ticks."""
    prices = [point.price for point in panel.points]
    highs = [point.high or point.value for point in panel.points]
    lows = [point.value for point in panel.points]
    wide_prices = max(prices) > WIDE * min(prices)
    for name, low, high, is_log, text in (
        ("x", min(prices), max(prices), wide_prices, "{:g}".format),
        ("y", min(lows), max(highs), logarithmic, _short_tick),
    ):
        ends = enclosing(low / HEADROOM if is_log else 0.0, high * HEADROOM, logarithmic=is_log)
        axes.set(**{f"{name}scale": "log" if is_log else "linear", f"{name}lim": ends})
        axis = axes.xaxis if name == "x" else axes.yaxis
        _set_ticks(axis, log_ticks(*ends) if is_log else even_ticks(*ends), text)
    axes.set_xlabel(fmt.visible(f"price, {panel.price_unit}"))
    axes.set_ylabel("" if panel.unit == "×" else fmt.visible(fmt.unit_text(panel.unit, 0)))


def _short_tick(value: float) -> str:
    """Tick without a unit: `2k`, `0.5`."""
    power = max(0, fmt.si_power(value))
    return f"{value / 10.0**power:g}{fmt.PREFIXES[power]}"


def label_of(text: str) -> str:
    """Label of an alternative, on one line."""
    return cut(fmt.visible(text), MAX_LABEL_LENGTH)


def cut(text: str, limit: int) -> str:
    """Shorten a text to a number of characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Write a text right of the axes, where there are no bars or points."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), va="center")
