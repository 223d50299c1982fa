"""Spans on threads and streams, and the timeline they form: nesting, innermost spans at each time, and gaps.

Backends describe each use of a profiler by a `Recording`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchbench.model.profile import Communication, Gaps, Operator, Profile
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


MOST_POINTS = 500  # points of a memory timeline
MOST_KERNELS = 5  # listed kernels per operator
# Names of torch 2.13, JAX 0.10, TensorFlow 2.21.
# torch: c10d's operators, the work of gloo and NCCL, NCCL's kernels. XLA: its instructions, named by opcode
# or by JAX's primitive. TensorFlow: its kernels. XLA's `broadcast` repeats numbers on one device.
COMMUNICATING = re.compile(
    r"nccl|gloo:|c10d|record_param_comms|all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|collective"
    r"|psum|ppermute|cross.?replica",
    re.IGNORECASE,
)
# Ranges in which a rank computes and waits. The last two are torch's pipelines, one per micro-batch.
RANGES = re.compile(r"FSDP::|DistributedDataParallel|(Forward|Backward)$")
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """An allocation by a thread, or a release."""

    lane: str
    at_s: float
    bytes: int  # negative: released
    in_use: int  # of the allocator, afterwards


@dataclass(slots=True)
class OperatorSums:
    """Sums for an operator."""

    calls: int = 0
    host_self_s: float = 0.0
    host_total_s: float = 0.0
    device_self_s: float = 0.0
    device_total_s: float = 0.0
    flops: float | None = None
    bytes: float | None = None
    allocated: int | None = None
    kernels: dict[str, float] = field(default_factory=dict)


def summarise(
    spans: Sequence[Span],
    window: TraceWindow,
    recording: Recording,
    allocations: Sequence[Allocation] = (),
    traces: tuple[str, ...] = (),
) -> Profile:
    """Profile of the spans within `window`; spans beyond its ends are cut off there.

    Busy time, gaps and communication are those of a device if anything ran on one.
    """
    inside = [span for span in spans if span.end_s > window.start_s and span.start_s < window.end_s]
    rows: dict[str, OperatorSums] = defaultdict(OperatorSums)
    parents, pieces = nest_spans(inside, window)
    host = [piece for piece in pieces if not inside[piece.span].on_device]
    device = [piece for piece in pieces if inside[piece.span].on_device]
    for piece, share in wall_shares(host):
        rows[inside[piece.span].name].host_self_s += share
    _count(inside, parents, window, rows)
    _charge_device(inside, parents, device, rows)
    _charge_memory(inside, host, allocations, window, rows)
    gaps, busy = gaps_of(device or host, inside, window)
    at_s, in_use = memory(allocations, window)
    return Profile(
        profiler=recording.profiler,
        steps=recording.steps,
        step_s=recording.step_s,
        wall_s=window.end_s - window.start_s,
        on_device=bool(device),
        busy_s=busy,
        gaps=gaps,
        operators=operators_of(rows, on_device=bool(device)),
        communication=communication_in(inside, device or host),
        memory_at_s=at_s,
        memory_bytes=in_use,
        traces=traces,
    )


def memory(
    allocations: Sequence[Allocation], window: TraceWindow
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Memory timeline as (seconds since the window's start), (bytes in use): all points, or peaks of 500
    intervals.
    """
    inside = sorted(
        (allocation.at_s, allocation.in_use) for allocation in allocations if _within(allocation, window)
    )
    width = max(1, -(-len(inside) // MOST_POINTS))
    stretches = [inside[start : start + width] for start in range(0, len(inside), width)]
    peaks = [max(stretch, key=lambda point: point[1]) for stretch in stretches]
    return tuple(at - window.start_s for at, _ in peaks), tuple(used for _, used in peaks)


def _within(allocation: Allocation, window: TraceWindow) -> bool:
    return window.start_s <= allocation.at_s <= window.end_s


def _count(
    spans: Sequence[Span], parents: Sequence[int | None], window: TraceWindow, rows: dict[str, OperatorSums]
) -> None:
    """Count calls that begin in the window, total times, and the profiler's FLOPs and bytes."""
    for index, span in enumerate(spans):
        if not span.name or span.on_device:
            continue
        row = rows[span.name]
        if span.name not in {spans[outer].name for outer in enclosing_spans(index, parents)}:
            row.host_total_s += min(span.end_s, window.end_s) - max(span.start_s, window.start_s)
        if span.start_s >= window.start_s and not span.helps:
            row.calls += 1
            row.flops, row.bytes = _plus(row.flops, span.flops), _plus(row.bytes, span.bytes)


def _plus(total: float | None, more: float | None) -> float | None:
    return total if more is None else (total or 0.0) + more


def _charge_device(
    spans: Sequence[Span],
    parents: Sequence[int | None],
    pieces: Sequence[Piece],
    rows: dict[str, OperatorSums],
) -> None:
    """Assign device time to the operator that launched it, or to the device's name for it."""
    launchers = {span.id: index for index, span in enumerate(spans) if span.id is not None}
    seen_spans: set[int] = set()
    for piece, share in wall_shares(pieces):
        span = spans[piece.span]
        launcher = launchers.get(span.cause) if span.cause is not None else None
        owner = span.name if launcher is None else spans[launcher].name
        row = rows[owner]
        row.device_self_s += share
        if launcher is None and piece.span not in seen_spans:
            row.calls += 1
        if launcher is not None:
            row.kernels[span.name] = row.kernels.get(span.name, 0.0) + share
        if piece.span not in seen_spans:
            row.flops, row.bytes = _plus(row.flops, span.flops), _plus(row.bytes, span.bytes)
        seen_spans.add(piece.span)
        enclosing_names = (
            () if launcher is None else (spans[outer].name for outer in enclosing_spans(launcher, parents))
        )
        for name in {owner, *enclosing_names} - {""}:
            rows[name].device_total_s += piece.end_s - piece.start_s


def _charge_memory(
    spans: Sequence[Span],
    pieces: Sequence[Piece],
    allocations: Iterable[Allocation],
    window: TraceWindow,
    rows: dict[str, OperatorSums],
) -> None:
    """Assign allocations to the operator that the thread was in."""
    lanes: dict[str, list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda item: item.start_s):
        lanes[spans[piece.span].lane].append(piece)
    starts = {lane: [piece.start_s for piece in lane_pieces] for lane, lane_pieces in lanes.items()}
    for allocation in allocations:
        at = bisect_right(starts.get(allocation.lane, ()), allocation.at_s) - 1
        if allocation.bytes > 0 and _within(allocation, window) and at >= 0:
            piece = lanes[allocation.lane][at]
            if allocation.at_s <= piece.end_s:
                row = rows[spans[piece.span].name]
                row.allocated = (row.allocated or 0) + allocation.bytes


def operators_of(rows: Mapping[str, OperatorSums], *, on_device: bool) -> tuple[Operator, ...]:
    """Operators by self time on the device or the host, longest first."""
    operators = (_operator(name, row) for name, row in rows.items())
    return tuple(
        sorted(
            operators,
            key=lambda entry: (-(entry.device_self_s if on_device else entry.host_self_s), entry.name),
        )
    )


def _operator(name: str, row: OperatorSums) -> Operator:
    kernels = sorted(row.kernels, key=lambda kernel: (-row.kernels[kernel], kernel))
    return Operator(
        name=name,
        calls=row.calls,
        host_self_s=row.host_self_s,
        host_total_s=row.host_total_s,
        device_self_s=row.device_self_s,
        device_total_s=row.device_total_s,
        flops=row.flops,
        bytes=row.bytes,
        allocated_bytes=row.allocated,
        kernels=tuple(kernels[:MOST_KERNELS]),
    )


def is_range(name: str) -> bool:
    """True for a span that only contains others, such as a range of FSDP."""
    return bool(RANGES.match(name))


def is_communication(name: str) -> bool:
    """True for an operator that passes data between devices."""
    return bool(COMMUNICATING.search(name)) and not is_range(name)


def communication_in(spans: Sequence[Span], pieces: Iterable[Piece]) -> Communication | None:
    """Communication of a device or the host, or None without any; `pieces`: innermost spans."""
    communication: list[Interval] = []
    computation: list[Interval] = []
    for piece in pieces:
        name = spans[piece.span].name
        if is_communication(name):
            communication.append((piece.start_s, piece.end_s))
        elif not is_range(name):
            computation.append((piece.start_s, piece.end_s))
    if not communication:
        return None
    total_s = sum(end - start for start, end in _merged(communication))
    computing = _merged(computation)
    hidden_s = _common_s(_merged(communication), computing)
    return Communication(
        total_s=total_s,
        exposed_s=max(total_s - hidden_s, 0.0),
        computing_s=sum(end - start for start, end in computing),
    )


def _merged(stretches: Iterable[Interval]) -> list[Interval]:
    """Merge overlapping intervals, in order."""
    merged: list[Interval] = []
    for start, end in sorted(stretches):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > start:
            merged.append((start, end))
    return merged


def _common_s(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Seconds in both of two lists of merged intervals."""
    total, at = 0.0, 0
    for start, end in first:
        while at < len(second) and second[at][1] <= start:
            at += 1
        index = at
        while index < len(second) and second[index][0] < end:
            total += min(end, second[index][1]) - max(start, second[index][0])
            index += 1
    return total
