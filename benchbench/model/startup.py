"""How long a framework takes until a case can be timed: for estimates of a run's time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Seconds, measured on two cores of a virtual machine; `docs/measuring.md` says how well they predict.

    The first call of a program takes `call_s`, and more for each layer that it applies and each byte of its
    weights.
    """

    import_s: float = 3.0  # of one core
    call_s: float = 0.1
    layer_s: float = 0.005
    weight_s: float = 0.0  # per byte
    kept: float = 1.0  # share of the first call in a process that finds its programs compiled
    unrolls: bool = False  # a recurrent layer: each of its steps is then compiled as a layer is
    block_s: float = 1e-3  # the shortest block, where its timer costs more than a clock's reading
    slowdown: float = 1.0  # of its steps, beside those of the others
    profile_s: float = 0.2  # of its profiler: to start it, to write the trace and to read it
    profile_event_s: float = 0.0  # more of each layer of each step
    profile_calls: int = 1  # first calls of a process that profiles
