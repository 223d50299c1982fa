"""Trends as a document: a sparkline per case, the changes with the runs between which they lie, a plot."""

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
from benchbench.store.naming import short

PANELS = 20  # panels that can still be looked at
LEVELS = "▁▂▃▄▅▆▇█"
LEAST_SPAN = math.log(1.1)  # of a sparkline: noise of a percent looks flat
NEEDED = 2 * MIN_LEVEL_RUNS  # points that can be compared: a level on either side of a change
SPARKS = 60  # the last runs that a sparkline shows
Shared = Mapping[tuple[str, int], SharedChange]  # a case and the index of its change → the event
FIELDS = (
    *("case", "metric", "unit", "tag", "run", "started", "value", "processes", "change"),
    *("spike", "contended", "not_comparable", "damaged", "missing"),
)
POINT = tuple(field.name for field in fields(Point))
LOTTERY = "runs go back and forth between these: no change of the code"
NOTHING = "no stored run has such a case, or a value of it: accelbench report shows the ids of cases"
READING = (
    "Small dots are processes, circles their {what}, crosses spikes; a long line is a level. "
    "A dashed line with a triangle is a change: up is slower, down is faster. "
    "A dotted line is other hardware, settings or work: nothing is compared across it."
)


def history_document(trends: Sequence[Trend], where: str = "") -> Document:
    """A table of events per case; sparklines of one scale, so that equal heights are equal ratios.

    `where`: the option that names the results folder in a command to type.
    """
    span = max([LEAST_SPAN, *map(_span, trends)])
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
        tables=tuple(_table(trend, names[trend.case].short, span, shared) for trend in trends),
        plots=(_plot(trends),),
        notes=(*_notes(trends, events, span), *_too_few(trends, where)),
        data=[_fields(trend) for trend in trends],
        records=Records(FIELDS, tuple(row for trend in trends for row in _records(trend))),
    )


def _answer(trends: Sequence[Trend]) -> str:
    """`2 of 14 cases became slower, 1 faster`: by their last change."""
    last = [trend.history.changes[-1].direction for trend in trends if trend.history.changes]
    if not trends:
        return "no stored run has such a case"
    if not last and len(max(map(_judged_together, trends), key=len)) < NEEDED:
        return f"too few runs to tell a change in {fmt.count_of(len(trends), 'case')}"
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


def _too_few(trends: Sequence[Trend], where: str) -> Iterator[str]:
    """What a change takes where no case has it, and what can be told without it."""
    most = max(map(_judged_together, trends), key=len, default=())
    if not most or len(most) >= NEEDED:
        return
    unit = f"values of {trends[0].by}" if trends[0].by else "runs"
    here = "there is one" if len(most) == 1 else f"there are {len(most)}"
    ids = list(dict.fromkeys(point.run for point in most))
    shown = f"compare {ids[-2]} {ids[-1]}" if len(ids) > 1 else f"report {ids[0]}"
    needed = f"to tell a change takes {NEEDED} {unit} that can be compared, and {here}"
    yield f"{needed}: the same run again adds one; until then: accelbench {shown}{where}"


def _judged_together(trend: Trend) -> Sequence[Point]:
    """The most points among which a change is looked for; of as many the newest."""
    edges = pairwise([0, *trend.boundaries, len(trend.points)])
    parts = [[each for each in trend.points[a:b] if not each.contended] for a, b in edges]
    return max(reversed(parts), key=len)


def _span(trend: Trend) -> float:
    """The span of the logarithms that the trend's sparkline shows."""
    shown = [math.log(point.value) for point in trend.points[-SPARKS:]]
    return max(shown) - min(shown) if shown else 0.0


def _table(trend: Trend, short_name: str, span: float, shared: Shared) -> Table:
    points, of = trend.points, f"{trend.metric.name}, {_count(trend)}"
    spark = sparkline([point.value for point in points], span) if points else ""
    ends = _ends([_value(trend, point) for point in points], " → ") if points else "no run has a value"
    untagged = f"left out: {fmt.count_of(len(trend.untagged), 'run')} without the tag {trend.by}"
    return table(
        _events(trend, shared),
        title=f"{trend.case}  {of}",
        short_title=f"{short_name}  {of}" if short_name else "",
        facts=[f"{spark}  {ends}".strip()],
        notes=[untagged] if trend.untagged else [],
    )


def _events(trend: Trend, shared: Shared) -> Iterator[dict[str, Content]]:
    """Changes, spikes, and from where on nothing can be compared with what was before."""
    for change in trend.history.changes:
        tone = Tone.BAD if change.direction == "slower" else Tone.GOOD
        event = shared.get((trend.case, change.index))
        yield {
            "event": Cell((change.direction,), Tone.PLAIN if event else tone),
            "size": number(change.ratio, "×", change.low, change.high),
            "where": _between(trend, change) + (f": the event of {event.day}" if event else ""),
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


def _between(trend: Trend, change: Change) -> str:
    before, after = trend.sides(change)
    suspect = f", {before.version} → {after.version}" if before.version != after.version else ""
    return f"between {point_name(before)} and {point_name(after)}{suspect}"


def point_name(point: Point | MissingPoint) -> str:
    """What a point is called: the tag's value, else the run."""
    return point.run if point.tag is None else short(point.tag)


def _count(trend: Trend) -> str:
    all_points: list[Point | MissingPoint] = [*trend.points, *trend.missing]
    runs = fmt.count_of(sum(len(point.runs) for point in all_points), "run")
    counts = Counter(missing.event for missing in trend.missing)
    without = "".join(f", {count} {event}" for event, count in counts.items())
    if trend.by is None:
        return f"{runs}{without}"
    values = len({point.tag for point in all_points})
    return f"{fmt.count_of(values, 'value')} of {trend.by} in {runs}{without}"


def _value(trend: Trend, point: Point) -> str:
    return fmt.quantity(point.value, trend.metric.unit)


def sparkline(values: Sequence[float], span: float = 0.0) -> str:
    """The last values as heights, logarithmic: the highest level is `span` above their lowest, or more."""
    logs = [math.log(value) for value in values[-SPARKS:]]
    low = min(logs)
    whole = max(span, max(logs) - low) or 1.0
    return "".join(LEVELS[min(int((value - low) / whole * len(LEVELS)), len(LEVELS) - 1)] for value in logs)


def biggest(trends: Sequence[Trend]) -> list[Trend]:
    """All trends in their order, or the twenty of the biggest changes; ends count after changes."""
    if len(trends) <= PANELS:
        return list(trends)
    return sorted(trends, key=_extent, reverse=True)[:PANELS]


def _extent(trend: Trend) -> tuple[float, float]:
    changes = [abs(math.log(change.ratio)) for change in trend.history.changes]
    return max(changes, default=0.0), abs(math.log(trend.points[-1].value / trend.points[0].value))


def _plot(trends: Sequence[Trend]) -> Plot:
    """The plot of at most twenty panels, those that changed most."""
    shown = biggest([trend for trend in trends if trend.points])
    return Plot(
        name="history",
        title=_title(shown, len(trends)),
        facts=tuple(_facts([point for trend in shown for point in trend.points])),
        reading=READING.format(what="value for the tag" if shown and shown[0].by else "value in a run"),
        empty=NOTHING,
        panels=tuple(map(_panel, shown)),
    )


def _title(shown: Sequence[Trend], count: int) -> str:
    if not shown:
        return "History"
    metric, by = shown[0].metric, shown[0].by
    title = f"{metric.name} by {by}" if by else f"{metric.name} over time"
    better = "less" if metric.better == "lower" else "more"
    some = f"; {len(shown)} of {count} cases, the biggest changes first" if len(shown) < count else ""
    return f"{title} ({better} is better){some}"


def _facts(points: Sequence[Point]) -> Iterator[str]:
    """Which devices and versions were measured, and when."""
    if not points:
        return
    devices = dict.fromkeys(point.device for point in points)
    threads = sorted({point.threads for point in points})
    yield f"{', '.join(devices)}; {' or '.join(map(str, threads))} threads"
    versions: dict[str, dict[str, None]] = {}
    for point in sorted(points, key=lambda point: point.started):
        versions.setdefault(point.backend, {})[point.version or "of unknown version"] = None
    yield ", ".join(f"{backend} {_ends(list(known))}" for backend, known in versions.items())
    yield _ends(sorted({point.started[: len("2026-01-01")] for point in points}))


def _ends(texts: Sequence[str], between: str = " … ") -> str:
    """The first text and the last."""
    return texts[0] if len(texts) == 1 else f"{texts[0]}{between}{texts[-1]}"


def _panel(trend: Trend) -> TrendLine:
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


def _records(trend: Trend) -> Iterator[dict[str, Any]]:
    """A row per point; `change`: the ratio of the level that begins with it to the one before."""
    changes = {change.index: change.ratio for change in trend.history.changes}
    bars = dict(zip(trend.boundaries, trend.boundary_reasons, strict=True))
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
            "not_comparable": bars.get(index),
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


def _fields(trend: Trend) -> dict[str, Any]:
    """A trend for programs."""
    return {
        "case": trend.case,
        "metric": trend.metric.name,
        "unit": trend.metric.unit,
        "by": trend.by,
        "untagged": trend.untagged,
        "points": [{name: getattr(point, name) for name in POINT} for point in trend.points],
        "missing": [asdict(missing) for missing in trend.missing],
        "changes": [_change(trend, change) for change in trend.history.changes],
        "recurring": trend.history.recurring,
        "segments": [asdict(segment) for segment in trend.history.segments],
        "boundaries": [
            {"run": trend.points[index].run, "reason": reason}
            for index, reason in zip(trend.boundaries, trend.boundary_reasons, strict=True)
        ],
        "outliers": [trend.points[index].run for index in trend.history.outliers],
    }


def _change(trend: Trend, change: Change) -> dict[str, Any]:
    before, after = trend.sides(change)
    return {
        **asdict(change),
        "after_run": before.run,
        "run": after.run,
        "after_tag": before.tag,
        "tag": after.tag,
    }
