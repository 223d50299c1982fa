"""Stored runs → a series of values per case, by time or by a tag. Pure: no file, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from benchbench.analyse.digest import CaseDigest, digest
from benchbench.analyse.metrics import Metric
from benchbench.errors import UsageError, unknown
from benchbench.machine.environment import fingerprint
from benchbench.model.run import Run
from benchbench.store.runs import begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A case's value in one run or, by a tag, in all runs of one value of it; `run` is the first of them."""

    run: str
    started: str
    value: float  # in the metric's unit
    version: str | None  # of the framework
    hardware: str  # fingerprint
    processes: tuple[float, ...]  # the value of each
    runs: tuple[str, ...]
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A case's points in order; `untagged`: the runs left out since they lack the tag."""

    case: str
    points: tuple[Point, ...]
    untagged: tuple[str, ...] = ()


def series(
    runs: Iterable[Run], metric: Metric, patterns: Sequence[str] = (), by: str | None = None
) -> list[Series]:
    """A series per case whose id holds or matches one of `patterns`; runs may come in any order.

    Ordered by when they began, also where a clock was set back, each machine's points after the other's. With
    `by`, runs of one value of that tag on one machine are a point, from the processes of all of them, ordered
    by when their value was first seen. Interleaved runs are left out: one of them may be of code long gone.

    Raises UsageError where no run has the tag.
    """
    kept = [_seen(run, metric, patterns, by) for run in runs if run.info.partner is None]
    seen = sorted(kept, key=lambda run: (run.begun, run.run))
    places = _places(seen, by) if by else {}
    by_case: dict[str, list[Point]] = {}
    for run in seen:
        for case, point in run.points:
            by_case.setdefault(case, []).append(point)
    made = [_series(case, points, metric, places, by) for case, points in by_case.items()]
    return [one for one in made if one.points]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of a run: a store may hold thousands."""

    begun: float  # Unix time
    run: str
    tags: Mapping[str, str]
    points: tuple[tuple[str, Point], ...]


def _seen(run: Run, metric: Metric, patterns: Sequence[str], by: str | None) -> _Seen:
    points = tuple(_points(run, metric, patterns, by))
    return _Seen(begun(run.info), run.info.id, run.info.tags, points)


def _points(run: Run, metric: Metric, patterns: Sequence[str], by: str | None) -> Iterator[tuple[str, Point]]:
    machine = fingerprint(run.info.machine)
    for case, reduced in digest(run).cases.items():
        processes = _processes(reduced, metric)
        value = _pooled(processes, metric) if processes and _wanted(case, patterns) else None
        if value is not None:
            yield (
                case,
                Point(
                    run=run.info.id,
                    started=run.info.started,
                    value=value,
                    version=reduced.version,
                    hardware=f"{machine}/{reduced.device_model}",
                    processes=processes,
                    runs=(run.info.id,),
                    tag=run.info.tags.get(by) if by else None,
                ),
            )


def _processes(case: CaseDigest, metric: Metric) -> tuple[float, ...]:
    return tuple(value for value in case.of(metric) if value is not None and 0 < value < math.inf)


def _wanted(case: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(pattern in case or fnmatchcase(case, pattern) for pattern in patterns)


def _pooled(values: Sequence[float], metric: Metric) -> float | None:
    """Of several processes, as a report has it; None where they disagree."""
    return metric.source.pool(values).value


def _places(seen: Sequence[_Seen], by: str) -> dict[str, int]:
    """Value of the tag → how many were seen before it."""
    values = dict.fromkeys(run.tags[by] for run in seen if by in run.tags)
    if seen and not values:
        known = sorted({name for run in seen for name in run.tags})
        raise UsageError(f"No run has a tag {by!r}.", unknown("tags", by, known))
    return {value: place for place, value in enumerate(values)}


def _series(
    case: str, points: Sequence[Point], metric: Metric, places: Mapping[str, int], by: str | None
) -> Series:
    machines = list(dict.fromkeys(point.hardware for point in points))
    if by is None:
        return Series(
            case=case, points=tuple(sorted(points, key=lambda point: machines.index(point.hardware)))
        )
    groups: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        if point.tag is not None:
            key = machines.index(point.hardware), places[point.tag]
            groups.setdefault(key, []).append(point)
    untagged = tuple(point.run for point in points if point.tag is None)
    joined = tuple(filter(None, (_joined(groups[key], metric) for key in sorted(groups))))
    return Series(case=case, points=joined, untagged=untagged)


def _joined(points: Sequence[Point], metric: Metric) -> Point | None:
    processes = tuple(value for point in points for value in point.processes)
    value = _pooled(processes, metric)
    if value is None:
        return None
    return Point(
        run=points[0].run,
        started=points[0].started,
        value=value,
        version=points[0].version,
        hardware=points[0].hardware,
        processes=processes,
        runs=tuple(point.run for point in points),
        tag=points[0].tag,
    )
