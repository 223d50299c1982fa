"""Stored runs → a series per case, by time or by a tag, with its changes and those it shares. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from benchbench.analyse.digest import case_bars, run_bars
from benchbench.analyse.metrics import Metric
from benchbench.errors import UsageError, unknown
from benchbench.judging.change_points import Change, History, change_points
from benchbench.machine.environment import MEMORY_TOLERANCE, fingerprint
from benchbench.model.case import last_names, present_id
from benchbench.model.device import Machine
from benchbench.model.run import Run
from benchbench.model.status import Status
from benchbench.reading import unix_time
from benchbench.stats import median
from benchbench.store.naming import bisect_of, start_time
from benchbench.summaries.summary import CaseSummary, Facts, Planned, RunSummary, Setup, summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A case's value in one run or, by a tag, in the comparable runs of one value of it; `run`: the first.

    `contended`: what others took of the device meanwhile, in every run, where that shows.
    """

    run: str
    started: str
    value: float  # in the metric's unit
    version: str | None  # of the framework
    hardware: str  # fingerprint
    device: str = ""  # the hardware's own name
    backend: str = ""
    threads: int = 0
    processes: tuple[float, ...]  # the value of each
    runs: tuple[str, ...]
    tag: str | None = None
    contended: str = ""
    damaged: tuple[str, ...] = ()  # lines of its runs that could not be read, after the run's id


UNDECIDED, FAILED = "undecided", "failed"  # why a run that measured a case has no value of it


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPoint:
    """A run without a value: its processes disagree (`UNDECIDED`), or the case failed there (`FAILED`).

    By a tag, the runs of one value that disagree with each other; `run`: the first.
    """

    run: str
    started: str
    event: str
    reason: str
    runs: tuple[str, ...]
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A case's points in order, those that can be compared together.

    `bars`: the index of the first point that cannot be compared with those before, and why. `untagged`: the
    runs left out since they lack the tag. `missing`: the runs that have no value.
    """

    case: str
    points: tuple[Point, ...]
    bars: tuple[tuple[int, str], ...] = ()
    untagged: tuple[str, ...] = ()
    missing: tuple[MissingPoint, ...] = ()


def series(
    runs: Iterable[Run | RunSummary], metric: Metric, patterns: Sequence[str] = (), by: str | None = None
) -> list[Series]:
    """A series per case whose id holds or matches one of `patterns`; runs may come in any order.

    Ordered by when they began, also where a clock was set back; those that cannot be compared with the ones
    before (other hardware, settings, work or precision) come after them. With `by`, runs of one value of that
    tag that can be compared are a point, from the processes of all of them, ordered by when their value was
    first seen. Interleaved runs are left out, and those of a bisection: they may be of code long gone.

    Raises UsageError where no run has the tag, or none has a case that one of `patterns` names.
    """
    kept, planned, names = _seen_runs(runs, metric, by)
    _check_patterns(patterns, planned.values(), names)
    seen = sorted(kept, key=lambda run: (run.begun, run.run))
    places = _places(seen, by) if by else {}
    by_case: dict[str, list[_Measured | MissingPoint]] = {}
    for run in seen:
        both = {former for former, present in names.items() if present in run.workloads}
        own = {former: present for former, present in names.items() if former not in both}
        for case, measured in run.cases:
            present = present_id(case, own) if own else case
            if is_wanted(present, patterns):
                by_case.setdefault(present, []).append(measured)
    made = [_series(case, measured, metric, places, by) for case, measured in by_case.items()]
    return [one for one in made if one.points or any(each.event == UNDECIDED for each in one.missing)]


@dataclass(frozen=True, slots=True)
class _Measured:
    """A case in one run, with what says whether another can be compared with it."""

    point: Point
    setup: Setup
    facts: Facts


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of a run that is kept in memory: a store may hold thousands."""

    begun: float  # Unix time
    run: str
    tags: Mapping[str, str]
    workloads: frozenset[str]
    cases: tuple[tuple[str, _Measured | MissingPoint], ...]


def _seen_runs(
    runs: Iterable[Run | RunSummary], metric: Metric, by: str | None
) -> tuple[list[_Seen], dict[str, Planned], dict[str, str]]:
    """The runs that count, the cases of all of them by id, and the workloads that were renamed."""
    kept: list[_Seen] = []
    planned: dict[str, Planned] = {}
    names: dict[str, str] = {}
    for run in summaries(runs):
        planned.update((case.id, case) for case in run.planned)
        names.update(run.renamed)
        if not (run.is_half or bisect_of(run.tags)):
            kept.append(_seen(run, metric, by))
    return kept, planned, last_names(names)


def _check_patterns(patterns: Sequence[str], planned: Collection[Planned], names: Mapping[str, str]) -> None:
    """Raise UsageError for one that none of these cases has or matches."""
    for pattern in patterns:
        if not any(is_wanted(present_id(case.id, names), [pattern]) for case in planned):
            workloads = {names.get(case.workload, case.workload) for case in planned}
            known = sorted(workloads | {case.target for case in planned})
            renamed = f"It was renamed: {names[pattern]}" if pattern in names else ""
            hint = renamed or unknown("workloads and targets", pattern, known)
            raise UsageError(f"No stored run has a case named {pattern!r}.", hint)


def _seen(run: RunSummary, metric: Metric, by: str | None) -> _Seen:
    tag = run.tags.get(by) if by else None
    cases: list[tuple[str, _Measured | MissingPoint]] = []
    for name, case in run.cases.items():
        if point := _point(run, case, metric, tag):
            cases.append((name, _Measured(point, run.setup, case.facts)))
        elif missing := _missing_point(run, case, metric, tag):
            cases.append((name, missing))
    return _Seen(
        start_time(run), run.id, run.tags, frozenset(each.workload for each in run.planned), tuple(cases)
    )


def _point(run: RunSummary, case: CaseSummary, metric: Metric, tag: str | None) -> Point | None:
    values = case.of(metric)
    if values is None or values.pooled is None:
        return None
    found = case.facts.digest
    return Point(
        run=run.id,
        started=run.started,
        value=values.pooled,
        version=found.version,
        hardware=f"{_fingerprint(run.machine)}/{found.device_model}",
        device=found.device_model or run.machine.cpu,
        backend=found.case.backend if found.case else "",
        threads=(found.case.threads if found.case else 0) or run.settings.threads,
        processes=values.known,
        runs=(run.id,),
        tag=tag,
        contended=found.disturbance(metric),
        damaged=tuple(f"{run.id}: {text}" for text in run.damaged),
    )


def _missing_point(
    run: RunSummary, case: CaseSummary, metric: Metric, tag: str | None
) -> MissingPoint | None:
    """Why a run that measured the case has no value of it; None if it was skipped, or lacks the metric."""
    found = case.digest
    failure = "" if found.status is Status.SKIPPED else found.failure
    reason = failure or found.disagreement(metric)
    if not reason:
        return None
    return MissingPoint(
        run=run.id,
        started=run.started,
        event=FAILED if failure else UNDECIDED,
        reason=reason,
        runs=(run.id,),
        tag=tag,
    )


@lru_cache(maxsize=1024)
def _fingerprint(machine: Machine) -> str:
    return fingerprint(machine)


def is_wanted(case: str, patterns: Sequence[str]) -> bool:
    """Whether a case's id holds or matches one of the patterns; without any, each does."""
    return not patterns or any(pattern in case or fnmatchcase(case, pattern) for pattern in patterns)


def _places(seen: Sequence[_Seen], by: str) -> dict[str, int]:
    """Value of the tag → how many were seen before it."""
    values = dict.fromkeys(run.tags[by] for run in seen if by in run.tags)
    if seen and not values:
        known = sorted({name for run in seen for name in run.tags})
        raise UsageError(f"No run has a tag {by!r}.", unknown("tags", by, known))
    return {value: place for place, value in enumerate(values)}


def _series(
    case: str,
    runs: Sequence[_Measured | MissingPoint],
    metric: Metric,
    places: Mapping[str, int],
    by: str | None,
) -> Series:
    measured = [each for each in runs if isinstance(each, _Measured)]
    missing = [each for each in runs if isinstance(each, MissingPoint) and not (by and each.tag is None)]
    points: list[Point] = []
    bars: list[tuple[int, str]] = []
    last: _Measured | None = None
    for group in _comparable([each for each in measured if not (by and each.point.tag is None)]):
        found = [each.point for each in group]
        if by:
            joined = _by_tag(found, metric, places)
            found = [each for each in joined if isinstance(each, Point)]
            missing += [each for each in joined if isinstance(each, MissingPoint)]
        if last and found:
            bars.append((len(points), "; ".join(_bars(last, group[0]))))
        last = group[-1] if found else last
        points += found
    untagged = tuple(each.point.run for each in measured if by and each.point.tag is None)
    return Series(
        case=case, points=tuple(points), bars=tuple(bars), untagged=untagged, missing=tuple(missing)
    )


def _comparable(measured: Sequence[_Measured]) -> list[list[_Measured]]:
    """Groups in the order of their first: each can be compared with the one before it in its group."""
    groups: list[list[_Measured]] = []
    places: dict[tuple[object, ...], set[int]] = {}  # what has to be equal → the groups whose last has it
    own = -1  # the group of the one before
    for each in measured:
        if own < 0 or not _same(groups[own][-1], each):
            kind, band = _kind(each), _memory_band(each.setup.machine)
            near = [index for step in (-1, 0, 1) for index in places.get((*kind, band + step), ())]
            own = next((index for index in sorted(near) if not _bars(groups[index][-1], each)), len(groups))
            if own == len(groups):
                groups.append([])
            else:
                last = groups[own][-1]
                places[*_kind(last), _memory_band(last.setup.machine)].discard(own)
            places.setdefault((*kind, band), set()).add(own)
        groups[own].append(each)
    return groups


def _same(one: _Measured, other: _Measured) -> bool:
    """Whether nothing but the values can differ: most runs share these with the one before."""
    return one.setup is other.setup and one.facts is other.facts


def _kind(measured: _Measured) -> tuple[object, ...]:
    """What is equal in all that can be compared: to look among those is quicker than to compare with all."""
    settings, found = measured.setup.settings, measured.facts.digest
    counted = found.cost and (found.cost.flops, found.cost.bytes, found.cost.items, found.cost.item)
    is_own = isinstance(found.workload_version, str)  # versions of a user's model may be compared
    work = () if is_own else (found.workload_version, counted)
    hardware = _fingerprint(replace(measured.setup.machine, memory_bytes=0))
    how = settings.threads, settings.allocator, settings.isolation
    return hardware, *how, found.device_model, work, found.timer


def _memory_band(machine: Machine) -> int:
    """Machines that are the same but for a little memory are in the same band or in neighbouring ones."""
    return math.floor(math.log(max(machine.memory_bytes, 1)) / -math.log1p(-MEMORY_TOLERANCE))


def _bars(one: _Measured, other: _Measured) -> list[str]:
    return [*run_bars(one.setup, other.setup), *case_bars(one.facts.digest, other.facts.digest)]


def _by_tag(points: Sequence[Point], metric: Metric, places: Mapping[str, int]) -> list[Point | MissingPoint]:
    values: dict[int, list[Point]] = {}
    for point in points:
        values.setdefault(places[point.tag or ""], []).append(point)
    return [_joined(values[place], metric) for place in sorted(values)]


def _joined(points: Sequence[Point], metric: Metric) -> Point | MissingPoint:
    """One point for several runs, of those that nobody disturbed if there are any."""
    points = [point for point in points if not point.contended] or points
    processes = tuple(value for point in points for value in point.processes)
    pooled, runs = metric.source.pool(processes), tuple(point.run for point in points)
    if pooled.value is None:
        return MissingPoint(
            run=points[0].run,
            started=points[0].started,
            event=UNDECIDED,
            reason=pooled.reason,
            runs=runs,
            tag=points[0].tag,
        )
    return replace(
        points[0],
        value=pooled.value,
        processes=processes,
        runs=runs,
        damaged=tuple(text for point in points for text in point.damaged),
    )


SEVERAL = 3  # cases that change together: one event, more likely of the machine than of each
TOGETHER_S = 2 * 86400.0  # a change is located to a run or two, of which there is one a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A case over its runs or, by a tag, over its values; `untagged`: runs left out since they lack it.

    `boundaries`: the first point that cannot be compared with those before, each time; `bars`: why. Points
    that are contended are no part of the `history`. `missing`: runs without a value, and why; there may be
    no other.
    """

    case: str
    metric: Metric
    points: tuple[Point, ...]
    boundaries: tuple[int, ...]
    bars: tuple[str, ...]
    history: History
    by: str | None = None
    untagged: tuple[str, ...] = ()
    missing: tuple[MissingPoint, ...] = ()

    def sides(self, change: Change) -> tuple[Point, Point]:
        """The points between which it lies."""
        earlier = reversed(range(change.index))
        before = next(index for index in earlier if not self.points[index].contended)
        return self.points[before], self.points[change.index]


def trends(
    runs: Iterable[Run | RunSummary],
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
    family = max(1, sum(bool(one.points) for one in found))
    return [_trend(one, metric, threshold, by, family) for one in found]


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
        first, own = rest[0], dict[str, _Located]()
        end = bisect_right(rest, first.when + TOGETHER_S, key=lambda each: each.when)
        later = [each for each in rest[:end] if own.setdefault(each.case, each) is not each]
        rest = later + rest[end:]
        yield SharedChange(
            day=first.day,
            direction=first.change.direction,
            cases=tuple(sorted(own)),
            changes=tuple(own[case].change for case in sorted(own)),
        )


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
        missing=series.missing,
    )


def _history(
    points: Sequence[Point], boundaries: Sequence[int], metric: Metric, threshold: float, family: int
) -> History:
    """The changes among the points that nobody disturbed; indices are those of all points."""
    quiet = [index for index, point in enumerate(points) if not point.contended]
    starts = {bisect_left(quiet, boundary) for boundary in boundaries}
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
