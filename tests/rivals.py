"""Other tools that measure a callable, each driven in this process and asked for the median step in seconds.

pyperf and pytest-benchmark headline a mean and a minimum; their medians are kinder to them.
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
from benchbench.measure import POLICIES, measure
from benchbench.model import Policy
from benchbench.stats import median

Step = Callable[[], Any]


class Tool(Protocol):
    """Measures a step, sampling for about as many seconds."""

    def __call__(self, step: Step, seconds: float) -> float:
        """Seconds of a step."""


def accelbench_by(policy: Policy, step: Step) -> float:
    """The pipeline, on a step that is done when it returns."""
    found = measure(step, HostTimer(lambda output: None), policy)
    return median(found.block_s) / found.iterations


def accelbench(step: Step, seconds: float) -> float:
    warmup = min(0.5, seconds)
    return accelbench_by(
        replace(POLICIES["default"], min_s=seconds, max_s=seconds, max_blocks=10**6, warmup_min_s=warmup),
        step,
    )


def pytest_benchmark(step: Step, seconds: float) -> float:
    """Its fixture with the options' defaults but --benchmark-max-time."""
    from pytest_benchmark.fixture import BenchmarkFixture

    found: list[Any] = []
    silent = SimpleNamespace(debug=lambda *a, **k: None, info=lambda *a, **k: None)
    fixture = BenchmarkFixture(
        node=SimpleNamespace(name="step", nodeid="step"),
        disable_gc=False,
        timer=SimpleNamespace(target=perf_counter),
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
    """One of its worker processes, in this one: loops calibrated to 0.1 s, a warm-up, then values."""
    loops = _pyperf(step, "--calibrate-loops", "-w", "1", "-n", "3").get_metadata()["calibrate_loops"]
    values = max(1, round(seconds / 0.1))
    value: float = _pyperf(step, "-l", str(loops), "-w", "1", "-n", str(values)).median()
    return value


def _pyperf(step: Step, *arguments: str) -> Any:
    from pyperf import Runner

    Runner._created.clear()  # it allows one a process, against mistakes that are not made here
    runner = Runner()
    runner.parse_args(["--worker", *arguments])
    with redirect_stdout(io.StringIO()):
        return runner.bench_func("step", step)


def torch_blocked(step: Step, seconds: float) -> float:
    return float(torch_timer(step).blocked_autorange(min_run_time=seconds).median)


def torch_adaptive(step: Step, seconds: float) -> float:
    """At most so long; it stops sooner where the spread is small."""
    return float(torch_timer(step).adaptive_autorange(max_run_time=seconds).median)


def torch_timer(step: Step) -> Any:
    """With all threads: by default it sets one."""
    from torch import get_num_threads
    from torch.utils.benchmark import Timer

    return Timer("step()", globals={"step": step}, num_threads=get_num_threads())


TOOLS: dict[str, Tool] = {
    "accelbench": accelbench,
    "pyperf": pyperf,
    "pytest-benchmark": pytest_benchmark,
    "torch blocked_autorange": torch_blocked,
    "torch adaptive_autorange": torch_adaptive,
}
