"""Do Ray's own processes change what is measured on a machine, and by how much?

    python -m studies.fleet_daemons [pairs] [options of run]

The same run with Ray's daemons and without them, in pairs whose order alternates; then the same without
them in both places, which says how large a difference chance makes here. A ratio is with / without; its 95 %
interval is over pairs. By default 6 pairs of products and a training step on torch. `ray stop` also ends a
Ray that ran on this machine before.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchbench.analyse.rows import rows
from benchbench.stats import paired
from benchbench.store import runs, selectors

CASES = (
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
)
BIN = Path(sys.executable).parent
Seconds = dict[str, float]  # case → its latency


@contextmanager
def daemons() -> Iterator[None]:
    """A Ray of one machine, idle."""
    ray = str(BIN / "ray")
    subprocess.run([ray, "start", "--head", "--port=0"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run([ray, "stop"], check=False, stdout=subprocess.DEVNULL)


@contextmanager
def nothing() -> Iterator[None]:
    """The machine as it is."""
    yield


def latencies(options: Sequence[str]) -> Seconds:
    """Of a run made now."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchbench.cli", "run", *options, "--results", name]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        found = rows(runs.read_run(selectors.find_run(Path(name), "latest")))
    values = {row.case.id: row.metric("latency_s").value for row in found if row.ok}
    return {case: value for case, value in values.items() if value is not None}


def pairs(options: Sequence[str], count: int, beside: Callable[[], object]) -> list[tuple[Seconds, Seconds]]:
    """(without, beside) of so many pairs, every other one measured the other way about."""
    found = []
    for number in range(count):
        sides = [nothing, beside] if number % 2 == 0 else [beside, nothing]
        measured = []
        for side in sides:
            with side():  # type: ignore[attr-defined]
                measured.append(latencies(options))
        found.append((measured[0], measured[1]) if number % 2 == 0 else (measured[1], measured[0]))
    return found


def table(measured: Sequence[tuple[Seconds, Seconds]]) -> list[str]:
    """A line for each case that both sides of every pair have."""
    cases = set.intersection(*({*before} & {*after} for before, after in measured))
    lines = []
    for case in sorted(cases):
        found = paired([(math.log(before[case]), math.log(after[case])) for before, after in measured])
        ratio, low, high = (math.exp(found.mid + side * found.half_width()) for side in (0, -1, 1))
        lines.append(f"{ratio:.4f}  {low:.4f} to {high:.4f}  {case}")
    return lines


def main() -> None:
    """Both tables."""
    given = sys.argv[1:]
    count = int(given.pop(0)) if given and given[0].isdigit() else 6
    options = given or CASES
    for title, beside in (("with Ray's daemons", daemons), ("chance: without them, twice", nothing)):
        print(f"{title}, {count} pairs", *table(pairs(options, count, beside)), sep="\n")


if __name__ == "__main__":
    main()
