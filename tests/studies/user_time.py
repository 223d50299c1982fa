"""Two checkouts of accelbench in turn: what the same run takes of the user's time.

`python -m tests.studies.user_time BEFORE AFTER PAIRS [options of run]`: of each pair, a run by either
checkout, the first one in every other pair the second. Prints seconds of wall and processor time, the share
of the wall time in which blocks were made, and the spread between the processes of a case: the standard
deviation of the logarithms of their medians, its median over cases. Then the ratios after / before, with
their 95 % intervals.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median, stdev
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.stats import mean
from benchbench.store import runs, selectors
from tests.studies.alternating import ratio


class Taken(NamedTuple):
    """By one run: seconds, the share of the wall time that blocks took, and the spread between processes."""

    wall_s: float
    cpu_s: float
    blocks: float
    spread: float


def processor_s() -> float:
    """Of the processes that this one has waited for, and of those below them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def taken(checkout: Path, options: list[str], results: Path) -> Taken:
    """By a run of the checkout's code."""
    command = [sys.executable, "-m", "benchbench.cli", "run", *options, "--results", str(results)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    begin, used = perf_counter(), processor_s()
    subprocess.run(command, env=environment, cwd=checkout, check=False, stdout=subprocess.DEVNULL)
    wall_s, cpu_s = perf_counter() - begin, processor_s() - used
    records = runs.read_run(selectors.find_run(results, "latest")).records
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    blocks_s = sum(sum(each.warmup_block_s) + sum(each.block_s) for each in measured)
    return Taken(wall_s, cpu_s, blocks_s / wall_s, spread(records))


def spread(records: tuple[Record, ...]) -> float:
    """The median over cases, in 1."""
    medians: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record.outcome, Measurement):
            step_s = median(record.outcome.block_s) / record.outcome.iterations
            medians.setdefault(record.case.id, []).append(math.log(step_s))
    return median(stdev(each) for each in medians.values() if len(each) > 1)


def in_turn(checkouts: tuple[Path, Path], pairs: int, options: list[str]) -> tuple[list[Taken], list[Taken]]:
    """What the runs of all pairs took."""
    sides: tuple[list[Taken], list[Taken]] = [], []
    for number in range(pairs):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            with TemporaryDirectory() as folder:
                sides[side].append(taken(checkouts[side], options, Path(folder)))
    return sides


def main() -> None:
    """Print a row for each checkout, and the ratios."""
    before, after, pairs, *options = sys.argv[1:]
    checkouts = Path(before).resolve(), Path(after).resolve()
    was, now = in_turn(checkouts, int(pairs), options)
    print(f"| {pairs} pairs | wall | processor | in blocks | spread |\n| --- | ---: | ---: | ---: | ---: |")
    for name, runs_of in (("before", was), ("after", now)):
        wall, cpu, blocks, apart = (mean(column) for column in zip(*runs_of, strict=True))
        print(f"| {name} | {wall:.1f} s | {cpu:.1f} s | {blocks:.0%} | {apart:.1%} |")
    columns = zip(zip(*now, strict=True), zip(*was, strict=True), strict=True)
    ratios = [ratio(*both) for both in columns]
    print(f"| after / before | {' | '.join(f'{found:.2f} ± {half * found:.2f}' for found, half in ratios)} |")


if __name__ == "__main__":
    main()
