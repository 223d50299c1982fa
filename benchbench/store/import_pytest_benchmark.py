"""Results of other tools → a run. Pure but for reading the files it is given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchbench import __version__
from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import os_name, same_hardware
from benchbench.model.case import Case
from benchbench.model.device import Device, DeviceClass, Machine, Probe, Target
from benchbench.model.measurement import CALL, Failure, Measurement, Memory
from benchbench.model.note import NoteKind, note
from benchbench.model.options import Allocator, Isolation
from benchbench.model.record import Record
from benchbench.model.run import Policy, Run, RunInfo, Settings
from benchbench.model.status import Status
from benchbench.reading import LARGEST, parse_json, read_file, unix_time
from benchbench.stats import median
from benchbench.store.naming import COMMIT, HASH, commit_name, new_id
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import precise

TOOL = "pytest-benchmark"
HOW_TO = "Make one with: pytest --benchmark-json=FILE"
NO_MEMORY = Memory(bytes=None, reason=f"{TOOL} does not measure memory")
MOST_BYTES = 128 * 2**20  # of a file: it takes eight times as much memory
MOST_CASES, LONGEST_NAME = 10_000, 2000  # in a file; of a test's name, in characters
MOST_SAMPLES = 300_000  # of a benchmark: more would not fit into a line of records.jsonl
ULPS = 4


class Stats(msgspec.Struct):
    """The statistics of one benchmark; `data`: seconds of an iteration, a value for each round."""

    data: list[float] = []
    iterations: int = 1


class Benchmark(msgspec.Struct):
    """A test of pytest-benchmark, with its samples."""

    fullname: str
    stats: Stats
    options: dict[str, Any] = {}


class BenchmarkFile(msgspec.Struct):
    """What `pytest --benchmark-json` writes: one process that ran every benchmark."""

    machine_info: dict[str, Any]
    benchmarks: list[Benchmark]
    datetime: str
    version: str
    commit_info: dict[str, Any] = {}


def pytest_benchmark(paths: Sequence[Path], tags: Mapping[str, str] | None = None) -> Run:
    """A case per benchmark, a round per file: each file is one process.

    Filed under the commit that the files name, if they agree, unless `tags` name another. Raises
    UnreadableInput for what is no such file or holds no samples, UsageError for files of several machines.
    """
    sessions = [_session(path) for path in paths]
    machines = [_machine(session.machine_info) for session in sessions]
    for path, machine in zip(paths, machines, strict=True):
        if not same_hardware(machine, machines[0]):
            raise UsageError(
                f"{path} and {paths[0]} were made on different machines.",
                "Import each, then compare the runs.",
            )
    records = [
        _record(benchmark, session, number, machines[0], order)
        for number, session in enumerate(sessions)
        for order, benchmark in enumerate(session.benchmarks)
    ]
    info = _info(paths, sessions, machines[0], {record.case.id: record.case for record in records})
    info = replace(info, tags={**_commit_tag(sessions), **(tags or {})})
    return Run(info=info, records=tuple(records))


def _session(path: Path) -> BenchmarkFile:
    text = read_file(path, MOST_BYTES, HOW_TO)
    try:
        found = msgspec.convert(parse_json(text), BenchmarkFile)
        unix_time(found.datetime)
    except (ValueError, OverflowError, UnreadableInput) as error:  # msgspec's errors are ValueErrors
        raise UnreadableInput(f"{path} is no JSON of {TOOL}: {str(error)[:200]}", HOW_TO) from error
    if len(found.benchmarks) > MOST_CASES:
        raise UnreadableInput(
            f"{path} holds {len(found.benchmarks)} benchmarks; at most {MOST_CASES} are read."
        )
    for benchmark in found.benchmarks:
        _check(benchmark, path)
    return found


def _check(benchmark: Benchmark, path: Path) -> None:
    stats = benchmark.stats
    if len(benchmark.fullname) > LONGEST_NAME:
        text = f"{path}: the name {benchmark.fullname[:50]}… has {len(benchmark.fullname)} characters"
        raise UnreadableInput(text, f"At most {LONGEST_NAME} are read.")
    if not stats.data:
        hint = f"{HOW_TO}, or add --benchmark-save-data to --benchmark-save"
        raise UnreadableInput(f"{path} holds no samples of {benchmark.fullname}.", hint)
    if stats.iterations < 1 or not all(0 <= value <= LARGEST for value in stats.data):
        raise UnreadableInput(f"{path}: {benchmark.fullname} has a sample that is no duration.", HOW_TO)
    if len(stats.data) > MOST_SAMPLES:
        hint = "Measure for a shorter time: pytest --benchmark-max-time=0.5"
        count = len(stats.data)
        raise UnreadableInput(f"{path}: {benchmark.fullname} has {count} samples, too many.", hint)


def _commit_tag(sessions: Sequence[BenchmarkFile]) -> dict[str, str]:
    found = {_commit(session.commit_info) for session in sessions}
    return {COMMIT: found.pop()} if len(found) == 1 and found != {""} else {}


def _commit(info: Mapping[str, Any]) -> str:
    """The commit's hash, as our runs write it; empty for `unversioned`, `unknown` and what is no hash."""
    name = info.get("id")
    if not (isinstance(name, str) and HASH.fullmatch(name)):
        return ""
    return commit_name(name, dirty=bool(info.get("dirty")))


def _machine(info: dict[str, Any]) -> Machine:
    """Neither cores nor memory are in the file."""
    cpu = info.get("cpu") if isinstance(info.get("cpu"), dict) else {}
    assert isinstance(cpu, dict)
    count = cpu.get("count")
    return Machine(
        cpu=str(cpu.get("brand_raw") or cpu.get("brand") or info.get("processor") or "not known"),
        cores=0,
        threads=count if isinstance(count, int) else 0,
        memory_bytes=0,
        architecture=str(info.get("machine", "")),
        os=os_name(str(info.get("system", "")), str(info.get("release", ""))),
        python=str(info.get("python_version", "")),
    )


def _record(
    benchmark: Benchmark, session: BenchmarkFile, number: int, machine: Machine, order: int
) -> Record:
    return Record(
        case=Case(
            suite=TOOL,
            workload=benchmark.fullname,
            params={},
            dtype=None,
            mode="",
            phase=None,
            target=TOOL,
            backend=TOOL,
            device="cpu",
        ),
        round=number,
        order=order,
        started=unix_time(session.datetime),
        outcome=_outcome(benchmark),
        framework_version=session.version,
        device_model=machine.cpu,
        isolation=Isolation.SHARED,
    )


def _outcome(benchmark: Benchmark) -> Measurement | Failure:
    stats, policy = benchmark.stats, POLICIES["default"]
    if median(stats.data) == 0:
        return Failure(status=Status.FAILED, message="half of its samples are 0: too short for its clock")
    enough = precise(stats.data[: policy.max_blocks], policy.precision)
    return Measurement(
        cost=CALL,
        iterations=stats.iterations,
        warmup_block_s=(),
        block_s=tuple(_block(value, stats.iterations) for value in stats.data),
        steady=True,
        stop_reason="precision" if enough else "time",
        cold_s=None,
        compile_cache="warm",
        timer=str(benchmark.options.get("timer", "not known")),
        timer_cost_s=None,
        peak_device=NO_MEMORY,
        peak_host=NO_MEMORY,
        relative_error=None,
        precision={},
        notes=(note(NoteKind.WARM_UP_UNKNOWN, tool=TOOL),),
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


def _info(
    paths: Sequence[Path], sessions: Sequence[BenchmarkFile], machine: Machine, plan: dict[str, Case]
) -> RunInfo:
    newest = sessions[-1]
    target = Target(name=TOOL, backend=TOOL, python=f"python {machine.python}")
    device = Device(name="cpu", device_class=DeviceClass.CPU, model=machine.cpu)
    return RunInfo(
        id=new_id(),
        started=min((session.datetime for session in sessions), key=unix_time),
        command=("import", *(path.name for path in paths)),
        version=__version__,
        machine=machine,
        settings=Settings(threads=machine.threads, allocator=Allocator.SYSTEM, isolation=Isolation.SHARED),
        policy=Policy(name=TOOL, rounds=len(sessions)),
        seed=0,
        probes=(Probe(target=target, version=newest.version, devices=(device,)),),
        plan=tuple(plan.values()),
        left_out=(),
    )
