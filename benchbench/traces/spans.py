"""Spans on threads and streams: which is nested in which, which was the innermost when, and when none was.

Backends note in a `Recording` what a profiler was on for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchbench.model.profile import Gaps
from benchbench.stats import median

BEGIN, END = "accelbench begin", "accelbench end"  # between these two marks is what a profile is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that ran on a lane, a thread or a stream; spans of one lane nest.

    Without a name it belongs to no operator, and hides what it is nested in. `helps`: a task that an
    operator handed to this thread, no call of its own. `cause`: the `id` of the span on the host that
    launched it.
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
    """What is looked at, on the clock of the spans."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch in which a span was the innermost of its lane."""

    start_s: float
    end_s: float
    span: int


def nested(spans: Sequence[Span], window: TraceWindow) -> tuple[list[int | None], list[Piece]]:
    """The span that each is nested in, and the stretches in which each named one was the innermost."""
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
    """A lane's stretches in order. A span that outlasts the one it began in is cut off there."""
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


def shared(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, float]]:
    """The share of the wall time that each stretch has: stretches that run at once share it equally."""
    changes: dict[float, int] = defaultdict(int)
    for piece in pieces:
        changes[piece.start_s] += 1
        changes[piece.end_s] -= 1
    edges = sorted(changes)
    passed: dict[float, float] = {}  # edge → the wall time so far, over how many ran at once
    running, total = 0, 0.0
    for edge, following in zip(edges, edges[1:] + edges[-1:], strict=True):
        passed[edge] = total
        running += changes[edge]
        if running:
            total += (following - edge) / running
    return ((piece, passed[piece.end_s] - passed[piece.start_s]) for piece in pieces)


def enclosing(index: int, parents: Sequence[int | None]) -> Iterator[int]:
    """What a span is nested in, from the inside out."""
    above = parents[index]
    while above is not None:
        yield above
        above = parents[above]


def gaps_of(pieces: Sequence[Piece], spans: Sequence[Span], window: TraceWindow) -> tuple[Gaps, float]:
    """The stretches without an operator, and the seconds of all others."""
    found: list[tuple[float, str]] = []
    until, last = window.start_s, ""
    for piece in sorted(pieces, key=lambda each: each.start_s):
        if piece.start_s > until:
            found.append((piece.start_s - until, last))
        if piece.end_s > until:
            until, last = piece.end_s, spans[piece.span].name
    if window.end_s > until:
        found.append((window.end_s - until, last))
    lengths = [length for length, _ in found]
    longest, after = max(found, default=(0.0, ""))
    total = sum(lengths)
    middle = median(lengths) if lengths else 0.0
    gaps = Gaps(count=len(found), total_s=total, median_s=middle, longest_s=longest, after=after)
    return gaps, max(window.end_s - window.start_s - total, 0.0)


class Unread(Exception):
    """A trace was recorded that nothing in this interpreter can read; `recording` tells what it is of."""

    def __init__(self, recording: Recording) -> None:
        super().__init__("the trace can be read by jax or tensorflow only")
        self.recording = recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a profiler was on for: `steps` steps, and the seconds per step of each block of them."""

    profiler: str
    steps: int
    step_s: tuple[float, ...]
