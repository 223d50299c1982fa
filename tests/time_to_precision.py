"""How long until a tool is right? `python -m tests.time_to_precision [TURNS]` prints figures.

Not a test: it times. gemm 512³ and convnet_train with torch on the CPU, measured as users measure it: by the
tools' own programs at their own settings, in fresh processes with one environment, in shuffled order, many
turns. What differs from process to process no longer measurement tells, so what a tool can vary is how many
processes it takes: accelbench (`--quick --rounds`) and pyperf (`-p`) start them themselves, at a fixed cost
and a cost for each; the others measure in the process they are called in and know nothing of more, so their
command is repeated by hand.

The truth is the median over all processes, each tool's counting the same; or, since a shared machine drifts,
of those of the same turn. A trial draws k processes of one tool, and tells the median of their medians. What
counts is the wall time of the fewest processes with which 90 % of the trials are within 1 % (2, 5 %). Trials
draw at random: what lasts longer than a turn, they hold for chance.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

from benchbench import store
from benchbench.launch import Workshop
from benchbench.machine.environment import usable_threads
from benchbench.model import Measurement, Settings, Target
from tests.steps import WORKLOADS

ROOT = Path(__file__).parents[1]
MANY = 6  # processes of one run of a tool that starts them, beside runs of one
WITHIN, SHARE = (0.01, 0.02, 0.05), 0.9
TRIALS = 2000
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PARAMETERS = {"gemm": ["-p", "m=512", "-p", "n=512", "-p", "k=512"], "convnet_train": []}


class Made(NamedTuple):
    """One command: its wall time, and the median step of each of its processes, in seconds."""

    tool: str
    turn: int
    wall_s: float
    values: tuple[float, ...]


class Cost(NamedTuple):
    """Wall seconds: of a command, and of each process it starts."""

    fixed_s: float
    each_s: float


def accelbench(workload: str, processes: int, folder: Path) -> list[float]:
    results = folder / "results"
    arguments = ["-w", workload, *PARAMETERS[workload], "-b", "torch", "-d", "cpu", "--quick"]
    command = ["run", *arguments, "--rounds", str(processes), "--results", str(results)]
    called([sys.executable, "-m", "benchbench.cli", *command], dict(os.environ))
    outcomes = [record.outcome for record in store.read(store.find(results, "latest")).records]
    return [median(each.block_s) / each.iterations for each in outcomes if isinstance(each, Measurement)]


def pyperf(workload: str, processes: int, folder: Path) -> list[float]:
    out = folder / "pyperf.json"
    script = [str(ROOT / "tests/steps.py"), workload, "pyperf"]
    called([sys.executable, *script, "-p", str(processes), "--copy-env", "-o", str(out)], place())
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    out.unlink()
    return [median(run["values"]) for run in benchmark["runs"] if "values" in run]


def pytest_benchmark(workload: str, processes: int, folder: Path) -> list[float]:
    out, test = folder / "pytest.json", folder / "test_step.py"
    test.write_text(f"""
from tests.steps import step_of

def test_step(benchmark):
    benchmark(step_of("{workload}"))
""")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null", "--rootdir", str(folder)]
    called([sys.executable, "-m", "pytest", *options, str(test), "--benchmark-json", str(out)], place())
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    return [benchmark["stats"]["median"]]


def torch_timer(kind: str) -> Tool:
    def run(workload: str, processes: int, folder: Path) -> list[float]:
        done = called([sys.executable, str(ROOT / "tests/steps.py"), workload, kind], place())
        return [float(done)]

    return run


Tool = Callable[[str, int, Path], list[float]]
STARTING: dict[str, Tool] = {"accelbench": accelbench, "pyperf": pyperf}
REPEATED: dict[str, Tool] = {
    "pytest-benchmark": pytest_benchmark,
    "torch blocked_autorange": torch_timer("blocked"),
    "torch adaptive_autorange": torch_timer("adaptive"),
}


def place() -> dict[str, str]:
    """The environment that accelbench gives its workers: the same threads and allocator."""
    workshop = Workshop()
    target = Target(name="torch", backend="torch", python=sys.executable)
    found = workshop.environment(target, Settings(threads=usable_threads()))
    workshop.close()
    return {**found, "PYTHONPATH": str(ROOT)}


def called(command: Sequence[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def measured(workload: str, turns: int) -> list[Made]:
    """Every command of every turn, printed as it is made."""
    source, found = random.Random(2), []
    with tempfile.TemporaryDirectory() as name:
        for turn in range(turns):
            order = [(tool, run, count) for tool, run in STARTING.items() for count in (1, MANY)]
            order += [(tool, run, 1) for tool, run in REPEATED.items() for _ in range(MANY // 2)]
            source.shuffle(order)
            for tool, run, count in order:
                start = perf_counter()
                values = run(workload, count, Path(name))
                made = Made(tool, turn, perf_counter() - start, tuple(values))
                print(json.dumps({"workload": workload, **made._asdict()}), flush=True)
                found.append(made)
    return found


def by_tool(made: Iterable[Made]) -> dict[str, list[float]]:
    """Of each tool all processes' values."""
    found: dict[str, list[float]] = {}
    for each in made:
        found.setdefault(each.tool, []).extend(each.values)
    return found


def truth(made: Iterable[Made]) -> float:
    return median(median(values) for values in by_tool(made).values())


def in_turn(made: Sequence[Made]) -> list[Made]:
    """The same, each value over the truth of its turn."""
    turns = {turn: truth(each for each in made if each.turn == turn) for turn in {each.turn for each in made}}
    return [each._replace(values=tuple(value / turns[each.turn] for value in each.values)) for each in made]


def cost(made: Iterable[Made]) -> Cost:
    """Medians of one tool's commands; without a fixed part where none started several."""
    walls: dict[int, list[float]] = {}
    for each in made:
        walls.setdefault(len(each.values), []).append(each.wall_s)
    one = median(walls[1])
    if MANY not in walls:
        return Cost(0.0, one)
    each_s = (median(walls[MANY]) - one) / (MANY - 1)
    return Cost(one - each_s, each_s)


def share_within(limit: float, values: Sequence[float], true: float, count: int) -> float:
    """Of trials of `count` processes each."""
    source = random.Random(3)
    trials = (median(source.choices(values, k=count)) for _ in range(TRIALS))
    return sum(abs(each / true - 1) <= limit for each in trials) / TRIALS


def first(limit: float, values: Sequence[float], true: float) -> int | None:
    """The fewest processes that are enough."""
    return next((count for count in COUNTS if share_within(limit, values, true, count) >= SHARE), None)


def table(made: Sequence[Made]) -> None:
    for against, each in {"long run": made, "its turn": in_turn(made)}.items():
        true = truth(each)
        for tool, values in by_tool(each).items():
            price = cost(one for one in each if one.tool == tool)
            tenths = quantiles((value / true for value in values), n=10)
            line: dict[str, Any] = {"against": against, "tool": tool, "processes": len(values)}
            line |= {"q10_q50_q90": [round(tenths[place], 4) for place in (0, 4, 8)]}
            line |= {name: round(value, 2) for name, value in price._asdict().items()}
            line |= {"by_hand": tool in REPEATED}
            for limit in WITHIN:
                count = first(limit, values, true)
                wall = None if count is None else round(price.fixed_s + count * price.each_s, 1)
                alone = round(share_within(limit, values, true, 1), 2)
                line[f"{limit:.0%}"] = {"share_of_one": alone, "processes": count, "wall_s": wall}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    for workload in WORKLOADS:
        table(measured(workload, int((sys.argv[1:] or ["15"])[0])))
