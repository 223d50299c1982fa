"""Spans on threads and streams: nesting, innermost spans at each time, and gaps.

Backends describe each use of a profiler by a `Recording`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchbench.model.profile import Gaps
from benchbench.stats import median

BEGIN, END = "accelbench begin", "accelbench end"  # marks around the profiled steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An event with a duration on a lane, which is a thread or a stream; spans of one lane nest.

    A span without a name belongs to no operator, and hides the spans around it. `helps`: a task that an
    operator handed to this thread, not a separate call. `cause`: `id` of the host span that launched it.
    """

    name: str
    lane: str
    start_s: float
    end_s: float
    on_device: bool = False
    helps: bool = False
    id: int | None = None
    cause: int | None = None
    flops: float | None = None
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Part of a trace to evaluate, on the clock of the spans."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """Time in which a span was the innermost of its lane."""

    start_s: float
    end_s: float
    span: int


def nest_spans(spans: Sequence[Span], window: TraceWindow) -> tuple[list[int | None], list[Piece]]:
    """Parent of each span, and the pieces in which each named span was the innermost."""
    lanes: dict[tuple[bool, str], list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        lanes[span.on_device, span.lane].append(index)
    parents: list[int | None] = [None] * len(spans)
    pieces: list[Piece] = []
    for indices in lanes.values():
        indices.sort(key=lambda index: (spans[index].start_s, -spans[index].end_s))
        for piece in _innermost(spans, indices, parents):
            start, end = max(piece.start_s, window.start_s), min(piece.end_s, window.end_s)
            if end > start and spans[piece.span].name:
                pieces.append(Piece(start, end, piece.span))
    return parents, pieces


def _innermost(spans: Sequence[Span], indices: Sequence[int], parents: list[int | None]) -> Iterator[Piece]:
    """Pieces of a lane in order. A span that outlasts its parent is cut off there."""
    open_spans: list[tuple[int, float]] = []  # (span, its end)
    cursor = 0.0
    for index in indices:
        span, end = spans[index], spans[index].end_s
        while open_spans and open_spans[-1][1] <= span.start_s:
            inner, until = open_spans.pop()
            yield Piece(cursor, until, inner)
            cursor = until
        if open_spans:
            outer, until = open_spans[-1]
            parents[index], end = outer, min(end, until)
            yield Piece(cursor, span.start_s, outer)
        cursor = span.start_s
        open_spans.append((index, end))
    while open_spans:
        inner, until = open_spans.pop()
        yield Piece(cursor, until, inner)
        cursor = until


def wall_shares(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, float]]:
    """Share of the wall time of each piece: simultaneous pieces share it equally."""
    changes: dict[float, int] = defaultdict(int)
    for piece in pieces:
        changes[piece.start_s] += 1
        changes[piece.end_s] -= 1
    edges = sorted(changes)
    passed: dict[
        float, float
    ] = {}  # edge → integral of wall time divided by the number of simultaneous pieces
    running, total = 0, 0.0
    for edge, following in zip(edges, edges[1:] + edges[-1:], strict=True):
        passed[edge] = total
        running += changes[edge]
        if running:
            total += (following - edge) / running
    return ((piece, passed[piece.end_s] - passed[piece.start_s]) for piece in pieces)


def enclosing_spans(index: int, parents: Sequence[int | None]) -> Iterator[int]:
    """Spans around a span, from the inside out."""
    above = parents[index]
    while above is not None:
        yield above
        above = parents[above]


def gaps_of(pieces: Sequence[Piece], spans: Sequence[Span], window: TraceWindow) -> tuple[Gaps, float]:
    """Gaps without an operator, and the seconds of all other time."""
    gaps_found: list[tuple[float, str]] = []
    until, last = window.start_s, ""
    for piece in sorted(pieces, key=lambda item: item.start_s):
        if piece.start_s > until:
            gaps_found.append((piece.start_s - until, last))
        if piece.end_s > until:
            until, last = piece.end_s, spans[piece.span].name
    if window.end_s > until:
        gaps_found.append((window.end_s - until, last))
    lengths = [length for length, _ in gaps_found]
    longest, after = max(gaps_found, default=(0.0, ""))
    total = sum(lengths)
    middle = median(lengths) if lengths else 0.0
    gaps = Gaps(count=len(gaps_found), total_s=total, median_s=middle, longest_s=longest, after=after)
    return gaps, max(window.end_s - window.start_s - total, 0.0)


class Unread(Exception):
    """Raised for a trace that no installed library can parse; `recording` describes it."""

    def __init__(self, recording: Recording) -> None:
        super().__init__("the trace can be read by jax or tensorflow only")
        self.recording = recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Use of a profiler: number of steps, and seconds per step of each block of them."""

    profiler: str
    steps: int
    step_s: tuple[float, ...]
