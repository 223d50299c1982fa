"""Jobs on machines of a cluster, read line by line; a job that misses a deadline is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic

from benchbench.cluster.interface import Arrived, Cluster, Ended, Node
from benchbench.cluster.messages import UNREADABLE, LineKind, LineReader, NodeJob, NodeLine, job_bytes
from benchbench.errors import UnreadableInput

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
