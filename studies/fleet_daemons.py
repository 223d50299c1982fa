"""Effect of Ray's own idle processes on latencies measured on the same machine.

    python -m studies.fleet_daemons [PAIRS] [options of run] > studies/output/fleet_daemons.txt

Measures the same cases with Ray's daemons and without them, in pairs whose order alternates. Then measures
both sides without daemons, which shows how large a difference chance makes. Prints the ratio of latencies,
with daemons / without, and its 95 % interval over PAIRS (6). By default, the cases are products and a
training step on torch. At the end, `ray stop` also ends any other Ray on this machine.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchbench.analyse.rows import rows
from benchbench.stats import paired
from benchbench.store import runs, selectors

CASES = [
    "-b",
    "torch",
    "-d",
    "cpu",
    "-w",
    "gemm,convnet_train",
    "--mode",
    "eager",
    "--quick",
    "--rounds",
    "3",
]
BIN = Path(sys.executable).parent
Seconds = dict[str, float]  # case → its latency
State = Callable[[], AbstractContextManager[None]]


@contextmanager
def daemons() -> Iterator[None]:
    """Run an idle Ray of one machine."""
    ray = str(BIN / "ray")
    subprocess.run([ray, "start", "--head", "--port=0"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run([ray, "stop"], check=False, stdout=subprocess.DEVNULL)


@contextmanager
def no_daemons() -> Iterator[None]:
    """Start nothing."""
    yield


def latencies(options: Sequence[str]) -> Seconds:
    """Run the cases once and return their latencies."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchbench.cli", "run", *options, "--results", name]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        case_rows = rows(runs.read_run(selectors.find_run(Path(name), "latest")))
    values = {row.case.id: row.metric("latency_s").value for row in case_rows if row.ok}
    return {case: value for case, value in values.items() if value is not None}


def measure_pairs(options: Sequence[str], count: int, state: State) -> list[tuple[Seconds, Seconds]]:
    """Return latencies without daemons and in the state, for each pair. The order alternates."""
    pairs = []
    for number in range(count):
        latencies_of: dict[int, Seconds] = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            with (no_daemons, state)[side]():
                latencies_of[side] = latencies(options)
        pairs.append((latencies_of[0], latencies_of[1]))
    return pairs


def table(pairs: Sequence[tuple[Seconds, Seconds]]) -> list[str]:
    """Return a line for each case that both sides of every pair have."""
    cases = set.intersection(*({*before} & {*after} for before, after in pairs))
    lines = []
    for case in sorted(cases):
        difference = paired([(math.log(before[case]), math.log(after[case])) for before, after in pairs])
        ratio, low, high = (math.exp(difference.mid + side * difference.half_width()) for side in (0, -1, 1))
        lines.append(f"{ratio:.4f}  {low:.4f} to {high:.4f}  {case}")
    return lines


def main() -> None:
    """Print both tables."""
    arguments = sys.argv[1:]
    count = int(arguments.pop(0)) if arguments and arguments[0].isdigit() else 6
    options = arguments or CASES
    for title, state in (("with Ray's daemons", daemons), ("chance: without them, twice", no_daemons)):
        print(f"{title}, {count} pairs", *table(measure_pairs(options, count, state)), sep="\n")


if __name__ == "__main__":
    main()
