"""What the files of other tools hold, the same for each tool: processes with samples; and these as a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench import __version__
from benchbench.model.case import Case
from benchbench.model.device import Device, DeviceClass, Machine, Probe, Target
from benchbench.model.measurement import CALL, Failure, Measurement, Memory
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.options import Allocator, Isolation
from benchbench.model.record import Record
from benchbench.model.run import Policy, Run, RunInfo, Settings
from benchbench.model.status import Status
from benchbench.reading import unix_time
from benchbench.stats import median
from benchbench.store.naming import COMMIT, new_id
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import precise

ULPS = 4


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What one process measured of one thing; `steps_s`: seconds of an iteration, in the order measured.

    `failure`: why there are none.
    """

    name: str
    steps_s: tuple[float, ...]
    iterations: int  # in each sample
    timer: str = "not known"
    failure: str = ""
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process that another tool started; `started`: in ISO 8601. `commit`: empty if not known."""

    tool: str
    version: str
    started: str
    machine: Machine
    benchmarks: tuple[Benchmark, ...]
    commit: str = ""


def run_of(processes: Sequence[Process], files: Sequence[str]) -> Run:
    """A case per benchmark, a round per process; filed under the commit that all of them name."""
    newest, machine = processes[-1], processes[0].machine
    records = tuple(
        _record(benchmark, process, number, machine, order)
        for number, process in enumerate(processes)
        for order, benchmark in enumerate(process.benchmarks)
    )
    commits = {process.commit for process in processes}
    device = Device(name="cpu", device_class=DeviceClass.CPU, model=machine.cpu)
    target = Target(
        name=newest.tool, backend=newest.tool, python=f"python {machine.python}" if machine.python else ""
    )
    info = RunInfo(
        id=new_id(),
        started=min((process.started for process in processes), key=unix_time),
        command=("import", *files),
        version=__version__,
        machine=machine,
        settings=Settings(threads=machine.threads, allocator=Allocator.SYSTEM, isolation=Isolation.SHARED),
        policy=Policy(name=newest.tool, rounds=len(processes)),
        seed=0,
        probes=(Probe(target=target, version=newest.version, devices=(device,)),),
        plan=tuple({record.case.id: record.case for record in records}.values()),
        left_out=(),
        tags={COMMIT: commits.pop()} if len(commits) == 1 and commits != {""} else {},
    )
    return Run(info=info, records=records)


def _record(benchmark: Benchmark, process: Process, number: int, machine: Machine, order: int) -> Record:
    return Record(
        case=Case.of_call(process.tool, benchmark.name, process.tool, "cpu"),
        round=number,
        order=order,
        started=unix_time(process.started),
        outcome=_outcome(benchmark, process.tool),
        framework_version=process.version,
        device_model=machine.cpu,
        isolation=Isolation.SHARED,
    )


def _outcome(benchmark: Benchmark, tool: str) -> Measurement | Failure:
    policy, steps = POLICIES["default"], benchmark.steps_s
    if benchmark.failure:
        return Failure(status=Status.FAILED, message=benchmark.failure)
    if median(steps) == 0:
        return Failure(status=Status.FAILED, message="half of its samples are 0: too short for its clock")
    no_memory = Memory(bytes=None, reason=f"{tool} does not measure memory")
    return Measurement(
        cost=CALL,
        iterations=benchmark.iterations,
        warmup_block_s=(),
        block_s=tuple(_block(step, benchmark.iterations) for step in steps),
        steady=True,
        stop_reason="precision" if precise(steps[: policy.max_blocks], policy.precision) else "time",
        cold_s=None,
        compile_cache="warm",
        timer=benchmark.timer,
        timer_cost_s=None,
        peak_device=no_memory,
        peak_host=no_memory,
        relative_error=None,
        precision={},
        notes=(note(NoteKind.WARM_UP_UNKNOWN, tool=tool), *benchmark.notes),
    )


def _block(step: float, iterations: int) -> float:
    """Seconds of a block that, divided by its iterations, are exactly `step` again.

    `step` was made by such a division, so there is one near the product.
    """
    near = step * iterations
    if near / iterations == step:
        return near
    for direction in (0.0, math.inf):
        value = near
        for _ in range(ULPS):
            value = math.nextafter(value, direction)
            if value / iterations == step:
                return value
    return near
