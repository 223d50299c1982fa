"""What time_to_precision replays: every step of many processes, and what the tools' own programs cost.

A program tells the median step of each of its processes, in seconds.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchbench.launch.local import RunScratch
from benchbench.machine.environment import usable_threads
from benchbench.model.device import Target
from benchbench.model.measurement import Measurement
from benchbench.model.run import Settings
from benchbench.store import runs, selectors
from studies.steps import WORKLOADS

ROOT = Path(__file__).parents[1]
TRACE_S = 20.0
COMMANDS_EVERY = 10  # turns
MANY = 6  # processes of one run of a tool that starts them, beside runs of one
PARAMETERS = {"gemm": ["-p", "m=512", "-p", "n=512", "-p", "k=512"], "convnet_train": []}

Program = Callable[[str, int, Path], list[float]]


def accelbench(workload: str, processes: int, folder: Path) -> list[float]:
    results = folder / "results"
    arguments = ["-w", workload, *PARAMETERS[workload], "-b", "torch", "-d", "cpu", "--quick"]
    command = ["run", *arguments, "--rounds", str(processes), "--results", str(results)]
    called([sys.executable, "-m", "benchbench.cli", *command], dict(os.environ))
    outcomes = [record.outcome for record in runs.read_run(selectors.find_run(results, "latest")).records]
    return [median(each.block_s) / each.iterations for each in outcomes if isinstance(each, Measurement)]


def pyperf(workload: str, processes: int, folder: Path) -> list[float]:
    out = folder / "pyperf.json"
    script = [str(ROOT / "studies/steps.py"), workload, "pyperf"]
    called([sys.executable, *script, "-p", str(processes), "--copy-env", "-o", str(out)], place())
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    out.unlink()
    return [median(run["values"]) for run in benchmark["runs"] if "values" in run]


def pytest_benchmark(workload: str, processes: int, folder: Path) -> list[float]:
    out, test = folder / "pytest.json", folder / "test_step.py"
    test.write_text(f"""
from studies.steps import step_of

def test_step(benchmark):
    benchmark(step_of("{workload}"))
""")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null", "--rootdir", str(folder)]
    called([sys.executable, "-m", "pytest", *options, str(test), "--benchmark-json", str(out)], place())
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    return [benchmark["stats"]["median"]]


def torch_timer(kind: str) -> Program:
    def run(workload: str, processes: int, folder: Path) -> list[float]:
        return [float(step_program(workload, kind))]

    return run


STARTING: dict[str, Program] = {"accelbench": accelbench, "pyperf": pyperf}
REPEATED: dict[str, Program] = {
    "pytest-benchmark": pytest_benchmark,
    "torch blocked_autorange": torch_timer("blocked"),
    "torch adaptive_autorange": torch_timer("adaptive"),
}


def step_program(*arguments: str) -> str:
    return called([sys.executable, str(ROOT / "studies/steps.py"), *arguments], place())


def place() -> dict[str, str]:
    """The environment that accelbench gives its workers: the same threads and allocator."""
    scratch = RunScratch()
    target = Target(name="torch", backend="torch", python=sys.executable)
    found = scratch.environment(target, Settings(threads=usable_threads()))
    scratch.close()
    return {**found, "PYTHONPATH": str(ROOT)}


def called(command: Sequence[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


class Made(NamedTuple):
    """One command: what it cost, and what it told of each of its processes."""

    workload: str
    tool: str
    wall_s: float
    values: tuple[float, ...]


def record(folder: Path, turns: int) -> None:
    """As many turns, in shuffled order, beside what the folder has."""
    folder.mkdir(parents=True, exist_ok=True)
    source, first = random.Random(2), len(list(folder.glob("gemm.*.f64")))
    with tempfile.TemporaryDirectory() as name, (folder / "commands.jsonl").open("a") as log:
        for turn in range(first, first + turns):
            jobs: list[tuple[str, str, Program | None, int]] = [("", each, None, 1) for each in WORKLOADS]
            if turn % COMMANDS_EVERY == 0:
                jobs += [(tool, each, run, count) for each in WORKLOADS for tool, run, count in programs()]
            source.shuffle(jobs)
            for tool, workload, run, count in jobs:
                if run is None:
                    step_program(workload, "trace", str(TRACE_S), str(folder / f"{workload}.{turn:03}.f64"))
                    continue
                start = perf_counter()
                values = run(workload, count, Path(name))
                made = Made(workload, tool, perf_counter() - start, tuple(values))
                print(json.dumps(made._asdict()), file=log, flush=True)


def programs() -> Iterator[tuple[str, Program, int]]:
    """Tool, its program, and of how many processes."""
    for tool, run in STARTING.items():
        yield from ((tool, run, 1), (tool, run, MANY))
    for tool, run in REPEATED.items():
        yield tool, run, 1


def recorded(folder: Path, workload: str) -> tuple[list[NDArray[np.float64]], list[Made]]:
    """Of each process the seconds of its steps; and the commands."""
    lines = [json.loads(line) for line in (folder / "commands.jsonl").read_text().splitlines()]
    made = [Made(**line) for line in lines if line["workload"] == workload]
    return [np.fromfile(path) for path in sorted(folder.glob(f"{workload}.*.f64"))], made
