"""Runs over time → a trend per case: its series, with its change points. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from benchbench.analyse.metrics import Metric
from benchbench.judging.change_points import Change, History, change_points
from benchbench.judging.series import Point, Series, series
from benchbench.model.run import Run
from benchbench.reading import unix_time
from benchbench.stats import median

SEVERAL = 3  # cases that change together: one event, more likely of the machine than of each
TOGETHER_S = 2 * 86400.0  # a change is located to a run or two, of which there is one a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A case over its runs or, by a tag, over its values; `untagged`: runs left out since they lack it.

    `boundaries`: the first point that cannot be compared with those before, each time; `bars`: why. Points
    that are contended are no part of the `history`.
    """

    case: str
    metric: Metric
    points: tuple[Point, ...]
    boundaries: tuple[int, ...]
    bars: tuple[str, ...]
    history: History
    by: str | None = None
    untagged: tuple[str, ...] = ()

    def sides(self, change: Change) -> tuple[Point, Point]:
        """The points between which it lies."""
        quiet = [point for point in self.points[: change.index] if not point.contended]
        return quiet[-1], self.points[change.index]


def trends(
    runs: Iterable[Run],
    metric: Metric,
    patterns: Sequence[str] = (),
    threshold: float = 0.03,
    by: str | None = None,
) -> list[Trend]:
    """A trend per series of `series`: of case ids that hold or match one of `patterns`, by time or a tag.

    What cannot be compared is a boundary: no change point is looked for across it. The p of a change is
    adjusted for the number of series. Raises UsageError where no run has the tag.
    """
    found = series(runs, metric, patterns, by)
    return [_trend(one, metric, threshold, by, len(found)) for one in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedChange:
    """Several cases of one machine that changed within two days, the same way: one event.

    `changes`: of `cases`, one each.
    """

    day: str  # ISO 8601, of the first
    direction: str
    cases: tuple[str, ...]
    changes: tuple[Change, ...]

    @property
    def ratio(self) -> float:
        """The median."""
        return median([change.ratio for change in self.changes])


@dataclass(frozen=True, slots=True)
class _Located:
    """A change, and when: Unix time."""

    when: float
    day: str
    case: str
    change: Change


def shared_changes(trends: Sequence[Trend]) -> list[SharedChange]:
    """Those of `SEVERAL` cases or more, oldest first."""
    alike: dict[tuple[str, str], list[_Located]] = {}
    for trend in trends:
        for change in trend.history.changes:
            point = trend.points[change.index]
            with suppress(ValueError):  # a run that does not say when it began is no part of an event
                located = _Located(unix_time(point.started), point.started[:10], trend.case, change)
                alike.setdefault((point.hardware, change.direction), []).append(located)
    events = [event for located in alike.values() for event in _events(located)]
    shared = [event for event in events if len(event.cases) >= SEVERAL]
    return sorted(shared, key=lambda event: (event.day, event.direction))


def _events(located: Sequence[_Located]) -> Iterator[SharedChange]:
    """An event lasts two days from its first change, and has one change of a case."""
    rest = sorted(located, key=lambda each: (each.when, each.case))
    while rest:
        first = rest[0]
        near = [each for each in rest if each.when - first.when <= TOGETHER_S]
        own = {each.case: each for each in reversed(near)}
        yield SharedChange(
            day=first.day,
            direction=first.change.direction,
            cases=tuple(sorted(own)),
            changes=tuple(own[case].change for case in sorted(own)),
        )
        rest = [each for each in rest if each not in own.values()]


def _trend(series: Series, metric: Metric, threshold: float, by: str | None, family: int) -> Trend:
    boundaries = tuple(index for index, _ in series.bars)
    return Trend(
        case=series.case,
        metric=metric,
        points=series.points,
        boundaries=boundaries,
        bars=tuple(reason for _, reason in series.bars),
        history=_history(series.points, boundaries, metric, threshold, family),
        by=by,
        untagged=series.untagged,
    )


def _history(
    points: Sequence[Point], boundaries: Sequence[int], metric: Metric, threshold: float, family: int
) -> History:
    """Of the points that nobody disturbed; indices are those of all points."""
    quiet = [index for index, point in enumerate(points) if not point.contended]
    starts = {sum(index < boundary for index in quiet) for boundary in boundaries}
    history = change_points(
        [points[index].value for index in quiet],
        threshold=threshold,
        better=metric.better,
        boundaries=sorted(starts - {0, len(quiet)}),
        family=family,
    )
    return replace(
        history,
        changes=tuple(replace(each, index=quiet[each.index]) for each in history.changes),
        outliers=tuple(quiet[index] for index in history.outliers),
        segments=tuple(
            replace(each, start=quiet[each.start], stop=quiet[each.stop - 1] + 1) for each in history.segments
        ),
    )
