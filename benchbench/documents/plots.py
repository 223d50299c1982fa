"""Plots as data: what is drawn, in SI base units; how it looks is the exporters' business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.errors import UsageError, unknown
from benchbench.trends.change_points import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One alternative of a panel; `status` is why it has no value. `group` numbers what shares a colour."""

    label: str
    group: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A panel of bars, the longer the better."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip(Bar):
    """Every sample in seconds, process by process; the bar's value is their headline."""

    processes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips:
    """A panel of samples, the shorter the better."""

    title: str
    strips: tuple[Strip, ...]


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
    unit: str
    points: tuple[TrendPoint, ...]
    history: History
    boundaries: tuple[int, ...]
    by_time: bool


Panel = Bars | Strips | TrendLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Panels of one kind. `name` is that of its file, `reading` says what the marks mean.

    `empty`: what is said where there is no panel.
    """

    name: str
    title: str
    reading: str
    empty: str
    panels: tuple[Panel, ...]


def select_plots(plots: Sequence[Plot], names: Sequence[str]) -> tuple[Plot, ...]:
    """Those of these names; none means all. Raises UsageError."""
    known = [plot.name for plot in plots]
    for name in names:
        if name not in known:
            raise UsageError(f"There is no plot named {name!r}.", unknown("plots", name, known))
    return tuple(plot for plot in plots if not names or plot.name in names)
