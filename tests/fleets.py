"""A fake cluster: machines that answer by a script, and a clock set by hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchbench import __version__
from benchbench.cluster.fleet import FleetObserver, FleetOptions, FleetResult, measure_fleet
from benchbench.cluster.messages import (
    Arrived,
    Description,
    Ended,
    Event,
    LineKind,
    Node,
    NodeJob,
    line_bytes,
    read_job,
)
from benchbench.launch import user_models
from benchbench.model.measurement import Failure
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Policy, Record, Resumption, RunInfo
from benchbench.store import codec, disk
from tests.factories import a_case, a_machine, a_record, a_run_info

CASES = tuple(a_case(params={"m": m, "n": 64, "k": 64}) for m in (1, 2, 3))
ROUNDS = 2
PLANNED = len(CASES) * ROUNDS
QUICK = MeasureOptions(suites=("quick",), rounds=ROUNDS, command=("fleet",))


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeMachine:
    """The behaviour of a machine. It dies, or falls silent, after so many records; None: never."""

    kind: str = "A100"
    dies_after: int | None = None
    silent_after: int | None = None
    begins: bool = True
    refusal: str = ""  # sent as an error instead of measuring
    torn: bool = False  # its records are unreadable
    head: Callable[[RunInfo], RunInfo] = lambda info: info  # changes the head before it is sent
    records: Callable[[Record], Sequence[Record]] = lambda record: [record]  # changes each record
    ends_after: int | None = None  # it reports its end after so many records
    version: str = __version__
    packages: tuple[tuple[str, str], ...] = (("torch", "2.13.0"),)
    threads: int = 2
    files: tuple[tuple[str, str], ...] | None = None  # name and digest; None: the files of this machine


@dataclass(slots=True)
class _Job:
    name: str
    events: Iterator[Event]


class FakeCluster:
    """A poll takes its whole time-out and returns one event of every job."""

    def __init__(self, machines: dict[str, FakeMachine]) -> None:
        self.machines = machines
        self.now_s = self.heard_s = 0.0  # the latter: the time of the last event
        self.jobs: dict[int, _Job] = {}
        self.started: list[tuple[str, NodeJob]] = []
        self.stopped: list[int] = []
        self._dead: set[str] = set()
        self._sent = dict.fromkeys(machines, 0)

    def clock(self) -> float:
        return self.now_s

    def nodes(self) -> list[Node]:
        return [
            Node(id=f"id-{name}", name=name, kind=machine.kind, cpus=2)
            for name, machine in self.machines.items()
        ]

    def start(self, node: Node, job: bytes) -> int:
        assert node.name not in {job.name for job in self.jobs.values()}, "two jobs on one machine"
        node_job = read_job(job)
        self.started.append((node.name, node_job))
        task = len(self.started)
        self.jobs[task] = _Job(node.name, self._events(task, node.name, node_job))
        return task

    def poll(self, timeout_s: float) -> Sequence[Event]:
        self.now_s += timeout_s
        events = [event for job in list(self.jobs.values()) for event in [next(job.events)] if event]
        for event in events:
            self.heard_s = self.now_s
            if isinstance(event, Ended):
                del self.jobs[event.task]
        return events

    def stop(self, task: int) -> None:
        self.stopped.append(task)
        self.jobs.pop(task, None)

    def _events(self, task: int, name: str, job: NodeJob) -> Iterator[Any]:
        machine = self.machines[name]
        while not machine.begins:
            yield None
        if name in self._dead:
            yield Ended(task, "NodeDiedError: gone")
        yield Arrived(task, b"")
        if job.kind == "describe":
            yield Arrived(task, line_bytes(LineKind.DESCRIPTION, description(machine, job.options)))
            yield Arrived(task, line_bytes(LineKind.END, "describe"))
            yield Ended(task)
        if machine.refusal:
            yield Arrived(task, line_bytes(LineKind.ERROR, machine.refusal))
            yield Ended(task)
        for line in answer(job, machine):
            while machine.silent_after == self._sent[name]:
                yield None
            if machine.dies_after == self._sent[name]:
                self._dead.add(name)
                yield Ended(task, "NodeDiedError: gone")
            half = len(line) // 2
            yield Arrived(task, line[:half])
            yield Arrived(task, b"rubbish\n" if machine.torn else line[half:])
            self._sent[name] += line.startswith(b"record")
        yield Ended(task)


def description(machine: FakeMachine, options: MeasureOptions) -> Description:
    local_files = user_models.file_digests(options.model, options.input or "")
    return Description(
        version=machine.version,
        machine=a_machine(threads=machine.threads),
        packages=dict(machine.packages),
        files=local_files if machine.files is None else dict(machine.files),
    )


def answer(job: NodeJob, machine: FakeMachine) -> Iterator[bytes]:
    """The output lines of a machine for a job."""
    earlier: list[Record] = []
    if job.kind == "resume":
        head = codec.decode_head(job.head.encode())
        info = replace(head, resumed=(*head.resumed, a_resumption()))
        earlier = [codec.decode(line.encode(), checksums=True) for line in job.records.splitlines()]
    else:
        plan, policy = tuple(job.cases or CASES), Policy(name="quick", rounds=ROUNDS)
        info = a_run_info(id=disk.new_id(), plan=plan, policy=policy, tags=dict(job.options.tags))
    yield line_bytes(LineKind.HEAD, codec.to_json(machine.head(info)))
    yield line_bytes(LineKind.NOTE, "looking for backends and devices")
    recorded = {(record.case.id, record.round) for record in earlier}
    failed = {record.case.id for record in earlier if isinstance(record.outcome, Failure)}
    for number in range(ROUNDS):
        for case in info.plan:
            if (case.id, number) not in recorded and case.id not in failed:
                if machine.ends_after == len(recorded):
                    break
                yield line_bytes(LineKind.STAGE, f"round {number + 1}: {case.id}")
                record = a_record(case=case, round=number, order=len(recorded), part=len(info.resumed))
                for changed in machine.records(record):
                    yield line_bytes(LineKind.RECORD, codec.encode(changed))
                recorded.add((case.id, number))
    yield line_bytes(LineKind.END, job.kind)


def a_resumption() -> Resumption:
    return Resumption(started="2026-01-02T04:04:05Z", command=("fleet", "--resume"))


class RecordingObserver(FleetObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.records: list[tuple[str, Record]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def record(self, machine: str, record: Record) -> None:
        self.records.append((machine, record))


def measure_on(
    cluster: FakeCluster, results: Path, observer: FleetObserver | None = None, **options: Any
) -> FleetResult:
    fleet = FleetOptions(**{"measure": QUICK, **options})
    return measure_fleet(fleet, cluster, results, observer or FleetObserver(), cluster.clock)
