"""A step for other tools to measure: `python tests/steps.py WORKLOAD pyperf|blocked|adaptive [options]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchbench.workloads.base import Workload
from benchbench.workloads.convnet_train import ConvnetTrain
from benchbench.workloads.gemm import Gemm
from tests.rivals import torch_timer

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "gemm": lambda: Gemm(512, 512, 512),
    "convnet_train": ConvnetTrain,
}


def step_of(name: str) -> Callable[[], Any]:
    """As a run's worker builds it, with torch on the CPU in float32, eager."""
    from benchbench.backends.torch import Torch
    from benchbench.machine.environment import usable_threads
    from benchbench.model import Dtype
    from benchbench.worker.runner import build

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


if __name__ == "__main__":
    wanted, tool = sys.argv[1:3]
    if tool == "pyperf":
        pyperf(wanted)
    else:
        print(timed(wanted, tool))
