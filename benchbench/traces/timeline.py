"""Spans of operators on threads and streams → what each took of the wall time, and what passed. Pure.

Self time is wall time: each instant is shared equally by the threads (or the streams) that were in an
operator then, each giving its share to the innermost one. So self times add up to the time in which any
operator was running, and with the gaps to the whole (docs/profiling.md).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchbench.model.profile import Communication, Gaps, Operator
from benchbench.traces.spans import Piece, Span, TraceWindow, enclosing, gaps_of, nested, shared

MOST_POINTS = 500  # of a memory timeline
MOST_KERNELS = 5  # named for each operator
# Names of torch 2.13, JAX 0.10, TensorFlow 2.21.
# torch: c10d's operators, the work of gloo and NCCL, NCCL's kernels. XLA: its instructions, named by opcode
# or by JAX's primitive. TensorFlow: its kernels. XLA's `broadcast` repeats numbers on one device.
PASSING = re.compile(
    r"nccl|gloo:|c10d|record_param_comms|all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|collective"
    r"|psum|ppermute|cross.?replica",
    re.IGNORECASE,
)
# Ranges, in which a rank computes and waits: the last two of torch's pipelines, a micro-batch each.
AROUND = re.compile(r"FSDP::|DistributedDataParallel|(Forward|Backward)$")
Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A moment at which a thread asked for memory or gave some back."""

    lane: str
    at_s: float
    bytes: int  # negative: given back
    in_use: int  # afterwards, of the allocator


@dataclass(frozen=True, slots=True)
class Summary:
    """Operators, the time any was running, the gaps, and what passed; of a device if anything ran on one."""

    operators: tuple[Operator, ...]
    on_device: bool
    busy_s: float
    gaps: Gaps
    communication: Communication | None


@dataclass(slots=True)
class _Row:
    """An operator while it is summed up."""

    calls: int = 0
    host_self_s: float = 0.0
    host_total_s: float = 0.0
    device_self_s: float = 0.0
    device_total_s: float = 0.0
    flops: float | None = None
    bytes: float | None = None
    allocated: int | None = None
    kernels: dict[str, float] = field(default_factory=dict)


def summarise(spans: Sequence[Span], window: TraceWindow, allocations: Sequence[Allocation] = ()) -> Summary:
    """What each operator took in `window`; spans that reach beyond it count as far as they are in it."""
    inside = [span for span in spans if span.end_s > window.start_s and span.start_s < window.end_s]
    rows: dict[str, _Row] = defaultdict(_Row)
    parents, pieces = nested(inside, window)
    host = [piece for piece in pieces if not inside[piece.span].on_device]
    device = [piece for piece in pieces if inside[piece.span].on_device]
    for piece, share in shared(host):
        rows[inside[piece.span].name].host_self_s += share
    _count(inside, parents, window, rows)
    _charge_device(inside, parents, device, rows)
    _charge_memory(inside, host, allocations, window, rows)
    gaps, busy = gaps_of(device or host, inside, window)
    found = [_operator(name, row) for name, row in rows.items()]
    found.sort(key=lambda each: (-(each.device_self_s if device else each.host_self_s), each.name))
    passed = communication_in(inside, device or host)
    return Summary(tuple(found), bool(device), busy, gaps, passed)


def memory(
    allocations: Sequence[Allocation], window: TraceWindow
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """(seconds since the window's start, bytes in use): all moments, or the peak of each of 500 stretches."""
    inside = sorted((each.at_s, each.in_use) for each in allocations if _within(each, window))
    width = max(1, -(-len(inside) // MOST_POINTS))
    stretches = [inside[start : start + width] for start in range(0, len(inside), width)]
    peaks = [max(stretch, key=lambda point: point[1]) for stretch in stretches]
    return tuple(at - window.start_s for at, _ in peaks), tuple(used for _, used in peaks)


def _within(allocation: Allocation, window: TraceWindow) -> bool:
    return window.start_s <= allocation.at_s <= window.end_s


def _count(
    spans: Sequence[Span], parents: Sequence[int | None], window: TraceWindow, rows: dict[str, _Row]
) -> None:
    """Calls that begin in the window, total times, and what the profiler counts."""
    for index, span in enumerate(spans):
        if not span.name or span.on_device:
            continue
        row = rows[span.name]
        if span.name not in {spans[outer].name for outer in enclosing(index, parents)}:
            row.host_total_s += min(span.end_s, window.end_s) - max(span.start_s, window.start_s)
        if span.start_s >= window.start_s and not span.helps:
            row.calls += 1
            row.flops, row.bytes = _plus(row.flops, span.flops), _plus(row.bytes, span.bytes)


def _plus(total: float | None, more: float | None) -> float | None:
    return total if more is None else (total or 0.0) + more


def _charge_device(
    spans: Sequence[Span], parents: Sequence[int | None], pieces: Sequence[Piece], rows: dict[str, _Row]
) -> None:
    """Device time goes to the operator that launched it, else to the device's own name for it."""
    launchers = {span.id: index for index, span in enumerate(spans) if span.id is not None}
    counted: set[int] = set()
    for piece, share in shared(pieces):
        span = spans[piece.span]
        launcher = launchers.get(span.cause) if span.cause is not None else None
        owner = span.name if launcher is None else spans[launcher].name
        row = rows[owner]
        row.device_self_s += share
        if launcher is None and piece.span not in counted:
            row.calls += 1
        if launcher is not None:
            row.kernels[span.name] = row.kernels.get(span.name, 0.0) + share
        if piece.span not in counted:
            row.flops, row.bytes = _plus(row.flops, span.flops), _plus(row.bytes, span.bytes)
        counted.add(piece.span)
        above = () if launcher is None else (spans[outer].name for outer in enclosing(launcher, parents))
        for name in {owner, *above} - {""}:
            rows[name].device_total_s += piece.end_s - piece.start_s


def _charge_memory(
    spans: Sequence[Span],
    pieces: Sequence[Piece],
    allocations: Iterable[Allocation],
    window: TraceWindow,
    rows: dict[str, _Row],
) -> None:
    """What was asked for goes to the operator in which its thread then was."""
    lanes: dict[str, list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda each: each.start_s):
        lanes[spans[piece.span].lane].append(piece)
    starts = {lane: [piece.start_s for piece in found] for lane, found in lanes.items()}
    for each in allocations:
        at = bisect_right(starts.get(each.lane, ()), each.at_s) - 1
        if each.bytes > 0 and _within(each, window) and at >= 0:
            piece = lanes[each.lane][at]
            if each.at_s <= piece.end_s:
                row = rows[spans[piece.span].name]
                row.allocated = (row.allocated or 0) + each.bytes


def _operator(name: str, row: _Row) -> Operator:
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
    """Whether the operator of this name is what others run in, and nothing by itself."""
    return bool(AROUND.match(name))


def is_communication(name: str) -> bool:
    """Whether the operator of this name passes something between devices."""
    return bool(PASSING.search(name)) and not is_range(name)


def communication_in(spans: Sequence[Span], pieces: Iterable[Piece]) -> Communication | None:
    """What a device or the host passed; `pieces` say when each span was the innermost of its lane.

    None without a span that passes anything.
    """
    passing: list[Stretch] = []
    others: list[Stretch] = []
    for piece in pieces:
        name = spans[piece.span].name
        if is_communication(name):
            passing.append((piece.start_s, piece.end_s))
        elif not is_range(name):
            others.append((piece.start_s, piece.end_s))
    if not passing:
        return None
    total_s = sum(end - start for start, end in _joined(passing))
    computing = _joined(others)
    hidden_s = _common_s(_joined(passing), computing)
    return Communication(
        total_s=total_s,
        exposed_s=max(total_s - hidden_s, 0.0),
        computing_s=sum(end - start for start, end in computing),
    )


def _joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Intervals in order, those that overlap as one."""
    joined: list[Stretch] = []
    for start, end in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        elif end > start:
            joined.append((start, end))
    return joined


def _common_s(ones: Sequence[Stretch], others: Sequence[Stretch]) -> float:
    """Seconds that are in both; either is as `_joined` makes it."""
    total, at = 0.0, 0
    for start, end in ones:
        while at < len(others) and others[at][1] <= start:
            at += 1
        within = at
        while within < len(others) and others[within][0] < end:
            total += min(end, others[within][1]) - max(start, others[within][0])
            within += 1
    return total
