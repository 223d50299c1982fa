"""Import files of pytest-benchmark, pyperf and Google Benchmark.

A benchmark becomes a case, a process a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchbench import __version__
from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import os_name, same_hardware
from benchbench.model.case import Case, Status
from benchbench.model.device import Device, DeviceClass, Machine, Probe, Target
from benchbench.model.measurement import CALL, Failure, Measurement, Memory
from benchbench.model.note import NoteKind, note
from benchbench.model.options import Allocator, Isolation
from benchbench.model.run import Policy, Record, Run, RunInfo, Settings
from benchbench.reading import LARGEST, decompress, parse_json, read_file, unix_time
from benchbench.stats import median
from benchbench.store.disk import COMMIT, DIRTY, HASH, commit_name, new_id
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import is_precise

MAX_BYTES = 128 * 2**20  # size of a file; parsing takes eight times as much memory
MAX_BENCHMARKS, MAX_NAME_LENGTH = 10_000, 2000
MAX_SAMPLES = 300_000  # per benchmark; more would not fit into a line of records.jsonl
SECONDS_PER_UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
HOW_TO = "Make one with pytest --benchmark-json=FILE, pyperf timeit -o FILE … or --benchmark_out=FILE."
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of another tool, with its outcomes by benchmark name."""

    tool: str
    version: str
    started: str  # ISO 8601
    machine: Machine
    commit: str = ""  # a hash, if known
    outcomes: dict[str, Measurement | Failure] = field(default_factory=dict)


def import_files(paths: Sequence[Path], tags: Mapping[str, str] | None = None) -> Run:
    """Import several files of one tool and machine as one run.

    The run is tagged with the commit of the files if they agree and `tags` has none. Raises UnreadableInput
    for a file of another kind or without samples, UsageError for files of several tools or machines.
    """
    processes: list[Process] = []
    for path in paths:
        file_processes = _read_processes(path)
        first, new = (processes or file_processes)[0], file_processes[0]
        if new.tool != first.tool or not same_hardware(new.machine, first.machine):
            place = "on different machines" if new.tool == first.tool else "by different tools"
            hint = "Import them separately, then compare the runs."
            raise UsageError(f"{path} and {paths[0]} were made {place}.", hint)
        processes += file_processes
    return _run(processes, [path.name for path in paths], tags or {})


def _read_processes(path: Path) -> list[Process]:
    """Read the processes of a file, which has at least one benchmark. Raises UnreadableInput."""
    content = read_file(path, MAX_BYTES, HOW_TO)
    try:
        fields = parse_json(decompress(content, MAX_BYTES))
        reader = next((READERS[key] for key in READERS if key in fields and "benchmarks" in fields), None)
        if reader is None:
            raise ValueError("it is of no known tool")
        processes = reader(fields, path.name.partition(".")[0])
        count = sum(len(process.outcomes) for process in processes)
        if not 1 <= count <= MAX_BENCHMARKS:
            raise ValueError(f"it has {count} benchmarks with samples; at most {MAX_BENCHMARKS} are read")
        for process in processes:
            unix_time(process.started)
    except (UnreadableInput, ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, LookupError) else str(error)
        raise UnreadableInput(f"{path} cannot be imported: {reason[:200]}.", HOW_TO) from error
    return processes


def _pytest_benchmark(fields: Fields, _name: str) -> list[Process]:
    """Return the one process of a file. A benchmark stored without samples is represented by its median."""
    info, commit_info = fields["machine_info"], fields.get("commit_info", {})
    cpu = info.get("cpu", {})
    cpu_name = cpu.get("brand_raw") or cpu.get("brand") or info.get("processor")
    system = os_name(str(info.get("system", "")), str(info.get("release", "")))
    process = Process(
        tool="pytest-benchmark",
        version=str(fields["version"]),
        started=fields["datetime"],
        machine=_machine(cpu_name, cpu.get("count"), system, info.get("machine"), info.get("python_version")),
        commit=commit_name(str(commit_info.get("id")), dirty=bool(commit_info.get("dirty"))),
    )
    for benchmark in fields["benchmarks"]:
        stats, timer = benchmark["stats"], benchmark.get("options", {}).get("timer")
        samples, reduced = stats.get("data"), None
        if not samples and stats.get("median") is not None:
            samples, reduced = [stats["median"]], ("median", stats.get("rounds", 0))
        _add(process, benchmark["fullname"], samples, stats.get("iterations", 1), timer, reduced)
    return [process]


def _pyperf(fields: Fields, name: str) -> list[Process]:
    """Return a process for each run with values; other runs only calibrate. `name`: default name of a
    benchmark.
    """
    processes: list[Process] = []
    for benchmark in fields["benchmarks"]:
        for number, run in enumerate(run for run in benchmark["runs"] if run.get("values")):
            metadata: Fields = {"name": name, "loops": 1, "inner_loops": 1}
            for part in (fields, benchmark, run):
                metadata |= part.get("metadata", {})
            if number == len(processes):
                processes.append(_pyperf_process(metadata))
            if (unit := metadata.get("unit", "second")) != "second":
                raise ValueError(f"{metadata['name']} is in the unit {unit}; seconds are read")
            iterations = metadata["loops"] * metadata["inner_loops"]
            _add(processes[number], metadata["name"], run["values"], iterations, metadata.get("timer"))
    return processes


def _pyperf_process(metadata: Fields) -> Process:
    system, release, *_ = [*str(metadata.get("platform", "")).split("-"), "", ""]
    cpu, threads, python = map(metadata.get, ("cpu_model_name", "cpu_count", "python_version"))
    return Process(
        tool="pyperf",
        version=str(metadata.get("perf_version", "not known")),
        started=str(metadata.get("date")),
        machine=_machine(cpu, threads, os_name(system, release), "", python),
        commit=str(metadata.get("commit_id")),
    )


def _google_benchmark(fields: Fields, _name: str) -> list[Process]:
    """Return the one process of a file. Repetitions are samples; otherwise the median or mean is the only
    sample.
    """
    context = fields["context"]
    version = str(context.get("library_version", "not known"))
    machine = _machine("", context.get("num_cpus"), "system not known")
    process = Process(tool="google-benchmark", version=version, started=context["date"], machine=machine)
    groups: dict[str, list[Fields]] = {}
    for entry in fields["benchmarks"]:
        groups.setdefault(entry.get("run_name") or entry["name"], []).append(entry)
    for name, entries in groups.items():
        if failed := next((entry for entry in entries if entry.get("error_occurred")), None):
            message = str(failed.get("error_message") or "it reported an error")
            process.outcomes[name] = Failure(status=Status.FAILED, message=message)
            continue
        aggregates = {entry.get("aggregate_name"): entry for entry in entries}
        samples, reduced = [entry for entry in entries if entry.get("run_type") != "aggregate"], None
        if not samples and (kind := next((kind for kind in ("median", "mean") if kind in aggregates), None)):
            samples, reduced = [aggregates[kind]], (kind, aggregates[kind].get("repetitions", 1))
        steps = [SECONDS_PER_UNIT[entry.get("time_unit", "ns")] * entry["real_time"] for entry in samples]
        if steps:  # an entry without times is a complexity
            _add(process, name, steps, 1 if reduced else samples[0]["iterations"], "real_time", reduced)
    return [process]


READERS = {
    "machine_info": _pytest_benchmark,
    "metadata": _pyperf,
    "context": _google_benchmark,
}  # by a key of the file


def _machine(cpu: Any, threads: Any, system: str, architecture: Any = "", python: Any = "") -> Machine:
    """Describe a machine; the files name neither its cores nor its memory."""
    return Machine(
        cpu=str(cpu or "not known"),
        cores=0,
        threads=threads if isinstance(threads, int) else 0,
        memory_bytes=0,
        architecture=str(architecture or ""),
        os=system,
        python=str(python or ""),
    )


def _add(
    process: Process,
    name: str,
    steps_s: Sequence[float],
    iterations: int,
    timer: object,
    reduced: tuple[str, int] | None = None,
) -> None:
    """Add a benchmark to a process. Raises ValueError.

    `reduced`: the statistic that is the only sample, and the number of samples behind it.
    """
    if len(name) > MAX_NAME_LENGTH or not 1 <= len(steps_s or ()) <= MAX_SAMPLES:
        count = f"{len(name)} characters and {len(steps_s or ())} samples"
        raise ValueError(
            f"{name[:50]} has {count}; at most {MAX_NAME_LENGTH} and 1 to {MAX_SAMPLES} are read"
        )
    if type(iterations) is not int or not all(
        0 <= number <= LARGEST for number in (iterations - 1, *steps_s)
    ):
        raise ValueError(f"{name} has a sample that is no duration")
    if name in process.outcomes:
        raise ValueError(f"{name} appears twice")
    if median(steps_s) == 0:
        message = "half of its samples are 0: too short for its clock"
        process.outcomes[name] = Failure(status=Status.FAILED, message=message)
        return
    tool, policy = process.tool, POLICIES["default"]
    no_memory = Memory(bytes=None, reason=f"{tool} does not measure memory")
    notes = [note(NoteKind.WARM_UP_UNKNOWN, tool=tool)]
    if reduced:
        notes.append(note(NoteKind.SAMPLES_NOT_KEPT, tool=tool, count=int(reduced[1]), what=reduced[0]))
    process.outcomes[name] = Measurement(
        cost=CALL,
        iterations=iterations,
        warmup_block_s=(),
        block_s=tuple(step * iterations for step in steps_s),
        steady=True,
        stop_reason="precision" if is_precise(steps_s[: policy.max_blocks], policy.precision) else "time",
        cold_s=None,
        compile_cache="warm",
        timer=str(timer or "not known"),
        timer_cost_s=None,
        peak_device=no_memory,
        peak_host=no_memory,
        relative_error=None,
        precision={},
        notes=tuple(notes),
    )


def _run(processes: Sequence[Process], files: Sequence[str], tags: Mapping[str, str]) -> Run:
    newest, machine = processes[-1], processes[0].machine
    records = tuple(
        Record(
            case=Case.of_call(process.tool, name, process.tool, "cpu"),
            round=number,
            order=order,
            started=unix_time(process.started),
            outcome=outcome,
            framework_version=process.version,
            device_model=machine.cpu,
            isolation=Isolation.SHARED,
        )
        for number, process in enumerate(processes)
        for order, (name, outcome) in enumerate(process.outcomes.items())
    )
    agrees = len({process.commit for process in processes}) == 1
    is_hash = HASH.fullmatch(newest.commit.removesuffix(DIRTY))
    target = Target(name=newest.tool, backend=newest.tool, python=machine.python)
    device = Device(name="cpu", device_class=DeviceClass.CPU, model=machine.cpu)
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
        tags={**({COMMIT: newest.commit} if agrees and is_hash else {}), **tags},
    )
    return Run(info=info, records=records)
