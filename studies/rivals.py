"""Other tools that measure a callable, each driven in this process and asked for the median step in seconds.

pyperf and pytest-benchmark headline a mean and a minimum; their medians are kinder to them. `clock` is what
they measure by: their own, or one that a script moves.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Protocol

from benchbench.backends.base import HostTimer
from benchbench.model.run import Policy
from benchbench.stats import median
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import Stopwatch, measure_steps

Step = Callable[[], Any]
Clock = Callable[[], float]


class Tool(Protocol):
    """Measures a step, sampling for about as many seconds."""

    def __call__(self, step: Step, seconds: float) -> float:
        """Seconds of a step."""


def accelbench_by(policy: Policy, step: Step, timer: Stopwatch | None = None) -> float:
    """The pipeline, on a step that is done when it returns."""
    found = measure_steps(step, timer or HostTimer(lambda output: None), policy)
    return median(found.block_s) / found.iterations


def accelbench(step: Step, seconds: float) -> float:
    warmup = min(0.5, seconds)
    return accelbench_by(
        replace(POLICIES["default"], min_s=seconds, max_s=seconds, max_blocks=10**6, warmup_min_s=warmup),
        step,
    )


def pytest_benchmark(step: Step, seconds: float, clock: Clock = perf_counter) -> float:
    """Its fixture with the options' defaults but --benchmark-max-time."""
    from pytest_benchmark.fixture import BenchmarkFixture

    found: list[Any] = []
    silent = SimpleNamespace(debug=lambda *a, **k: None, info=lambda *a, **k: None)
    fixture = BenchmarkFixture(
        node=SimpleNamespace(name="step", nodeid="step"),
        disable_gc=False,
        timer=SimpleNamespace(target=clock),
        min_rounds=5,
        min_time=5e-6,
        max_time=seconds,
        precision=None,
        confidence=None,
        warmup=False,
        warmup_iterations=100_000,
        calibration_precision=10,
        add_stats=found.append,
        logger=silent,
        warner=None,
        disabled=False,
        cprofile=None,
        cprofile_loops=None,
        cprofile_dump=None,
    )
    fixture(step)
    value: float = found[0].stats.median
    return value


def pyperf(step: Step, seconds: float) -> float:
    """One of its worker processes, in this one."""
    return pyperf_values(step, seconds, pyperf_loops(step))


def pyperf_loops(step: Step, clock: Clock = perf_counter) -> int:
    """Calibrated to 0.1 s, in a worker of its own."""
    found: int = _pyperf(step, clock, "--calibrate-loops", "-w", "1", "-n", "3").get_metadata()[
        "calibrate_loops"
    ]
    return found


def pyperf_values(step: Step, seconds: float, loops: int, clock: Clock = perf_counter) -> float:
    """A warm-up, then values."""
    values = max(1, round(seconds / 0.1))
    value: float = _pyperf(step, clock, "-l", str(loops), "-w", "1", "-n", str(values)).median()
    return value


def _pyperf(step: Step, clock: Clock, *arguments: str) -> Any:
    from pyperf import Runner

    def timed(loops: int) -> float:
        """As its `bench_func` does."""
        counted = range(loops)
        start = clock()
        for _ in counted:
            step()
        return clock() - start

    Runner._created.clear()  # it allows one a process, against mistakes that are not made here
    runner = Runner()
    runner.parse_args(["--worker", *arguments])
    with redirect_stdout(io.StringIO()):
        return runner.bench_time_func("step", timed)


def torch_blocked(step: Step, seconds: float, clock: Clock | None = None) -> float:
    return float(torch_timer(step, clock).blocked_autorange(min_run_time=seconds).median)


def torch_adaptive(step: Step, seconds: float, clock: Clock | None = None) -> float:
    """At most so long; it stops sooner where the spread is small."""
    return float(torch_timer(step, clock).adaptive_autorange(max_run_time=seconds).median)


def torch_timer(step: Step, clock: Clock | None = None) -> Any:
    """With all threads: by default it sets one. By its own clock, which waits for accelerators."""
    from torch import get_num_threads
    from torch.utils.benchmark import Timer, timer

    return Timer("step()", timer=clock or timer, globals={"step": step}, num_threads=get_num_threads())


TOOLS: dict[str, Tool] = {
    "accelbench": accelbench,
    "pyperf": pyperf,
    "pytest-benchmark": pytest_benchmark,
    "torch blocked_autorange": torch_blocked,
    "torch adaptive_autorange": torch_adaptive,
}
