"""Two checkouts of accelbench, measured in turn: what became of the times of the same cases.

`python -m tests.studies.checkouts BEFORE AFTER PAIRS [options of run]`: of each pair, a run of one process
a case by either checkout, the first one in every other pair the second. Prints the ratio after / before of
each case: the geometric mean over the pairs, with its 95 % interval by Student's t.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchbench.model.measurement import Measurement
from benchbench.stats import median as middle
from benchbench.store import runs, selectors
from tests.studies.alternating import ratio

Times = dict[str, list[float]]  # by case: seconds of a step, one of each pair


def measured(checkout: Path, options: list[str], results: Path) -> dict[str, float]:
    """Case → seconds of a step, in one process each, by the code of the checkout."""
    command = [sys.executable, "-m", "benchbench.cli", "run", *options]
    command += ["--rounds", "1", "--results", str(results)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run(command, env=environment, cwd=checkout, check=False, stdout=subprocess.DEVNULL)
    run = runs.read_run(selectors.find_run(results, "latest"))
    return {
        record.case.id: middle(record.outcome.block_s) / record.outcome.iterations
        for record in run.records
        if isinstance(record.outcome, Measurement)
    }


def paired(before: Path, after: Path, pairs: int, options: list[str]) -> tuple[Times, Times]:
    """The times of all pairs, of the cases that both measured."""
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
    return times


def main() -> None:
    """Print a row for each case."""
    before, after, pairs, *options = sys.argv[1:]
    was, now = paired(Path(before).resolve(), Path(after).resolve(), int(pairs), options)
    print(f"| case, {pairs} pairs | before | after | after / before |\n| --- | ---: | ---: | ---: |")
    for case in sorted(was):
        by, half = ratio(now[case], was[case])
        low, high = by * math.exp(-half), by * math.exp(half)
        times = f"{1e3 * median(was[case]):.3g} ms | {1e3 * median(now[case]):.3g} ms"
        print(f"| {case} | {times} | {by:.3f} [{low:.3f}, {high:.3f}] |")


if __name__ == "__main__":
    main()
