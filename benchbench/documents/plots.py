"""Plots as data: what is drawn, in SI base units; how it looks is the exporters' business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.errors import UsageError, unknown
from benchbench.judging.change_points import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One alternative of a panel; `status` is why it has no value. A backend has one colour in all plots."""

    label: str
    backend: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A panel of bars, the longer the better, and the longest first."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip(Bar):
    """Every sample in seconds, process by process; the bar's value is their headline."""

    processes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """A panel of samples, the shorter the better, and the shortest first."""

    title: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedValue:
    """A value and its interval at a size."""

    size: float
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One alternative over sizes, smallest first."""

    label: str
    backend: str
    points: tuple[SizedValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeps:
    """A panel of alternatives over sizes, on logarithmic axes; `axis` names the size: `m = n = k`."""

    title: str
    axis: str
    unit: str
    sweeps: tuple[Sweep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """A run, or a value of a tag: what it is called, its value, and that of each process."""

    name: str
    started: str
    value: float
    processes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendLine:
    """A panel of one case; `boundaries` are the first points on other hardware.

    `by_time`: points stand where they happened, else one after the other.
    """

    title: str
    backend: str
    unit: str
    points: tuple[TrendPoint, ...]
    history: History
    boundaries: tuple[int, ...]
    by_time: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPoint:
    """Hardware at its price, and its rate; `dominated`: something else is no dearer and no slower."""

    label: str
    price: float
    value: float
    low: float | None
    high: float | None
    dominated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePanel:
    """Rates against prices, cheapest first."""

    title: str
    price_unit: str
    unit: str
    points: tuple[PricedPoint, ...]


Panel = Bars | Strips | Sweeps | TrendLine | PricePanel
PAGE = 24  # panels of a picture that can still be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Panels of one kind and one unit. `name` is that of its file, `reading` says what the marks mean.

    `facts`: on what it was measured, with what, and when. `empty`: what is said where there is no panel.
    """

    name: str
    title: str
    facts: tuple[str, ...]
    reading: str
    empty: str
    panels: tuple[Panel, ...]


def paged(plot: Plot) -> tuple[Plot, ...]:
    """The plot, or where it has too many panels for one picture several: `latency`, `latency-2`."""
    starts = range(0, len(plot.panels), PAGE)
    if len(starts) <= 1:
        return (plot,)
    return tuple(
        replace(
            plot,
            name=plot.name if page == 1 else f"{plot.name}-{page}",
            title=f"{plot.title}, page {page} of {len(starts)}",
            panels=plot.panels[start : start + PAGE],
        )
        for page, start in enumerate(starts, start=1)
    )


def select_plots(plots: Sequence[Plot], names: Sequence[str]) -> tuple[Plot, ...]:
    """Those of these names; none means all. Raises UsageError."""
    known = [plot.name for plot in plots]
    for name in names:
        if name not in known:
            raise UsageError(f"There is no plot named {name!r}.", unknown("plots", name, known))
    return tuple(plot for plot in plots if not names or plot.name in names)
