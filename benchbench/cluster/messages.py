"""What a machine is sent, a JSON object, and what it answers: lines, each of a kind and JSON."""

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

MOST_BYTES = LIMIT + 32  # of a line: its kind stands before what is stored
UNREADABLE = "what it sent cannot be read: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """`describe` itself, `measure` suites, measure these cases `again` as a new run, or `resume` a run.

    `options`: of a description, the models alone, which are files that the machine must have.

    `suites`: (name, TOML), since the machine need not have the file. `head`, `records`: the files of the run
    that is resumed.
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
    """A machine's hardware and packages, as far as they are known before anything is imported there."""

    version: str  # of accelbench
    machine: Machine
    packages: dict[str, str]  # distribution of a framework → its version
    commit: str = ""  # of the checkout that it works in
    files: dict[str, str] = field(default_factory=dict)  # of models: see `own_models.file_digests`


class LineKind(StrEnum):
    """What a line of the answer holds."""

    DESCRIPTION = "description"
    HEAD = "head"
    RECORD = "record"  # as it is stored, with its checksum
    NOTE = "note"
    STAGE = "stage"
    ERROR = "error"
    END = "end"  # the job came to its end


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A line of the answer: its kind, and its content as bytes."""

    kind: LineKind
    content: bytes

    @property
    def text(self) -> str:
        """The text of a line whose content is a text."""
        return str(read_json(self.content, str))


def with_suites(options: MeasureOptions, suites: Sequence[tuple[str, str]], folder: Path) -> MeasureOptions:
    """The options with suites of which name and TOML are known, written to files below `folder`."""
    paths = []
    for number, (name, text) in enumerate(suites):
        path = folder / "suites" / str(number) / f"{name}.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        paths.append(str(path))
    return dataclasses.replace(options, suites=tuple(paths))


def job_bytes(job: NodeJob) -> bytes:
    """The job as a line of JSON, without its newline."""
    return msgspec.json.encode(job)


def read_job(text: bytes) -> NodeJob:
    """Raises UnreadableInput."""
    found: NodeJob = read_json(text, NodeJob)
    return found


def line_bytes(kind: LineKind, content: Any) -> bytes:
    """A line; bytes are JSON already."""
    own = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return kind.encode() + b" " + own + b"\n"


def read_json(text: bytes, kind: Any) -> Any:
    """Raises UnreadableInput."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        raise UnreadableInput(str(error)[:200]) from error


class LineReader:
    """Whole lines of an answer that comes in pieces."""

    def __init__(self) -> None:
        self._lines = LineBuffer(MOST_BYTES)

    def lines(self, piece: bytes) -> Iterator[NodeLine]:
        """The lines that `piece` completes. Raises UnreadableInput for a line that no job of ours writes."""
        self._lines.take(piece)
        while (line := self._next()) is not None:
            kind, _, content = line.partition(b" ")
            try:
                yield NodeLine(LineKind(kind.decode()), content)
            except ValueError as error:
                raise UnreadableInput(f"{kind[:20]!r} begins no line") from error

    def _next(self) -> bytes | None:
        """Raises UnreadableInput."""
        try:
            return self._lines.pop()
        except ValueError as error:
            raise UnreadableInput(f"a line of {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster. `name` is its own there; `kind`: its accelerator type, where labelled."""

    id: str
    name: str
    kind: str = ""
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """The next bytes of a job; no bytes are a sign of life of its machine."""

    task: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over. `lost`: why, where it did not end by itself."""

    task: int
    lost: str = ""


Event = Arrived | Ended


class Cluster(Protocol):
    """Machines that take a job each at a time, and have no other meanwhile.

    A fleet does not know whose cluster it is, nor the cluster what a job is about: bytes travel both ways.
    """

    def nodes(self) -> list[Node]:
        """The machines that are there now and can be given work."""

    def start(self, node: Node, job: bytes) -> int:
        """Begin a job on a machine once all of it is free; its task."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """What has come from the jobs since, waiting so long at most. Nothing follows a job's `Ended`."""

    def stop(self, task: int) -> None:
        """End a job if its machine can still be reached; nothing more comes of it."""


BEGIN_S = 60.0
SILENT_S = 25.0  # so that a machine that went away is told within half a minute
PERIOD_S = 1.0  # from one look at the deadlines to the next
NOT_BEGUN = "it did not begin within {seconds:.0f} s: somebody else's job may have its CPUs or GPUs"
SILENT = "nothing was heard of it for {seconds:.0f} s"
CUT_OFF = "its process ended before the job did"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a machine is given up: `begin_s` without a sign, later `silent_s` without one.

    A machine that measures is never silent for longer than `entry.HEARTBEAT_S`.
    """

    begin_s: float = BEGIN_S
    silent_s: float = SILENT_S


@dataclass(slots=True)
class _Heard:
    """What has been heard of a job that is under way."""

    latest_s: float
    begun: bool = False
    finished: bool = False  # its last line said that it is done, or why not
    reader: LineReader = field(default_factory=LineReader)


class Listener:
    """Every job ends with one `Ended`, whatever becomes of its machine."""

    def __init__(
        self, cluster: Cluster, deadlines: Deadlines, clock: Callable[[], float] = monotonic
    ) -> None:
        """`clock`: seconds, by which deadlines are kept."""
        self._cluster = cluster
        self._deadlines = deadlines
        self._clock = clock
        self._jobs: dict[int, _Heard] = {}

    def start(self, node: Node, job: NodeJob) -> int:
        """Begin a job on a machine that has none; its task."""
        task = self._cluster.start(node, job_bytes(job))
        self._jobs[task] = _Heard(self._clock())
        return task

    def hear(self) -> Iterator[tuple[int, NodeLine | Ended]]:
        """The lines that have come from the jobs, and the jobs that are over; waits a second at most."""
        for event in self._cluster.poll(PERIOD_S):
            if event.task in self._jobs:
                yield from self._arrived(event) if isinstance(event, Arrived) else self._ended(event)
        for task, heard in list(self._jobs.items()):
            if reason := self._overdue(heard):
                yield from self._given_up(task, reason)

    def give_up(self, task: int) -> None:
        """End a job; nothing more is heard of it."""
        self._jobs.pop(task, None)
        self._cluster.stop(task)

    def stop(self) -> None:
        """End every job."""
        for task in self._jobs:
            self._cluster.stop(task)
        self._jobs.clear()

    def _arrived(self, event: Arrived) -> Iterator[tuple[int, NodeLine | Ended]]:
        heard = self._jobs[event.task]
        heard.latest_s, heard.begun = self._clock(), True
        try:
            for line in heard.reader.lines(event.content):
                heard.finished |= line.kind in (LineKind.END, LineKind.ERROR)
                yield event.task, line
        except UnreadableInput as error:
            yield from self._given_up(event.task, UNREADABLE.format(error=error))

    def _ended(self, event: Ended) -> Iterator[tuple[int, NodeLine | Ended]]:
        heard = self._jobs.pop(event.task)
        lost = "" if heard.finished else event.lost or CUT_OFF
        yield event.task, Ended(event.task, lost)

    def _given_up(self, task: int, reason: str) -> Iterator[tuple[int, NodeLine | Ended]]:
        self.give_up(task)
        yield task, Ended(task, reason)

    def _overdue(self, heard: _Heard) -> str:
        limit = self._deadlines.silent_s if heard.begun else self._deadlines.begin_s
        text = SILENT if heard.begun else NOT_BEGUN
        return text.format(seconds=limit) if self._clock() - heard.latest_s > limit else ""
