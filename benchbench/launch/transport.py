"""Where workers run: the interface through which they are started, asked and ended.

Beyond it nobody may assume that a worker shares this process's clock, /proc or file system: what a job
needs and leaves travels as files, and who watches the machine meanwhile is the transport's to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from benchbench.machine.sampler import TurnSampler
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.status import Status
from benchbench.redaction import hide_in_message, hide_secrets

IMPORT_TIMEOUT_S = 90.0  # a framework that takes longer to import is called broken

Message = dict[str, Any]  # a JSON object
Files = Mapping[str, bytes]  # path relative to the job's folder → content


class JobEnd(StrEnum):
    """How a job ended."""

    ANSWERED = "answered"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"  # the kernel ended it
    TIMED_OUT = "timed out"
    HUNG = "hung"  # timed out without having computed, as after a deadlock in a fork
    STUCK = "stuck"  # timed out, and no signal ends its process, as where a driver hangs
    NOT_ASKED = "not asked"  # a stuck process has its device
    UNREADABLE = "unreadable"  # its answer was malformed, or another job's

    @property
    def status(self) -> Status:
        """The status of a case whose job ended so."""
        return STATUS[self]


STATUS = {
    JobEnd.ANSWERED: Status.OK,
    JobEnd.CRASHED: Status.CRASHED,
    JobEnd.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    JobEnd.TIMED_OUT: Status.TIMEOUT,
    JobEnd.HUNG: Status.TIMEOUT,
    JobEnd.STUCK: Status.TIMEOUT,
    JobEnd.NOT_ASKED: Status.LOST,
    JobEnd.UNREADABLE: Status.FAILED,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A job's reply and the files it left, or how else it ended, a message and the end of its output.

    Secrets are hidden in its texts, which a user's code may have written.
    """

    reply: Message | None
    end: JobEnd = JobEnd.ANSWERED
    message: str = ""
    log: str = ""
    files: Files = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = {"reply": self.reply, "message": self.message, "log": self.log}
        for name, value in hide_in_message(texts).items():
            object.__setattr__(self, name, value)

    @property
    def status(self) -> Status:
        """`ok` for a reply, whatever it says."""
        return self.end.status


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """A worker's first message: its framework's version, or why it cannot be used. It holds no secrets."""

    status: Literal["ready", "unavailable", "broken"]
    version: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", hide_secrets()(self.reason))


class RunningJob(ABC):
    """A job under way, which may exchange messages and be stopped in between."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message to the job."""

    @abstractmethod
    def receive(self, timeout_s: float) -> Message | None:
        """The job's next message; None once it has ended or answered. Raises TimeoutError, ValueError."""

    @abstractmethod
    def stop(self) -> None:
        """Stop its processes until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Have its processes go on."""

    @abstractmethod
    def result(self, timeout_s: float) -> Answer:
        """The answer, within `timeout_s` from now and what it takes to end the job."""


class Worker(ABC):
    """A worker: usable until `close`, or until it dies. Then every answer says so."""

    @abstractmethod
    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """The worker's first message, which this waits for; call it once."""

    @abstractmethod
    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Begin a job in a folder of its own that holds `files`; `collect` must follow before the next.

        `fork`: in a process of its own. The worker adds what only it knows: `folder`, `threads`.
        """

    @abstractmethod
    def collect(self, timeout_s: float) -> Answer:
        """The answer to the job posted, within `timeout_s` from now and what it takes to end it."""

    def has_ended(self) -> bool:
        """Whether `collect` would return at once; also True where only `collect` can tell."""
        return True

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it can take another job."""

    @abstractmethod
    def close(self) -> None:
        """End it and whatever it started; returns within seconds."""

    def begin(self, job: Message, files: Files | None = None, *, fork: bool) -> RunningJob:
        """Begin a job that may be stopped and asked meanwhile, where the transport `can_alternate`."""
        raise NotImplementedError

    def ask(self, job: Message, timeout_s: float, files: Files | None = None, *, fork: bool) -> Answer:
        """Run one job."""
        self.post(job, files, fork=fork)
        return self.collect(timeout_s)


class NotStarted(Worker):
    """Stands for a worker that could not be started."""

    alive = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """Say that the worker is broken, and why."""
        return Greeting(status="broken", reason=self._reason)

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Begin nothing: `collect` tells that the worker died."""

    def collect(self, timeout_s: float) -> Answer:
        """The answer of a worker that died."""
        return Answer(None, JobEnd.CRASHED, self._reason)

    def close(self) -> None:
        """There is nothing to end."""


class Observer(Protocol):
    """Watches the machine that a worker runs on while a case is measured there."""

    def seen_in(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """The outcome with what was seen in the window of its timed blocks."""


class Transport(Protocol):
    """Starts workers on one machine, and watches it while they measure."""

    can_alternate: bool  # whether jobs of its workers can be stopped, so that others are timed in between

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
        """A worker that begins to import its framework, with a case's variables in its environment.

        `threads`: a case's own number; 0: that of the settings.
        """

    def spare_workers(self) -> int:
        """How many more workers, which only wait while cases are measured, its machine has memory for."""

    def watch(self, case: Case) -> AbstractContextManager[Observer]:
        """Watch the machine while the case is measured."""

    def turn_sampler(self, case: Case) -> TurnSampler:
        """Samples of the machine before and after each of the case's turns."""

    def close(self) -> None:
        """End every worker that was started, and remove what they left."""
