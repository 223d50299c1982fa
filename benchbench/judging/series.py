"""Series of stored runs: the values of each case over time or a tag, and their changes. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from benchbench.analyse.digest import Setup, case_mismatches, run_mismatches
from benchbench.analyse.metrics import Metric
from benchbench.errors import UsageError, unknown
from benchbench.judging.change_points import Change, History, change_points
from benchbench.machine.environment import MEMORY_TOLERANCE, fingerprint
from benchbench.model.case import Status
from benchbench.model.device import Machine
from benchbench.model.run import Run
from benchbench.reading import unix_time
from benchbench.stats import median
from benchbench.store.disk import bisect_of, start_time
from benchbench.summaries import CaseSummary, Facts, Planned, RunSummary, summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Value of a case in one run or, by tag, in the comparable runs of one tag value.

    `run`: the first of these runs. `contended`: use of the device by other programs, if every run shows some.
    """

    run: str
    started: str
    value: float  # in the metric's unit
    version: str | None  # of the framework
    hardware: str  # fingerprint
    device: str = ""  # name of the hardware
    backend: str = ""
    threads: int = 0
    processes: tuple[float, ...]  # value of each process
    runs: tuple[str, ...]
    tag: str | None = None
    contended: str = ""
    damaged: tuple[str, ...] = ()  # unreadable lines, each after its run's id


UNDECIDED, FAILED = "undecided", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPoint:
    """A run without a value of a case: its processes disagree (`UNDECIDED`) or the case failed (`FAILED`).

    By tag, these are the runs of one tag value that disagree with each other; `run`: the first of them.
    """

    run: str
    started: str
    event: str
    reason: str
    runs: tuple[str, ...]
    tag: str | None = None


NO_CHANGES = History((), (), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A case over its runs or, by tag, over the values of the tag.

    `boundaries`: index of each first point that cannot be compared with those before; `boundary_reasons`:
    the reasons. `history`: changes among the uncontended points. `untagged`: runs without the tag, which
    are left out. `missing`: runs without a value; there may be only these.
    """

    case: str
    metric: Metric
    points: tuple[Point, ...]
    boundaries: tuple[int, ...]
    boundary_reasons: tuple[str, ...]
    history: History = NO_CHANGES
    by: str | None = None
    untagged: tuple[str, ...] = ()
    missing: tuple[MissingPoint, ...] = ()

    def sides(self, change: Change) -> tuple[Point, Point]:
        """Last uncontended point before a change, and the first point after it."""
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
    """Trend of each case whose id contains or matches one of `patterns`; `runs` may have any order.

    Points are ordered by start time. Points that cannot be compared with those before, because of other
    hardware, settings, work or precision, come after them, and changes are not searched across this boundary.
    With `by`, comparable runs with the same value of that tag are one point, from the processes of all of
    them, ordered by the first run with the value. Interleaved runs and runs of a bisection are left out,
    since they may be of code that no longer exists. The p of a change is adjusted for the number of trends.

    Raises UsageError if no run has the tag, or no case matches one of the patterns.
    """
    planned: dict[str, Planned] = {}
    run_cases: list[_RunCases] = []
    for run in summaries(runs):
        planned |= {case.id: case for case in run.planned}
        if not (run.is_half or bisect_of(run.tags)):
            cases = _cases(run, metric, run.tags.get(by) if by else None)
            run_cases.append(_RunCases(start_time(run), run.id, run.tags, tuple(cases)))
    _check_patterns(patterns, planned.values())
    runs_in_order = sorted(run_cases, key=lambda run: (run.start_time, run.run_id))
    tag_order = _tag_order(runs_in_order, by) if by else {}
    by_case: dict[str, list[_MeasuredCase | MissingPoint]] = {}
    for cases_of_run in runs_in_order:
        for case, entry in cases_of_run.cases:
            if matches_patterns(case, patterns):
                by_case.setdefault(case, []).append(entry)
    all_trends = [_trend(case, entries, metric, tag_order, by) for case, entries in by_case.items()]
    family = max(1, sum(bool(trend.points) for trend in all_trends))
    return [
        replace(trend, history=_history(trend.points, trend.boundaries, metric, threshold, family))
        for trend in all_trends
        if trend.points or any(missing.event == UNDECIDED for missing in trend.missing)
    ]


@dataclass(frozen=True, slots=True)
class _MeasuredCase:
    """A case in one run, with everything that decides whether another can be compared with it."""

    point: Point
    setup: Setup
    facts: Facts


@dataclass(frozen=True, slots=True)
class _RunCases:
    """Cases of a run, without the rest of it: a store may have thousands of runs."""

    start_time: float  # Unix time
    run_id: str
    tags: Mapping[str, str]
    cases: tuple[tuple[str, _MeasuredCase | MissingPoint], ...]


def _check_patterns(patterns: Sequence[str], planned: Collection[Planned]) -> None:
    """Raise UsageError for a pattern that matches no planned case."""
    for pattern in patterns:
        if not any(matches_patterns(case.id, [pattern]) for case in planned):
            known_names = sorted({name for case in planned for name in (case.workload, case.target)})
            hint = unknown("workloads and targets", pattern, known_names)
            raise UsageError(f"No stored run has a case named {pattern!r}.", hint)


def _cases(
    run: RunSummary, metric: Metric, tag: str | None
) -> Iterator[tuple[str, _MeasuredCase | MissingPoint]]:
    """Cases of a run that have a value, or a reason for its absence."""
    for name, case in run.cases.items():
        if point := _point(run, case, metric, tag):
            yield name, _MeasuredCase(point, run.setup, case.facts)
        elif missing := _missing_point(run, case, metric, tag):
            yield name, missing


def _point(run: RunSummary, case: CaseSummary, metric: Metric, tag: str | None) -> Point | None:
    values = case.of(metric)
    if values is None or values.pooled is None:
        return None
    digest = case.facts.digest
    return Point(
        run=run.id,
        started=run.started,
        value=values.pooled,
        version=digest.version,
        hardware=f"{_fingerprint(run.machine)}/{digest.device_model}",
        device=digest.device_model or run.machine.cpu,
        backend=digest.case.backend if digest.case else "",
        threads=(digest.case.threads if digest.case else 0) or run.settings.threads,
        processes=values.known,
        runs=(run.id,),
        tag=tag,
        contended=digest.disturbance(metric),
        damaged=tuple(f"{run.id}: {text}" for text in run.damaged),
    )


def _missing_point(
    run: RunSummary, case: CaseSummary, metric: Metric, tag: str | None
) -> MissingPoint | None:
    """Missing point of a case; None if it was skipped, or does not have the metric."""
    digest = case.digest
    failure = "" if digest.status is Status.SKIPPED else digest.failure
    reason = failure or digest.disagreement(metric)
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


def matches_patterns(case: str, patterns: Sequence[str]) -> bool:
    """True if a case's id contains or matches one of the patterns, or if there are none."""
    return not patterns or any(pattern in case or fnmatchcase(case, pattern) for pattern in patterns)


def _tag_order(runs: Sequence[_RunCases], by: str) -> dict[str, int]:
    """Rank of each value of the tag by its first run."""
    values = dict.fromkeys(run.tags[by] for run in runs if by in run.tags)
    if runs and not values:
        tags = sorted({name for run in runs for name in run.tags})
        raise UsageError(f"No run has a tag {by!r}.", unknown("tags", by, tags))
    return {value: rank for rank, value in enumerate(values)}


def _trend(
    case: str,
    runs: Sequence[_MeasuredCase | MissingPoint],
    metric: Metric,
    tag_order: Mapping[str, int],
    by: str | None,
) -> Trend:
    """Trend of a case without its changes."""
    measured = [entry for entry in runs if isinstance(entry, _MeasuredCase)]
    missing = [entry for entry in runs if isinstance(entry, MissingPoint) and not (by and entry.tag is None)]
    points: list[Point] = []
    boundaries: dict[int, str] = {}
    last: _MeasuredCase | None = None
    for group in _comparable([entry for entry in measured if not (by and entry.point.tag is None)]):
        points_of_group = [entry.point for entry in group]
        if by:
            merged = _points_by_tag(points_of_group, metric, tag_order)
            points_of_group = [entry for entry in merged if isinstance(entry, Point)]
            missing += [entry for entry in merged if isinstance(entry, MissingPoint)]
        if last and points_of_group:
            boundaries[len(points)] = "; ".join(_mismatches(last, group[0]))
        last = group[-1] if points_of_group else last
        points += points_of_group
    untagged = tuple(entry.point.run for entry in measured if by and entry.point.tag is None)
    return Trend(
        case=case,
        metric=metric,
        points=tuple(points),
        boundaries=tuple(boundaries),
        boundary_reasons=tuple(boundaries.values()),
        by=by,
        untagged=untagged,
        missing=tuple(missing),
    )


def _comparable(measured: Sequence[_MeasuredCase]) -> list[list[_MeasuredCase]]:
    """Groups of cases in which each can be compared with the one before, ordered by their first."""
    groups: list[list[_MeasuredCase]] = []
    groups_by_key: dict[tuple[object, ...], set[int]] = {}  # by the key of the last case of the group
    current = -1  # group of the case before
    for case in measured:
        if current < 0 or not _is_same_setup(groups[current][-1], case):
            key, band = _comparison_key(case), _memory_band(case.setup.machine)
            candidates = [
                index for step in (-1, 0, 1) for index in groups_by_key.get((*key, band + step), ())
            ]
            current = next(
                (index for index in sorted(candidates) if not _mismatches(groups[index][-1], case)),
                len(groups),
            )
            if current == len(groups):
                groups.append([])
            else:
                last = groups[current][-1]
                groups_by_key[*_comparison_key(last), _memory_band(last.setup.machine)].discard(current)
            groups_by_key.setdefault((*key, band), set()).add(current)
        groups[current].append(case)
    return groups


def _is_same_setup(before: _MeasuredCase, after: _MeasuredCase) -> bool:
    """True if only the values can differ: most runs share these objects with the run before."""
    return before.setup is after.setup and before.facts is after.facts


def _comparison_key(measured: _MeasuredCase) -> tuple[object, ...]:
    """Key that is equal for all comparable cases, so that few have to be compared in detail."""
    settings, digest = measured.setup.settings, measured.facts.digest
    counts = digest.cost and (digest.cost.flops, digest.cost.bytes, digest.cost.items, digest.cost.item)
    is_user_model = isinstance(digest.workload_version, str)  # versions of a user's model may be compared
    work = () if is_user_model else (digest.workload_version, counts)
    hardware = _fingerprint(replace(measured.setup.machine, memory_bytes=0))
    conditions = settings.threads, settings.allocator, settings.isolation
    return hardware, *conditions, digest.device_model, work, digest.timer


def _memory_band(machine: Machine) -> int:
    """Band of memory sizes: machines that count as the same are in the same band or in neighbouring ones."""
    return math.floor(math.log(max(machine.memory_bytes, 1)) / -math.log1p(-MEMORY_TOLERANCE))


def _mismatches(before: _MeasuredCase, after: _MeasuredCase) -> list[str]:
    return [
        *run_mismatches(before.setup, after.setup),
        *case_mismatches(before.facts.digest, after.facts.digest),
    ]


def _points_by_tag(
    points: Sequence[Point], metric: Metric, tag_order: Mapping[str, int]
) -> list[Point | MissingPoint]:
    values: dict[int, list[Point]] = {}
    for point in points:
        values.setdefault(tag_order[point.tag or ""], []).append(point)
    return [_merge_points(values[rank], metric) for rank in sorted(values)]


def _merge_points(points: Sequence[Point], metric: Metric) -> Point | MissingPoint:
    """One point for several runs, from the uncontended ones if there are any."""
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


MIN_SHARED_CASES = 3  # this many cases that change together are one event, likely of the machine
SHARED_WINDOW_S = 2 * 86400.0  # a change is located to a run or two, and there is about one run per day


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedChange:
    """Change of several cases of one machine within two days in the same direction.

    `changes`: one of each of `cases`.
    """

    day: str  # ISO 8601, of the first change
    direction: str
    cases: tuple[str, ...]
    changes: tuple[Change, ...]

    @property
    def ratio(self) -> float:
        """Median of the ratios."""
        return median([change.ratio for change in self.changes])


@dataclass(frozen=True, slots=True)
class _DatedChange:
    """A change of a case with its time."""

    time: float  # Unix time
    day: str
    case: str
    change: Change


def shared_changes(trends: Sequence[Trend]) -> list[SharedChange]:
    """Changes that at least `MIN_SHARED_CASES` cases of a machine have in common, oldest first."""
    changes_by_machine: dict[tuple[str, str], list[_DatedChange]] = {}
    for trend in trends:
        for change in trend.history.changes:
            point = trend.points[change.index]
            with suppress(ValueError):  # a run that does not say when it began is no part of an event
                located = _DatedChange(unix_time(point.started), point.started[:10], trend.case, change)
                changes_by_machine.setdefault((point.hardware, change.direction), []).append(located)
    events = [event for located in changes_by_machine.values() for event in _events(located)]
    shared = [event for event in events if len(event.cases) >= MIN_SHARED_CASES]
    return sorted(shared, key=lambda event: (event.day, event.direction))


def _events(changes: Sequence[_DatedChange]) -> Iterator[SharedChange]:
    """Events of at most two days from their first change, with one change per case."""
    remaining = sorted(changes, key=lambda change: (change.time, change.case))
    while remaining:
        first, changes_by_case = remaining[0], dict[str, _DatedChange]()
        end = bisect_right(remaining, first.time + SHARED_WINDOW_S, key=lambda change: change.time)
        later = [
            change
            for change in remaining[:end]
            if changes_by_case.setdefault(change.case, change) is not change
        ]
        remaining = later + remaining[end:]
        yield SharedChange(
            day=first.day,
            direction=first.change.direction,
            cases=tuple(sorted(changes_by_case)),
            changes=tuple(changes_by_case[case].change for case in sorted(changes_by_case)),
        )


def _history(
    points: Sequence[Point], boundaries: Sequence[int], metric: Metric, threshold: float, family: int
) -> History:
    """Changes among the uncontended points; indices are those of all points."""
    uncontended = [index for index, point in enumerate(points) if not point.contended]
    starts = {bisect_left(uncontended, boundary) for boundary in boundaries}
    history = change_points(
        [points[index].value for index in uncontended],
        threshold=threshold,
        better=metric.better,
        boundaries=sorted(starts - {0, len(uncontended)}),
        family=family,
    )
    return replace(
        history,
        changes=tuple(replace(change, index=uncontended[change.index]) for change in history.changes),
        outliers=tuple(uncontended[index] for index in history.outliers),
        segments=tuple(
            replace(change, start=uncontended[change.start], stop=uncontended[change.stop - 1] + 1)
            for change in history.segments
        ),
    )
