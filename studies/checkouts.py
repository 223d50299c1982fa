"""Two checkouts of accelbench compared: the cost of the same run, and the times of its cases.

    python -m studies.checkouts BEFORE AFTER PAIRS [options of run] > studies/output/checkouts.md

Each pair is a run by either checkout; the order alternates. The program prints two tables once there are two
pairs, and again after each further pair. The first table is of the runs: seconds of wall time and of CPU
time, the share of the wall time spent in blocks, and the spread between the processes of a case (the standard
deviation of the logarithms of their medians; its median over cases). The second is of the cases: the ratio
after / before of latency, and of CPU time of the timed steps. Other programs disturb CPU time less. Ratios
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
    """Seconds that a run took, and the measurements of its cases' processes."""

    wall_s: float
    cpu_s: float
    processes: Processes

    @property
    def in_blocks(self) -> float:
        """Share of the wall time spent in blocks, including warm-up blocks."""
        measurements = [measurement for processes in self.processes.values() for measurement in processes]
        return (
            sum(sum(measurement.warmup_block_s) + sum(measurement.block_s) for measurement in measurements)
            / self.wall_s
        )

    @property
    def spread(self) -> float:
        """Spread between a case's processes, median over cases; NaN if every case has one process."""
        repeated = [processes for processes in self.processes.values() if len(processes) > 1]
        spreads = [stdev(math.log(latency(process)) for process in processes) for processes in repeated]
        return median(spreads) if spreads else math.nan


def latency(measurement: Measurement) -> float:
    """Seconds of a step."""
    return median(measurement.block_s) / measurement.iterations


def step_cpu(measurement: Measurement) -> float:
    """Seconds of CPU time of a timed step."""
    assert measurement.window
    return measurement.window.cpu_s / (measurement.iterations * len(measurement.block_s))


def run_of(checkout: Path, options: Sequence[str], results: Path) -> Run:
    """Run the checkout's code."""
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


def measure_pairs(
    checkouts: Sequence[Path], pairs: int, options: Sequence[str]
) -> Iterator[list[tuple[Run, Run]]]:
    """Measure pair after pair; after each, yield all pairs (before, after) so far."""
    completed: list[tuple[Run, Run]] = []
    for number in range(pairs):
        with TemporaryDirectory() as folder:
            order = (0, 1) if number % 2 == 0 else (1, 0)
            pair = {side: run_of(checkouts[side], options, Path(folder) / str(side)) for side in order}
        completed.append((pair[0], pair[1]))
        yield completed


def main() -> None:
    """Print both tables after each pair from the second on."""
    before, after, pairs, *options = sys.argv[1:]
    for completed in measure_pairs([Path(before).resolve(), Path(after).resolve()], int(pairs), options):
        if len(completed) > 1:
            print("\n".join([*run_lines(completed), "", *case_lines(completed)]), flush=True)


def run_lines(pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    """A Markdown table of the cost of the runs."""
    before, after = zip(*pairs, strict=True)
    yield f"| {len(pairs)} pairs | wall | processor | in blocks | spread |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, runs_of in (("before", before), ("after", after)):
        wall, cpu = mean(run.wall_s for run in runs_of), mean(run.cpu_s for run in runs_of)
        in_blocks, spread = mean(run.in_blocks for run in runs_of), mean(run.spread for run in runs_of)
        yield f"| {name} | {wall:.1f} s | {cpu:.1f} s | {in_blocks:.0%} | {spread:.1%} |"
    ratios = [
        _ratio_text([getattr(run, name) for run in after], [getattr(run, name) for run in before])
        for name in ("wall_s", "cpu_s", "in_blocks", "spread")
    ]
    yield f"| after / before | {' | '.join(ratios)} |"


def case_lines(pairs: Sequence[tuple[Run, Run]]) -> Iterator[str]:
    """A Markdown table of the cases that every run measured."""
    yield "| case | before | after | after / before | CPU time, after / before |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    shared = set.intersection(*(set(run.processes) for pair in pairs for run in pair))
    for case in sorted(shared):
        before, after = ([_step_s(pair[side].processes[case]) for pair in pairs] for side in (0, 1))
        ratios = [
            _ratio_text([values[index] for values in after], [values[index] for values in before])
            for index in (0, 1)
        ]
        times = [f"{1e3 * median([values[0] for values in side]):.3g} ms" for side in (before, after)]
        yield f"| {case} | {' | '.join([*times, *ratios])} |"


def _step_s(processes: Sequence[Measurement]) -> tuple[float, float]:
    return median([latency(process) for process in processes]), median(
        [step_cpu(process) for process in processes]
    )


def _ratio_text(after: list[float], before: list[float]) -> str:
    if not all(value > 0 for value in [*after, *before]):
        return "–"  # no spread: one process a case
    value, half = ratio(after, before)
    return f"{value:.3f} [{value * math.exp(-half):.3f}, {value * math.exp(half):.3f}]"


if __name__ == "__main__":
    main()
