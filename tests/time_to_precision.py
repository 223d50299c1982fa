"""How long until a tool is right? `python -m tests.time_to_precision [TRIALS] [LONGEST_S]` prints figures.

Not a test: it times. gemm 512³ and convnet_train with torch on the CPU; every tool measures the same step
of the same process, asked for longer and longer, in shuffled order. The truth is the median of single steps
timed between all trials or, since a shared machine drifts, of those just before and after the trial. What
counts is the wall time, warm-up and calibration included, of the quickest setting that is within 1 % (2, 5 %)
of it in 90 % of trials.
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
from typing import Any, NamedTuple

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
WITHIN, SHARE = (0.01, 0.02, 0.05), 0.9
REFERENCE_S = 0.2  # of single steps after each trial
Trials = dict[tuple[str, str], list["Trial"]]  # by tool and setting
WORKLOADS: tuple[Workload, ...] = (Gemm(512, 512, 512), ConvnetTrain())


class Trial(NamedTuple):
    """What a tool took and told, and the number of the reference's slice made after it."""

    wall_s: float
    value: float
    number: int


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


def trials(step: Step, count: int, longest_s: float) -> tuple[Trials, list[list[float]]]:
    """By setting its trials, and the reference's slices of single steps: one before each, one at the end."""
    source, slices = random.Random(2), [timed(step, 2.0)]
    found: Trials = {}
    for _ in range(count):
        order = settings(longest_s)
        source.shuffle(order)
        for tool, setting, measure in order:
            start = perf_counter()
            value = measure(step)
            made = Trial(perf_counter() - start, value, len(slices))
            found.setdefault((tool, setting), []).append(made)
            slices.append(timed(step, REFERENCE_S))
    return found, slices


def table(workload: Workload, count: int, longest_s: float) -> None:
    found, slices = trials(step_of(workload), count, longest_s)
    truth = statistics.median(value for part in slices for value in part)
    tenths = statistics.quantiles([statistics.median(part) for part in slices], n=10)
    head = {
        "workload": type(workload).__name__,
        "truth_s": truth,
        "load": os.getloadavg()[0],
        "trials": count,
    }
    print(json.dumps(head | {"reference_q10_q90": [tenths[0] / truth, tenths[-1] / truth]}), flush=True)

    def near(made: Trial) -> float:
        return statistics.median(slices[made.number - 1] + slices[made.number])

    truths: dict[str, Callable[[Trial], float]] = {"long run": lambda _: truth, "slices around it": near}
    for tool in dict.fromkeys(name for name, _ in found):
        made = {setting: each for (name, setting), each in found.items() if name == tool}
        for against, true in truths.items():
            print(json.dumps({"tool": tool, "against": against, **precision(made, true)}), flush=True)


def precision(made: dict[str, list[Trial]], true: Callable[[Trial], float]) -> dict[str, Any]:
    """The first wall time with enough trials within each limit; of each setting wall time and shares."""
    rows = {
        setting: [round(statistics.median(each.wall_s for each in trials), 2)]
        + [round(share_within(limit, trials, true), 2) for limit in WITHIN]
        for setting, trials in made.items()
    }
    first = {
        f"{limit:.0%}": min((row[0] for row in rows.values() if row[place] >= SHARE), default=None)
        for place, limit in enumerate(WITHIN, start=1)
    }
    return {"time_to_precision_s": first, "wall_s_and_shares": rows}


def share_within(limit: float, made: list[Trial], true: Callable[[Trial], float]) -> float:
    near = [abs(each.value / true(each) - 1) <= limit for each in made]
    return sum(near) / len(near)


if __name__ == "__main__":
    wanted = sys.argv[1:] + ["20", "10"][len(sys.argv) - 1 :]
    for each in WORKLOADS:
        table(each, int(wanted[0]), float(wanted[1]))
