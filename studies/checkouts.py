"""Two checkouts of accelbench in turn: what the same run takes of the user's time, and its cases' times.

`python -m studies.checkouts BEFORE AFTER PAIRS [options of run]`: of each pair, a run by either
checkout, the first one in every other pair the second. Prints two tables once there are two pairs, and again
after each further one. The first is of the runs: seconds of wall and of processor time, the share of the wall
time in which blocks were made, and the spread between the processes of a case (the standard deviation of the
logarithms of their medians; its median over cases). The second is of each case: the ratio after / before of
its latency, and of the CPU time of its timed steps, which a machine shared with others tells better. Ratios
are geometric means over the pairs, with 95 % intervals by Student's t.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from time import perf_counter

from benchbench.model.measurement import Measurement
from benchbench.stats import median
from benchbench.store import runs, selectors
from studies.alternating import ratio

Processes = dict[str, list[Measurement]]  # by case


@dataclass(frozen=True, slots=True)
class Run:
    """What a run took in seconds, and what the processes of its cases measured."""

    wall_s: float
    cpu_s: float
    processes: Processes

    @property
    def in_blocks(self) -> float:
        """The share of the wall time in which blocks were made, those that warm up included."""
        made = [measurement for processes in self.processes.values() for measurement in processes]
        return sum(sum(one.warmup_block_s) + sum(one.block_s) for one in made) / self.wall_s

    @property
    def spread(self) -> float:
        """Between the processes of a case: the median over cases, in 1; NaN if all have one."""
        several = [processes for processes in self.processes.values() if len(processes) > 1]
        spreads = [stdev(math.log(latency(one)) for one in processes) for processes in several]
        return median(spreads) if spreads else math.nan


def latency(measurement: Measurement) -> float:
    """Seconds of a step."""
    return median(measurement.block_s) / measurement.iterations


def step_cpu(measurement: Measurement) -> float:
    """Seconds of CPU time of a timed step."""
    assert measurement.window
    return measurement.window.cpu_s / (measurement.iterations * len(measurement.block_s))


def run_of(checkout: Path, options: Sequence[str], results: Path) -> Run:
    """A run by the checkout's code."""
    command = [sys.executable, "-m", "benchbench.cli", "run", *options, "--results", str(results)]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    begin, used = perf_counter(), _children_cpu_s()
    subprocess.run(command, env=environment, cwd=checkout, check=False, stdout=subprocess.DEVNULL)
    wall_s, cpu_s = perf_counter() - begin, _children_cpu_s() - used
    processes: Processes = defaultdict(list)
    for record in runs.read_run(selectors.find_run(results, "latest")).records:
        if isinstance(record.outcome, Measurement):
            processes[record.case.id].append(record.outcome)
    return Run(wall_s, cpu_s, dict(processes))


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def paired(checkouts: Sequence[Path], pairs: int, options: Sequence[str]) -> Iterator[list[tuple[Run, Run]]]:
    """The runs before and after, of all pairs so far."""
    done: list[tuple[Run, Run]] = []
    for number in range(pairs):
        with TemporaryDirectory() as folder:
            order = (0, 1) if number % 2 == 0 else (1, 0)
            pair = {side: run_of(checkouts[side], options, Path(folder) / str(side)) for side in order}
        done.append((pair[0], pair[1]))
        yield done


def main() -> None:
    """Print both tables, once there are two pairs, and again after each further one."""
    before, after, pairs, *options = sys.argv[1:]
    for done in paired([Path(before).resolve(), Path(after).resolve()], int(pairs), options):
        if len(done) > 1:
            print("\n".join([*run_lines(done), "", *case_lines(done)]), flush=True)


def run_lines(pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    """A Markdown table of what the runs took."""
    before, after = zip(*pairs, strict=True)
    yield f"| {len(pairs)} pairs | wall | processor | in blocks | spread |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, runs_of in (("before", before), ("after", after)):
        wall, cpu = mean(one.wall_s for one in runs_of), mean(one.cpu_s for one in runs_of)
        in_blocks, spread = mean(one.in_blocks for one in runs_of), mean(one.spread for one in runs_of)
        yield f"| {name} | {wall:.1f} s | {cpu:.1f} s | {in_blocks:.0%} | {spread:.1%} |"
    shown = [
        _shown([getattr(run, name) for run in after], [getattr(run, name) for run in before])
        for name in ("wall_s", "cpu_s", "in_blocks", "spread")
    ]
    yield f"| after / before | {' | '.join(shown)} |"


def case_lines(pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    """A Markdown table of the cases that every run measured."""
    yield "| case | before | after | after / before | CPU time, after / before |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    shared = set.intersection(*(set(run.processes) for pair in pairs for run in pair))
    for case in sorted(shared):
        was, now = ([_step_s(pair[side].processes[case]) for pair in pairs] for side in (0, 1))
        shown = [_shown([at[of] for at in now], [at[of] for at in was]) for of in (0, 1)]
        times = [f"{1e3 * median([at[0] for at in side]):.3g} ms" for side in (was, now)]
        yield f"| {case} | {' | '.join([*times, *shown])} |"


def _step_s(processes: Sequence[Measurement]) -> tuple[float, float]:
    return median([latency(one) for one in processes]), median([step_cpu(one) for one in processes])


def _shown(now: list[float], was: list[float]) -> str:
    if not all(value > 0 for value in [*now, *was]):
        return "–"  # no spread: one process a case
    by, half = ratio(now, was)
    return f"{by:.3f} [{by * math.exp(-half):.3f}, {by * math.exp(half):.3f}]"


if __name__ == "__main__":
    main()
