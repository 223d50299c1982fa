"""Trends as a document: a sparkline and the changes of each case, and a plot."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

from benchbench import format as fmt
from benchbench.documents.document import (
    Cell,
    Content,
    Document,
    Plot,
    Records,
    Table,
    Tone,
    TrendLine,
    TrendPoint,
    number,
    table,
)
from benchbench.documents.short_names import case_cells
from benchbench.judging.change_points import MIN_LEVEL_RUNS, Change
from benchbench.judging.series import MissingPoint, Point, SharedChange, Trend, shared_changes
from benchbench.store.disk import short

MAX_PANELS = 20  # in one plot
LEVELS = "▁▂▃▄▅▆▇█"
MIN_SPAN = math.log(1.1)  # of a sparkline, so that noise of 1 % looks flat
MIN_POINTS = 2 * MIN_LEVEL_RUNS  # needed to detect a change: one level on each side
SPARKLINE_LENGTH = 60  # most recent points shown
Shared = Mapping[tuple[str, int], SharedChange]  # events by case and index of its change
FIELDS = (
    *("case", "metric", "unit", "tag", "run", "started", "value", "processes", "change"),
    *("spike", "contended", "not_comparable", "damaged", "missing"),
)
POINT = tuple(field.name for field in fields(Point))
LOTTERY = "runs alternate between these levels: no change of the code"
NOTHING = "no stored run has such a case, or a value of it: accelbench report shows the ids of cases"


def history_document(trends: Sequence[Trend], results_option: str = "") -> Document:
    """Document with a table of events per case. Sparklines share one scale: equal heights are equal ratios.

    `results_option` is ` --results FOLDER` for suggested commands, or empty.
    """
    span = max([MIN_SPAN, *map(_log_span, trends)])
    events = shared_changes(trends)
    names = case_cells(trend.case for trend in trends)
    shared = {
        (case, change.index): event
        for event in events
        for case, change in zip(event.cases, event.changes, strict=True)
    }
    return Document(
        name="history",
        title="History",
        answer=(Cell((_answer(trends),)),),
        tables=tuple(_trend_table(trend, names[trend.case].short, span, shared) for trend in trends),
        plots=lambda: (_plot(trends),),
        notes=(*_notes(trends, events, span), *_too_few_points(trends, results_option)),
        data=[_trend_fields(trend) for trend in trends],
        records=Records(FIELDS, tuple(row for trend in trends for row in _record_rows(trend))),
    )


def _answer(trends: Sequence[Trend]) -> str:
    """`2 of 14 cases became slower, 1 faster`, by the last change of each case."""
    last = [trend.history.changes[-1].direction for trend in trends if trend.history.changes]
    if not trends:
        return "no stored run has such a case"
    if not last and len(max(map(_longest_segment, trends), key=len)) < MIN_POINTS:
        return f"too few runs to detect a change in {fmt.count_of(len(trends), 'case')}"
    if not last:
        return f"no change in {fmt.count_of(len(trends), 'case')}"
    slower, faster = last.count("slower"), last.count("faster")
    cases = fmt.count_of(len(trends), "case")
    return (
        f"{slower or 'none'} of {cases} became slower, {faster or 'none'} faster, by the last change of each"
    )


def _notes(trends: Sequence[Trend], events: Sequence[SharedChange], span: float) -> Iterator[str]:
    if not trends:
        yield NOTHING
    for event in events:
        size = f"{len(event.cases)} of {len(trends)} cases became {event.direction}, {fmt.ratio(event.ratio)}"
        yield f"{event.day}: {size} in the median: one event, perhaps of the machine"
    if len(trends) > 1:
        yield f"sparklines share one logarithmic scale: from ▁ to █ it is {fmt.ratio(math.exp(span))}"


def _too_few_points(trends: Sequence[Trend], results_option: str) -> Iterator[str]:
    """Note on the number of points needed, if no case has enough, with a command that works now."""
    points = max(map(_longest_segment, trends), key=len, default=())
    if not points or len(points) >= MIN_POINTS:
        return
    unit = f"values of {trends[0].by}" if trends[0].by else "runs"
    count = "there is one" if len(points) == 1 else f"there are {len(points)}"
    ids = list(dict.fromkeys(point.run for point in points))
    command = f"compare {ids[-2]} {ids[-1]}" if len(ids) > 1 else f"report {ids[0]}"
    requirement = f"to detect a change takes {MIN_POINTS} {unit} that can be compared, and {count}"
    yield f"{requirement}: repeat the run to add one; until then: accelbench {command}{results_option}"


def _longest_segment(trend: Trend) -> Sequence[Point]:
    """Largest group of comparable points, the newest of equally large ones."""
    edges = pairwise([0, *trend.boundaries, len(trend.points)])
    segments = [[point for point in trend.points[a:b] if not point.contended] for a, b in edges]
    return max(reversed(segments), key=len)


def _log_span(trend: Trend) -> float:
    """Logarithm of the ratio of the largest to the smallest value in the sparkline."""
    logs = [math.log(point.value) for point in trend.points[-SPARKLINE_LENGTH:]]
    return max(logs) - min(logs) if logs else 0.0


def _trend_table(trend: Trend, short_name: str, span: float, shared: Shared) -> Table:
    points, details = trend.points, f"{trend.metric.name}, {_count_text(trend)}"
    spark = sparkline([point.value for point in points], span) if points else ""
    ends = (
        _ends_text([fmt.quantity(point.value, trend.metric.unit) for point in points], " → ")
        if points
        else "no run has a value"
    )
    untagged = f"left out: {fmt.count_of(len(trend.untagged), 'run')} without the tag {trend.by}"
    return table(
        _event_rows(trend, shared),
        title=f"{trend.case}  {details}",
        short_title=f"{short_name}  {details}" if short_name else "",
        facts=[f"{spark}  {ends}".strip()],
        notes=[untagged] if trend.untagged else [],
    )


def _event_rows(trend: Trend, shared: Shared) -> Iterator[dict[str, Content]]:
    """Rows for changes, spikes, contended and missing points, and boundaries of comparability."""
    for change in trend.history.changes:
        tone = Tone.BAD if change.direction == "slower" else Tone.GOOD
        event = shared.get((trend.case, change.index))
        yield {
            "event": Cell((change.direction,), Tone.PLAIN if event else tone),
            "size": number(change.ratio, "×", change.low, change.high),
            "where": _between_text(trend, change) + (f": the event of {event.day}" if event else ""),
        }
    if levels := trend.history.recurring:
        yield {
            "event": "recurring levels",
            "size": None,
            "where": f"{', '.join(fmt.quantity(level, trend.metric.unit) for level in levels)}: {LOTTERY}",
        }
    for index in trend.history.outliers:
        value = number(trend.points[index].value, trend.metric.unit)
        yield {"event": "spike", "size": value, "where": f"in {point_name(trend.points[index])}"}
    for point in trend.points:
        if point.contended:
            yield {
                "event": "contended",
                "size": number(point.value, trend.metric.unit),
                "where": f"in {point_name(point)}, which is not judged: {point.contended.partition(': ')[2]}",
            }
    for missing in trend.missing:
        where = f"in {point_name(missing)}, which has no value: {missing.reason}"
        yield {"event": missing.event, "size": None, "where": where}
    for index, reason in zip(trend.boundaries, trend.boundary_reasons, strict=True):
        place = f"from {point_name(trend.points[index])}: {reason}"
        yield {"event": "not comparable", "size": None, "where": place}


def _between_text(trend: Trend, change: Change) -> str:
    """`between RUN and RUN, 2.11.0 → 2.12.0`; versions only if they differ."""
    before, after = trend.sides(change)
    version_change = f", {before.version} → {after.version}" if before.version != after.version else ""
    return f"between {point_name(before)} and {point_name(after)}{version_change}"


def point_name(point: Point | MissingPoint) -> str:
    """The value of the tag, or the run id without a tag."""
    return point.run if point.tag is None else short(point.tag)


def _count_text(trend: Trend) -> str:
    """`12 runs, 1 failed`, or `5 values of commit in 12 runs`."""
    all_points: list[Point | MissingPoint] = [*trend.points, *trend.missing]
    runs = fmt.count_of(sum(len(point.runs) for point in all_points), "run")
    counts = Counter(missing.event for missing in trend.missing)
    without = "".join(f", {count} {event}" for event, count in counts.items())
    if trend.by is None:
        return f"{runs}{without}"
    values = len({point.tag for point in all_points})
    return f"{fmt.count_of(values, 'value')} of {trend.by} in {runs}{without}"


def sparkline(values: Sequence[float], span: float = 0.0) -> str:
    """Values as bars on a logarithmic scale; the full height is at least `span` (a logarithm)."""
    logs = [math.log(value) for value in values[-SPARKLINE_LENGTH:]]
    low = min(logs)
    height = max(span, max(logs) - low) or 1.0
    return "".join(LEVELS[min(int((value - low) / height * len(LEVELS)), len(LEVELS) - 1)] for value in logs)


def largest_changes(trends: Sequence[Trend]) -> list[Trend]:
    """All trends in order; if more than twenty, those with the largest changes, largest first."""
    if len(trends) <= MAX_PANELS:
        return list(trends)
    return sorted(trends, key=_change_size, reverse=True)[:MAX_PANELS]


def _change_size(trend: Trend) -> tuple[float, float]:
    """Sort key, both as absolute logarithms: largest change, then ratio of the last to the first value."""
    changes = [abs(math.log(change.ratio)) for change in trend.history.changes]
    return max(changes, default=0.0), abs(math.log(trend.points[-1].value / trend.points[0].value))


def _plot(trends: Sequence[Trend]) -> Plot:
    """Plot with at most twenty panels: the trends with the largest changes."""
    plotted = largest_changes([trend for trend in trends if trend.points])
    return Plot(
        name="history",
        title=_title(plotted, len(trends)),
        facts=tuple(_facts([point for trend in plotted for point in trend.points])),
        reading=" ".join(_reading(plotted)),
        empty=NOTHING,
        panels=tuple(map(_trend_line, plotted)),
    )


def _reading(plotted: Sequence[Trend]) -> Iterator[str]:
    """Sentences on the marks that occur in the plotted trends."""
    histories = [trend.history for trend in plotted]
    circle = "value for the tag" if plotted and plotted[0].by else "value in a run"
    if any(len(point.processes) > 1 for trend in plotted for point in trend.points):
        yield f"Small dots are processes, a circle is their {circle}."
    else:
        yield f"A circle is the {circle}."
    if any(history.outliers for history in histories):
        yield "A cross is a spike."
    if any(history.segments for history in histories):
        yield "A long line is a level."
    if any(history.changes for history in histories):
        yield "A dashed line with a triangle is a change: up is slower, down is faster."
    if any(trend.boundaries for trend in plotted):
        yield "A dotted line marks other hardware, settings or work; nothing is compared across it."


def _title(plotted: Sequence[Trend], count: int) -> str:
    if not plotted:
        return "History"
    metric, by = plotted[0].metric, plotted[0].by
    title = f"{metric.name} by {by}" if by else f"{metric.name} over time"
    better = "less" if metric.better == "lower" else "more"
    selection = (
        f"; {len(plotted)} of {count} cases, the biggest changes first" if len(plotted) < count else ""
    )
    return f"{title} ({better} is better){selection}"


def _facts(points: Sequence[Point]) -> Iterator[str]:
    """Devices, threads, versions and dates of the points."""
    if not points:
        return
    devices = dict.fromkeys(point.device for point in points)
    threads = sorted({point.threads for point in points})
    yield f"{', '.join(devices)}; {' or '.join(map(str, threads))} threads"
    versions: dict[str, dict[str, None]] = {}
    for point in sorted(points, key=lambda point: point.started):
        versions.setdefault(point.backend, {})[point.version or "of unknown version"] = None
    yield ", ".join(f"{backend} {_ends_text(list(names))}" for backend, names in versions.items())
    yield _ends_text(sorted({point.started[: len("2026-01-01")] for point in points}))


def _ends_text(texts: Sequence[str], between: str = " … ") -> str:
    """The first and the last text, or the only one."""
    return texts[0] if len(texts) == 1 else f"{texts[0]}{between}{texts[-1]}"


def _trend_line(trend: Trend) -> TrendLine:
    return TrendLine(
        title=trend.case,
        backend=trend.points[0].backend,
        unit=trend.metric.unit,
        points=tuple(
            TrendPoint(
                name=point_name(point), started=point.started, value=point.value, processes=point.processes
            )
            for point in trend.points
        ),
        history=trend.history,
        boundaries=trend.boundaries,
        by_time=trend.by is None,
    )


def _record_rows(trend: Trend) -> Iterator[dict[str, Any]]:
    """A row per point. `change` is the ratio of the level that starts here to the previous one."""
    changes = {change.index: change.ratio for change in trend.history.changes}
    reasons = dict(zip(trend.boundaries, trend.boundary_reasons, strict=True))
    spikes = frozenset(trend.history.outliers)
    for index, point in enumerate(trend.points):
        yield {
            "case": trend.case,
            "metric": trend.metric.name,
            "unit": trend.metric.unit,
            "tag": point.tag,
            "run": point.run,
            "started": point.started,
            "value": point.value,
            "processes": len(point.processes),
            "change": changes.get(index),
            "spike": index in spikes,
            "contended": point.contended,
            "not_comparable": reasons.get(index),
            "damaged": point.damaged,
            "missing": None,
        }
    for missing in trend.missing:
        yield dict.fromkeys(FIELDS) | {
            "case": trend.case,
            "metric": trend.metric.name,
            "unit": trend.metric.unit,
            "tag": missing.tag,
            "run": missing.run,
            "started": missing.started,
            "missing": f"{missing.event}: {missing.reason}",
        }


def _trend_fields(trend: Trend) -> dict[str, Any]:
    """JSON form of a trend."""
    return {
        "case": trend.case,
        "metric": trend.metric.name,
        "unit": trend.metric.unit,
        "by": trend.by,
        "untagged": trend.untagged,
        "points": [{name: getattr(point, name) for name in POINT} for point in trend.points],
        "missing": [asdict(missing) for missing in trend.missing],
        "changes": [_change_fields(trend, change) for change in trend.history.changes],
        "recurring": trend.history.recurring,
        "segments": [asdict(segment) for segment in trend.history.segments],
        "boundaries": [
            {"run": trend.points[index].run, "reason": reason}
            for index, reason in zip(trend.boundaries, trend.boundary_reasons, strict=True)
        ],
        "outliers": [trend.points[index].run for index in trend.history.outliers],
    }


def _change_fields(trend: Trend, change: Change) -> dict[str, Any]:
    before, after = trend.sides(change)
    return {
        **asdict(change),
        "after_run": before.run,
        "run": after.run,
        "after_tag": before.tag,
        "tag": after.tag,
    }
