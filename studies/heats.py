"""Quality of measurements in heats on this machine.

    python -m studies.heats [HEATS [RUNS [WORK…]]] > studies/output/heats.md

Prints three tables:
1. The spread of the ratio of two engines, measured in heats and in sequential processes.
2. The latency of torch in heats, relative to a bare loop of the same step in a fresh process.
3. The number of winners if one backend is compared with itself under two names. All of them are wrong.

HEATS (12, at least 2) is the number of heats of each work, RUNS (10) the number of comparisons with itself.
WORK names works of the suite `quick`. Heats, sequential processes and loops alternate in shuffled order, with
the same threads and allocator. First make sure with `accelbench doctor` that no other programs run. For a
quick trial: `python -m studies.heats 2 0 gemm`.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, mean, median, stdev
from tempfile import TemporaryDirectory
from time import perf_counter

import benchbench
from benchbench.analyse.doubts import log_ratio, timed_process
from benchbench.judging.ranking import Standing, judge_records
from benchbench.launch.local import RunScratch
from benchbench.machine.environment import machine, usable_threads
from benchbench.machine.sampler import watch_neighbours
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.measurement import Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Settings
from benchbench.running.heat import Recorder, measure_heat
from benchbench.running.measure import Side, measuring
from benchbench.running.observer import RunObserver
from benchbench.running.request import request_on_targets
from benchbench.stats import t_quantile

ROOT = Path(__file__).parents[1]
WORKS = ("gemm", "conv2d", "attention", "resnet50_infer", "convnet_train")
REFERENCE = "torch"  # the engine of the bare loop, and of each ratio
TWINS = ("torch", "jax", "onnxruntime")
TWIN_WORKS = ("gemm", "conv2d", "attention")
HEATS, RUNS = 12, 10
LOOP_WARM_UP_S, LOOP_S = 1.0, 2.0

Processes = Mapping[str, Measurement]  # engine → the measurement of one process


@dataclass
class Samples:
    """Replicates of a work, measured in three ways."""

    heats: list[Processes] = field(default_factory=list)
    sequential: list[Processes] = field(default_factory=list)
    loops: list[float] = field(default_factory=list)  # seconds of a step

    @property
    def engines(self) -> list[str]:
        """The engines that never failed, beginning with the reference."""
        replicates = [*self.heats, *self.sequential]
        names = [name for name in replicates[0] if all(name in replicate for replicate in replicates)]
        return sorted(names, key=lambda name: (not name.startswith(f"{REFERENCE} "), name))

    @property
    def calm_share(self) -> float:
        """Share of the heats' cycles that other programs did not disturb."""
        turns = [turn for heat in self.heats for process in heat.values() for turn in process.turns]
        return mean([turn.is_calm for turn in turns])


def measure_work(work: str, heats: int) -> Samples:
    """Measure a work in each way, once for each heat."""
    options = MeasureOptions(suites=("quick",), workloads=(work,), devices=("cpu",), preset="quick")
    request, targets = request_on_targets(options)
    side = Side(targets=targets, settings=request.settings)
    samples, source = Samples(), random.Random(work)
    with measuring([side], None, None, RunObserver()) as measurer:
        info = measurer.plan(request)
        recorder = Recorder(measurer.pools[0], info, lambda _: None)
        recorder.prepare(info.plan)
        measurer.pools[0].wait_for_workers(info.plan)
        reference = next(case for case in info.plan if case.target == REFERENCE)
        for number in range(heats):
            for way in source.sample(("heat", "sequential", "loop"), 3):
                order = source.sample(info.plan, len(info.plan))
                if way == "heat":
                    samples.heats.append(_heat(recorder, order, number, info.seed))
                elif way == "sequential":
                    replicate: dict[str, Measurement] = {}
                    for case in order:
                        replicate |= _heat(recorder, [case], number, info.seed)
                    samples.sequential.append(replicate)
                else:
                    samples.loops.append(bare_loop(reference))
    return samples


def _heat(recorder: Recorder, cases: Sequence[Case], number: int, seed: int) -> Processes:
    """Measure one heat of the cases."""
    records = measure_heat([(recorder, case) for case in cases], number, seed, lambda *_: None)
    return {
        f"{record.case.target} {record.case.mode}": record.outcome
        for _, record in records
        if isinstance(record.outcome, Measurement)
    }


def bare_loop(case: Case) -> float:
    """Return the median seconds of the case's step in a bare loop, in a fresh process."""
    command = [sys.executable, "-m", "studies.heats", "loop", json.dumps(asdict(case))]
    output = subprocess.run(
        command, env=worker_environment(), check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return float(output)


def worker_environment() -> dict[str, str]:
    """Return the environment of accelbench's workers, with the same threads and allocator."""
    scratch = RunScratch()
    target = Target(name="torch", backend="torch", python=sys.executable)
    variables = scratch.environment(target, Settings(threads=usable_threads()))
    scratch.close()
    return {**variables, "PYTHONPATH": str(ROOT)}


def loop(case_json: str) -> float:
    """Return the median seconds of a step, timed by a bare clock in this process."""
    from benchbench.backends.torch import Torch
    from benchbench.machine.environment import usable_threads
    from benchbench.worker.program import build, case_of, workload_of

    fields = json.loads(case_json)
    case, backend = case_of(fields), Torch()
    backend.load()
    session = backend.open(case.device, case.computes_in, case.mode, usable_threads())
    with build(backend, session, workload_of(fields), case.computes_in) as runner:
        seconds: list[float] = []
        begin = before = perf_counter()
        while before < begin + LOOP_WARM_UP_S + LOOP_S or not seconds:
            runner.step()
            after = perf_counter()
            if after > begin + LOOP_WARM_UP_S:
                seconds.append(after - before)
            before = after
    return median(seconds)


def spreads(work: str, samples: Samples) -> Iterator[str]:
    """Yield a row for each engine other than the reference."""
    reference, *engines = samples.engines
    for engine in engines:
        # cycles of sequential processes cannot be paired, so their medians are compared
        sequential = [
            math.log(replicate[engine].median_step_s / replicate[reference].median_step_s)
            for replicate in samples.sequential
        ]
        heats = [
            log_ratio(timed_process(heat[reference]), timed_process(heat[engine])) for heat in samples.heats
        ]
        cells = [f"{math.exp(mean(logs)):.3f}× | {stdev(logs):.1%}" for logs in (sequential, heats)]
        yield f"| {work} | {engine} / {reference} | {' | '.join(cells)} | {samples.calm_share:.0%} |"


def beside_loop(work: str, samples: Samples) -> str:
    """Return a row with the reference's latency in heats and alone, relative to the bare loop."""
    reference = samples.engines[0]
    cells = []
    for replicates in (samples.heats, samples.sequential):
        pairs = zip(replicates, samples.loops, strict=True)
        logs = [math.log(replicate[reference].median_step_s / loop_s) for replicate, loop_s in pairs]
        half = t_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
        cells.append("{:.3f} [{:.3f}, {:.3f}]".format(*(math.exp(mean(logs) + d) for d in (0, -half, half))))
    return f"| {work} | {1e3 * geometric_mean(samples.loops):.3g} ms | {' | '.join(cells)} |"


def twins(backend: str, runs: int) -> Counter[Standing]:
    """Count the standings of works if one backend is measured under two names. Every winner is wrong."""
    standings: Counter[Standing] = Counter()
    twin = f"{backend}@twin"
    for _ in range(runs):
        with TemporaryDirectory() as folder:
            run = benchbench.run(
                "quick",
                workloads=TWIN_WORKS,
                backends=(backend, twin),
                pythons={twin: sys.executable},
                devices="cpu",
                preset="quick",
                results=Path(folder),
            )
        verdicts = judge_records(run.records, run.info.policy).values()
        standings.update(verdict.standing for verdict in verdicts)
    return standings


def load() -> str:
    """Return the current CPU use of other programs."""
    pause = watch_neighbours()
    cores = "an unknown share" if pause.cores is None else f"{pause.cores:.2f}"
    return f"other programs use {cores} of {pause.cpus} CPUs, load average {os.getloadavg()[0]:.1f}"


def main(heats: int, runs: int, works: Sequence[str]) -> None:
    """Print three tables."""
    here, command = machine(), f"python -m studies.heats {heats} {runs}"
    print(f"{here.cpu}, {here.threads} threads, {heats} heats a work, `{command}`\n")
    print(f"Before: {load()}.\n")
    samples = {work: measure_work(work, heats) for work in works}
    print("## Ratios: standard deviation of the logarithm, between heats and between sequential processes\n")
    print("| work | engines | sequential | spread | heats | spread | calm cycles |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for work, sample in samples.items():
        print("\n".join(spreads(work, sample)), flush=True)
    print(f"\n## {REFERENCE}'s latency over that of a bare loop, with 95 % intervals\n")
    print("| work | bare loop | heats | alone |")
    print("| --- | ---: | ---: | ---: |")
    for work, sample in samples.items():
        print(beside_loop(work, sample), flush=True)
    print(f"\n## One backend under two names: {', '.join(TWIN_WORKS)}\n")
    print("| backend | runs | works | a winner named, wrongly | within 5 % | open |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for backend in TWINS if runs else ():
        standings = twins(backend, runs)
        counts = [standings[standing] for standing in (Standing.WON, Standing.TIED, Standing.OPEN)]
        print(f"| {backend} | {runs} | {standings.total()} | {' | '.join(map(str, counts))} |", flush=True)
    print(f"\nAfter: {load()}.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["loop"]:
        print(loop(sys.argv[2]))
    else:
        heats, runs = [*map(int, sys.argv[1:3]), *(HEATS, RUNS)[len(sys.argv[1:3]) :]]
        main(heats, runs, sys.argv[3:] or WORKS)
