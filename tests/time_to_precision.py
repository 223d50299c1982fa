"""How long until a tool is right? `python -m tests.time_to_precision [TRIALS] [LONGEST_S]` prints figures.

Not a test: it times. gemm 512³ and convnet_train with torch on the CPU; every tool measures the same step
of the same process, asked for longer and longer, in shuffled order. The truth is the median of single steps
timed between all trials. A tool is right where its value is within 1 % of that; what counts is the wall time,
warm-up and calibration included, of the quickest setting that is right in 90 % of trials.
"""

import json
import os
import random
import statistics
import sys
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from time import perf_counter
from typing import Any

from benchbench.backends.torch import Torch
from benchbench.machine.environment import usable_threads
from benchbench.measure import POLICIES
from benchbench.model import Dtype
from benchbench.worker.runner import build
from benchbench.workloads.base import Workload
from benchbench.workloads.convnet_train import ConvnetTrain
from benchbench.workloads.gemm import Gemm
from tests.rivals import TOOLS, accelbench_by

Step = Callable[[], Any]
SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WITHIN, SHARE = 0.01, 0.9
REFERENCE_S = 0.2  # of single steps after each trial
WORKLOADS: tuple[Workload, ...] = (Gemm(512, 512, 512), ConvnetTrain())


def step_of(workload: Workload) -> Step:
    backend = Torch()
    backend.load()
    session = backend.open("cpu", Dtype.FLOAT32, "eager", usable_threads())
    return build(backend, session, workload, Dtype.FLOAT32).step


def timed(step: Step, seconds: float) -> list[float]:
    """At least one."""
    found: list[float] = []
    end = perf_counter() + seconds
    while not found or perf_counter() < end:
        start = perf_counter()
        step()
        found.append(perf_counter() - start)
    return found


def settings(longest_s: float) -> list[tuple[str, str, Callable[[Step], float]]]:
    """Tool, setting, and what measures a step by it."""
    asked = list(takewhile(lambda seconds: seconds <= longest_s, SECONDS))
    found: list[tuple[str, str, Callable[[Step], float]]] = [
        (name, f"{seconds:g} s", partial(tool, seconds=seconds))
        for name, tool in TOOLS.items()
        for seconds in asked
    ]
    return found + [
        ("accelbench", name, partial(accelbench_by, POLICIES[name])) for name in ("quick", "default")
    ]


def trials(
    step: Step, count: int, longest_s: float
) -> tuple[float, dict[tuple[str, str], list[Any]], list[float]]:
    """The truth, (wall, value) of every trial by setting, and the medians of the reference's slices."""
    source, single = random.Random(2), [timed(step, 2.0)]
    found: dict[tuple[str, str], list[Any]] = {}
    for _ in range(count):
        order = settings(longest_s)
        source.shuffle(order)
        for tool, setting, measure in order:
            start = perf_counter()
            value = measure(step)
            found.setdefault((tool, setting), []).append((perf_counter() - start, value))
            single.append(timed(step, REFERENCE_S))
    truth = statistics.median(value for part in single for value in part)
    return truth, found, [statistics.median(part) for part in single]


def table(workload: Workload, count: int, longest_s: float) -> None:
    truth, found, slices = trials(step_of(workload), count, longest_s)
    tenths = statistics.quantiles(slices, n=10)
    head = {
        "workload": type(workload).__name__,
        "truth_s": truth,
        "load": os.getloadavg()[0],
        "trials": count,
    }
    print(json.dumps(head | {"reference_q10_q90": [tenths[0] / truth, tenths[-1] / truth]}), flush=True)
    for tool in dict.fromkeys(name for name, _ in found):
        rows = [
            (statistics.median(wall for wall, _ in each), right(each, truth), setting)
            for (name, setting), each in found.items()
            if name == tool
        ]
        rows.sort()
        first = next((wall for wall, share, _ in rows if share >= SHARE), None)
        shown = {setting: {"wall_s": round(wall, 2), "right": share} for wall, share, setting in rows}
        print(json.dumps({"tool": tool, "time_to_precision_s": first, "settings": shown}), flush=True)


def right(made: list[Any], truth: float) -> float:
    near = [bool(abs(value / truth - 1) <= WITHIN) for _, value in made]
    return sum(near) / len(near)


if __name__ == "__main__":
    wanted = sys.argv[1:] + ["20", "10"][len(sys.argv) - 1 :]
    for each in WORKLOADS:
        table(each, int(wanted[0]), float(wanted[1]))
