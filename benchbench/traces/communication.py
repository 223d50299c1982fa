"""What passes between devices in a trace: which operators do that, how long, and beside what. Pure.

Names are those of torch 2.13, JAX 0.10 and TensorFlow 2.21.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from benchbench.model.profile import Communication
from benchbench.traces.spans import Piece, Span

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
