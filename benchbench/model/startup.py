"""Start-up times of frameworks, for estimates of a run's duration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Seconds, measured on two cores of a virtual machine; docs/measuring.md has their accuracy.

    The first call of a program takes `call_s`, plus time for each of its layers and each byte of weights.
    """

    import_s: float = 3.0  # on one core
    call_s: float = 0.1
    layer_s: float = 0.005
    weight_s: float = 0.0  # per byte
    warm_fraction: float = 1.0  # of the first call if programs are already compiled
    unrolls: bool = False  # each step of a recurrent layer is compiled like a layer
    block_s: float = 1e-3  # shortest block, if the timer costs more than reading a clock
    slowdown: float = 1.0  # of its steps relative to other backends
    profile_s: float = 0.2  # of the profiler: starting, writing and reading the trace
    profile_event_s: float = 0.0  # additional time per layer and step
    profile_calls: int = 1  # first calls of a profiling process
