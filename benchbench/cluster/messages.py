"""Messages between a fleet and its machines: a job as a JSON object, and an answer of lines with a kind and
JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

import msgspec

from benchbench.errors import UnreadableInput
from benchbench.model.case import Case
from benchbench.model.device import Machine
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Policy
from benchbench.store.codec import LIMIT
from benchbench.wire import LineBuffer

MOST_BYTES = LIMIT + 32  # of a line: its kind and a stored line
UNREADABLE = "its answer cannot be read: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """Job for a machine: describe it, measure suites, measure these cases `again` as a new run, or resume a
    run.

    `options`: for a description, only the models, whose files the machine looks for. `suites`: (name, TOML),
    since the machine may not have the files. `head`, `records`: content of the files of the run to resume.
    """

    kind: Literal["describe", "measure", "again", "resume"]
    options: MeasureOptions = field(default_factory=MeasureOptions)
    suites: tuple[tuple[str, str], ...] = ()
    cases: tuple[Case, ...] = ()
    policy: Policy | None = None
    seed: int | None = None
    run: str = ""
    head: str = ""
    records: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Hardware and packages of a machine, without importing any framework."""

    version: str  # of accelbench
    machine: Machine
    packages: dict[str, str]  # distribution of a framework → its version
    commit: str = ""  # of its checkout
    files: dict[str, str] = field(
        default_factory=dict
    )  # digests of model files: see `user_models.file_digests`


class LineKind(StrEnum):
    """Kind of a line in the answer."""

    DESCRIPTION = "description"
    HEAD = "head"
    RECORD = "record"  # in its stored form, with its checksum
    NOTE = "note"
    STAGE = "stage"
    ERROR = "error"
    END = "end"  # the job is finished


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A line of the answer."""

    kind: LineKind
    content: bytes

    @property
    def text(self) -> str:
        return str(read_json(self.content, str))


def with_suites(options: MeasureOptions, suites: Sequence[tuple[str, str]], folder: Path) -> MeasureOptions:
    """Write suites to files below `folder`, and return the options with these files."""
    paths = []
    for number, (name, text) in enumerate(suites):
        path = folder / "suites" / str(number) / f"{name}.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        paths.append(str(path))
    return dataclasses.replace(options, suites=tuple(paths))


def job_bytes(job: NodeJob) -> bytes:
    """Encode a job as a line of JSON, without its newline."""
    return msgspec.json.encode(job)


def read_job(text: bytes) -> NodeJob:
    job: NodeJob = read_json(text, NodeJob)
    return job


def line_bytes(kind: LineKind, content: Any) -> bytes:
    """Encode a line; content of type bytes is already JSON."""
    encoded = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return kind.encode() + b" " + encoded + b"\n"


def read_json(text: bytes, kind: Any) -> Any:
    """Decode JSON. Raises UnreadableInput."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:  # also for invalid UTF-8
        raise UnreadableInput(str(error)[:200]) from error


class LineReader:
    """Splits an answer that arrives in pieces into lines."""

    def __init__(self) -> None:
        self._lines = LineBuffer(MOST_BYTES)

    def lines(self, piece: bytes) -> Iterator[NodeLine]:
        """Yield the lines that `piece` completes. Raises UnreadableInput for an invalid line."""
        self._lines.add(piece)
        while (line := self._next()) is not None:
            kind, _, content = line.partition(b" ")
            try:
                yield NodeLine(LineKind(kind.decode()), content)
            except ValueError as error:
                raise UnreadableInput(f"{kind[:20]!r} is not a kind of line") from error

    def _next(self) -> bytes | None:
        try:
            return self._lines.pop()
        except ValueError as error:
            raise UnreadableInput(f"a line of {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster, with its name there. `kind`: its accelerator type, if labelled."""

    id: str
    name: str
    kind: str = ""
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """Bytes of a job's answer. Empty bytes show that the machine is alive."""

    task: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job. `lost`: why it did not finish."""

    task: int
    lost: str = ""


Event = Arrived | Ended


class Cluster(Protocol):
    """Machines that run one job each at a time.

    The fleet does not depend on the kind of cluster, nor the cluster on the content of jobs: it transports
    bytes.
    """

    def nodes(self) -> list[Node]:
        """Machines that are available for work."""

    def start(self, node: Node, job: bytes) -> int:
        """Start a job on a machine once it is idle, and return the task's number."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return new events of the jobs, waiting up to `timeout_s`. `Ended` is the last event of a job."""

    def stop(self, task: int) -> None:
        """End a job if its machine can be reached; it has no further events."""


BEGIN_S = 60.0  # until the first sign of life of a machine; after that it is given up
SILENT_S = 25.0  # between later ones, which are never further apart than `entry.HEARTBEAT_S`
PERIOD_S = 1.0  # between checks of the deadlines
NOT_BEGUN = "it did not start within {seconds:.0f} s: another job may be using its CPUs or GPUs"
SILENT = "it sent nothing for {seconds:.0f} s"
CUT_OFF = "its process ended before the job did"


@dataclass(slots=True)
class _JobState:
    """State of a running job."""

    latest_s: float
    started: bool = False
    finished: bool = False  # its last line was an end or an error
    reader: LineReader = field(default_factory=LineReader)


class Listener:
    """Receives the answers of jobs. Every job ends with one `Ended`, even if its machine is lost."""

    def __init__(self, cluster: Cluster, begin_s: float, clock: Callable[[], float] = monotonic) -> None:
        """Create a listener. `begin_s`: until a machine is given up that has not started."""
        self._cluster = cluster
        self._begin_s = begin_s
        self._clock = clock
        self._jobs: dict[int, _JobState] = {}

    def start(self, node: Node, job: NodeJob) -> int:
        """Start a job on an idle machine, and return the task's number."""
        task = self._cluster.start(node, job_bytes(job))
        self._jobs[task] = _JobState(self._clock())
        return task

    def receive(self) -> Iterator[tuple[int, NodeLine | Ended]]:
        """Yield new lines of the jobs and the ends of jobs; waits up to a second."""
        for event in self._cluster.poll(PERIOD_S):
            if event.task in self._jobs:
                yield from self._arrived(event) if isinstance(event, Arrived) else self._ended(event)
        for task, job in list(self._jobs.items()):
            if reason := self._overdue(job):
                yield from self._given_up(task, reason)

    def give_up(self, task: int) -> None:
        """End a job; no further messages of it are received."""
        self._jobs.pop(task, None)
        self._cluster.stop(task)

    def stop(self) -> None:
        for task in self._jobs:
            self._cluster.stop(task)
        self._jobs.clear()

    def _arrived(self, event: Arrived) -> Iterator[tuple[int, NodeLine | Ended]]:
        job = self._jobs[event.task]
        job.latest_s, job.started = self._clock(), True
        try:
            for line in job.reader.lines(event.content):
                job.finished |= line.kind in (LineKind.END, LineKind.ERROR)
                yield event.task, line
        except UnreadableInput as error:
            yield from self._given_up(event.task, UNREADABLE.format(error=error))

    def _ended(self, event: Ended) -> Iterator[tuple[int, NodeLine | Ended]]:
        job = self._jobs.pop(event.task)
        lost = "" if job.finished else event.lost or CUT_OFF
        yield event.task, Ended(event.task, lost)

    def _given_up(self, task: int, reason: str) -> Iterator[tuple[int, NodeLine | Ended]]:
        self.give_up(task)
        yield task, Ended(task, reason)

    def _overdue(self, job: _JobState) -> str:
        limit, text = (SILENT_S, SILENT) if job.started else (self._begin_s, NOT_BEGUN)
        return text.format(seconds=limit) if self._clock() - job.latest_s > limit else ""
