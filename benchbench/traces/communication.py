"""What passes between devices in a trace: which operators do that, how long, and beside what. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from benchbench.model.profile import Communication
from benchbench.traces.spans import Piece, Span, TraceWindow

# torch: c10d's operators, the work of gloo and NCCL, NCCL's kernels. XLA: its instructions, named by opcode
# or by JAX's primitive. TensorFlow: its kernels. XLA's `broadcast` repeats numbers on one device.
PASSING = re.compile(
    r"nccl|gloo:|c10d|record_param_comms|all.?reduce|all.?gather|reduce.?scatter|all.?to.?all|collective"
    r"|psum|ppermute|cross.?replica",
    re.IGNORECASE,
)
AROUND = re.compile(r"FSDP::|DistributedDataParallel")  # ranges that hold computing, too

Stretch = tuple[float, float]


def is_communication(name: str) -> bool:
    """Whether the operator of this name passes something between devices."""
    return bool(PASSING.search(name)) and not AROUND.match(name)


def communication_in(
    spans: Sequence[Span], pieces: Sequence[Piece], window: TraceWindow
) -> Communication | None:
    """In `window`, of a device or of the host, whose `pieces` say when each span was the innermost one.

    None without a span that passes anything.
    """
    on_device = {spans[piece.span].on_device for piece in pieces}
    passing = _joined(
        (max(span.start_s, window.start_s), min(span.end_s, window.end_s))
        for span in spans
        if span.on_device in on_device and is_communication(span.name)
    )
    if not passing:
        return None
    others = _joined(
        (piece.start_s, piece.end_s) for piece in pieces if not is_communication(spans[piece.span].name)
    )
    total_s = sum(end - start for start, end in passing)
    return Communication(total_s=total_s, exposed_s=max(total_s - _common_s(passing, others), 0.0))


def _joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """In order, those that overlap as one."""
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
