"""Two checkouts of accelbench, measured in turn: what became of the times of the same cases.

`python -m tests.studies.checkouts BEFORE AFTER PAIRS [options of run]`: of each pair, a run of one process
a case by either checkout, the first one in every other pair the second. Prints the ratio after / before of
each case, of the latency and of the CPU time that timed steps took, which a machine shared with others tells
better: geometric means over the pairs, with their 95 % intervals by Student's t.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchbench.model.measurement import Measurement
from benchbench.stats import median as middle
from benchbench.store import runs, selectors
from tests.studies.alternating import ratio

Times = dict[str, list[tuple[float, float]]]  # by case: seconds of a step and of CPU time, of each pair


def measured(checkout: Path, options: list[str], results: Path) -> dict[str, tuple[float, float]]:
    """Case → seconds of a step and of its CPU time, in one process each, by the code of the checkout."""
    command = [sys.executable, "-m", "benchbench.cli", "run", *options]
    command += ["--rounds", "1", "--results", str(results)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run(command, env=environment, cwd=checkout, check=False, stdout=subprocess.DEVNULL)
    run = runs.read_run(selectors.find_run(results, "latest"))
    return {
        record.case.id: _step(record.outcome)
        for record in run.records
        if isinstance(record.outcome, Measurement)
    }


def _step(found: Measurement) -> tuple[float, float]:
    assert found.window
    steps = found.iterations * len(found.block_s)
    return middle(found.block_s) / found.iterations, found.window.cpu_s / steps


def paired(before: Path, after: Path, pairs: int, options: list[str]) -> Iterator[tuple[Times, Times]]:
    """The times of all pairs so far, of the cases that both measured."""
    times: tuple[Times, Times] = defaultdict(list), defaultdict(list)
    for number in range(pairs):
        sides = [0, 1] if number % 2 == 0 else [1, 0]
        with TemporaryDirectory() as folder:
            found = {
                side: measured((before, after)[side], options, Path(folder) / str(side)) for side in sides
            }
        for case in found[0].keys() & found[1].keys():
            for side in (0, 1):
                times[side][case].append(found[side][case])
        yield times


def main() -> None:
    """Print a row for each case, once there are two pairs, and again after each further one."""
    before, after, pairs, *options = sys.argv[1:]
    for was, now in paired(Path(before).resolve(), Path(after).resolve(), int(pairs), options):
        if min(map(len, was.values())) > 1:
            show(was, now)


def show(was: Times, now: Times) -> None:
    print("| case | pairs | before | after | after / before | CPU time, after / before |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for case in sorted(was):
        one, other = (median(latency for latency, _ in side[case]) for side in (was, now))
        shown = [_shown([at[of] for at in now[case]], [at[of] for at in was[case]]) for of in (0, 1)]
        times = f"{1e3 * one:.3g} ms | {1e3 * other:.3g} ms"
        print(f"| {case} | {len(was[case])} | {times} | {' | '.join(shown)} |", flush=True)


def _shown(now: list[float], was: list[float]) -> str:
    by, half = ratio(now, was)
    return f"{by:.3f} [{by * math.exp(-half):.3f}, {by * math.exp(half):.3f}]"


if __name__ == "__main__":
    main()
