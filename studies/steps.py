"""A step for others to measure.

`python studies/steps.py WORKLOAD pyperf|blocked|adaptive|trace [options]`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from benchbench.workloads.base import Workload
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.operations.gemm import Gemm
from studies.rivals import torch_timer

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "gemm": lambda: Gemm(512, 512, 512),
    "convnet_train": ConvnetTrain,
}


def step_of(name: str) -> Callable[[], Any]:
    """As a run's worker builds it, with torch on the CPU in float32, eager."""
    from benchbench.backends.torch import Torch
    from benchbench.machine.environment import usable_threads
    from benchbench.model.case import Dtype
    from benchbench.worker.program import build

    backend = Torch()
    backend.load()
    session = backend.open("cpu", Dtype.FLOAT32, "eager", usable_threads())
    return build(backend, session, WORKLOADS[name](), Dtype.FLOAT32).step


def pyperf(name: str) -> None:
    """Only its workers need the step."""
    from pyperf import Runner

    script = [__file__, name, "pyperf"]
    del sys.argv[1:3]
    runner = Runner(program_args=script)
    runner.parse_args()
    runner.bench_func(name, step_of(name) if runner.args.worker else lambda: None)


def timed(name: str, kind: str) -> float:
    """By torch's own timer, at its own settings."""
    timer = torch_timer(step_of(name))
    return float((timer.blocked_autorange() if kind == "blocked" else timer.adaptive_autorange()).median)


def trace(name: str, seconds: float, out: Path) -> None:
    """Every step of a process from its first, one after the other; `out` has their seconds as doubles."""
    step, found = step_of(name), array("d")
    before = perf_counter()
    end = before + seconds
    while before < end:
        step()
        after = perf_counter()
        found.append(after - before)
        before = after
    out.write_bytes(found.tobytes())


if __name__ == "__main__":
    wanted, tool = sys.argv[1:3]
    if tool == "pyperf":
        pyperf(wanted)
    elif tool == "trace":
        trace(wanted, float(sys.argv[3]), Path(sys.argv[4]))
    else:
        print(timed(wanted, tool))
