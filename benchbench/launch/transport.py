"""The interface for starting, using and ending workers, and the channel of their messages.

Callers must not assume that a worker shares this process's clock, /proc or file system. A job's input and
output files travel with its messages, and the transport chooses how the worker's machine is observed.
"""

from __future__ import annotations

import json
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from select import select
from threading import Lock, Thread
from time import monotonic
from typing import Any, Literal, Protocol

from benchbench.machine.sampler import TurnSampler
from benchbench.model.case import Case, Status
from benchbench.model.device import Target
from benchbench.model.measurement import Failure, Measurement
from benchbench.redaction import hide_in_message, hide_secrets
from benchbench.wire import MAX_MESSAGE_BYTES, LineBuffer, decode_line, next_line

IMPORT_TIMEOUT_S = 90.0  # a framework that takes longer to import is reported as broken

Message = dict[str, Any]  # a JSON object
Files = Mapping[str, bytes]  # path relative to the job's folder → content


class JobEnd(StrEnum):
    """How a job ended."""

    ANSWERED = "answered"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out of memory"  # killed by the kernel
    TIMED_OUT = "timed out"
    HUNG = "hung"  # timed out without having computed, as after a deadlock in a fork
    STUCK = "stuck"  # timed out, and not even SIGKILL ends its process, as when a driver hangs
    SKIPPED = "skipped"  # not started, since a stuck process still uses the device
    UNREADABLE = "unreadable"  # the answer was malformed

    @property
    def status(self) -> Status:
        """The status of a case whose job ended this way."""
        return STATUS[self]


STATUS = {
    JobEnd.ANSWERED: Status.OK,
    JobEnd.CRASHED: Status.CRASHED,
    JobEnd.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    JobEnd.TIMED_OUT: Status.TIMEOUT,
    JobEnd.HUNG: Status.TIMEOUT,
    JobEnd.STUCK: Status.TIMEOUT,
    JobEnd.SKIPPED: Status.LOST,
    JobEnd.UNREADABLE: Status.FAILED,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a job: its reply and output files, or why there is no reply.

    `reply`: the job's last message; None if it ended without one. `message`: the reason for a missing reply.
    `log`: the end of the job's standard output and error. `files`: the files in the job's folder.

    Secrets are hidden in all texts, since user code may have written them.
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
        """`ok` for every reply, even if it reports a failure."""
        return self.end.status

    @property
    def outcome(self) -> Message:
        """The fields of the outcome in the reply; empty if there is none."""
        outcome = (self.reply or {}).get("outcome")
        return outcome if isinstance(outcome, dict) else {}

    @property
    def failure_reason(self) -> str:
        """The reason for a missing reply, or the message in the reply's outcome; "" for neither."""
        return self.message or str(self.outcome.get("message", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """A worker's first message: its framework's version, or why it cannot be used. Secrets are hidden."""

    status: Literal["ready", "unavailable", "broken"]
    version: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", hide_secrets()(self.reason))


class RunningJob(ABC):
    """A running job, which can exchange messages with this process and can be paused."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message to the job."""

    @abstractmethod
    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; None if the job ended or replied. Raises TimeoutError, ValueError."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the job's processes until `resume`."""

    @abstractmethod
    def resume(self) -> None:
        """Continue the job's processes."""

    @abstractmethod
    def result(self, timeout_s: float) -> Answer:
        """Return the answer. Ends the job if it takes more than `timeout_s` from now."""


RunJob = Callable[[Message], Answer]


class Worker(ABC):
    """A process that runs jobs, until `close` or until it dies. After that every answer is a failure."""

    @abstractmethod
    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """Wait for the worker's first message and return it. Call it once."""

    @abstractmethod
    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Start a job in a new folder that contains `files`. Call `collect` before the next `post`.

        `fork`: run it in a forked process. The worker adds the fields `folder` and `threads` to the job.
        """

    @abstractmethod
    def collect(self, timeout_s: float) -> Answer:
        """Return the posted job's answer. Ends the job if it takes more than `timeout_s` from now."""

    def has_ended(self) -> bool:
        """True if `collect` would return at once, or if that is not known."""
        return True

    @property
    @abstractmethod
    def alive(self) -> bool:
        """True if the worker can run another job."""

    @abstractmethod
    def close(self) -> None:
        """End the worker and its child processes; returns within seconds."""

    def begin(self, job: Message, files: Files | None = None, *, fork: bool) -> RunningJob:
        """Start a job that takes turns. Only for transports with `can_alternate`."""
        raise NotImplementedError

    def run(self, job: Message, timeout_s: float, files: Files | None = None, *, fork: bool) -> Answer:
        """Run one job and return its answer."""
        self.post(job, files, fork=fork)
        return self.collect(timeout_s)


class UnstartedWorker(Worker):
    """Placeholder for a worker that could not be started."""

    alive = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        return Greeting(status="broken", reason=self._reason)

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Do nothing: `collect` reports the failure."""

    def collect(self, timeout_s: float) -> Answer:
        return Answer(None, JobEnd.CRASHED, self._reason)

    def close(self) -> None:
        """Do nothing: no process was started."""


class Observer(Protocol):
    """Samples the machine of a worker while a case is measured there."""

    def with_telemetry(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """Return the outcome with the samples taken during its timed blocks."""


class Transport(Protocol):
    """Starts workers on one machine, and samples that machine while they measure."""

    can_alternate: bool  # whether jobs can take turns: one is timed while the others are stopped

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
        """Start a worker, which begins to import its framework.

        `environment`: the variables that the case sets. `threads`: number of threads; 0: the run's setting.
        """

    def spare_workers(self) -> int:
        """The number of further idle workers that fit into the machine's memory."""

    def watch(self, case: Case) -> AbstractContextManager[Observer]:
        """Sample the machine while the case is measured."""

    def turn_sampler(self, case: Case) -> TurnSampler:
        """A sampler that reads the machine's counters before and after each turn of the case."""

    def close(self) -> None:
        """End all workers and remove their files."""


SEND_TIMEOUT_S = 60.0
MAX_UNREAD_BYTES = 16 * MAX_MESSAGE_BYTES  # unread messages that `send` drops


class Channel:
    """This process's end of the socket to a worker: one JSON object a line, either way."""

    def __init__(self, end: socket.socket, lines: LineBuffer | None = None) -> None:
        """`lines`: buffer of the bytes already read from the socket."""
        self._socket = end
        self._lines = LineBuffer() if lines is None else lines

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message together with open file descriptors of this process.

        Unread messages are dropped, since they belong to an earlier request. A failure closes the channel, so
        the next `receive` returns None.
        """
        try:
            self._drain()
            self._socket.settimeout(SEND_TIMEOUT_S)
            line = json.dumps(message).encode() + b"\n"
            sent = socket.send_fds(self._socket, [line], descriptors) if descriptors else 0
            self._socket.sendall(line[sent:])
        except OSError:  # the process or host is gone, or does not read
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a later message must not follow half a line

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; None if the other end is closed. Raises TimeoutError, ValueError."""
        try:
            line = next_line(self._socket, self._lines, monotonic() + timeout_s)
        except TimeoutError:
            raise
        except OSError:  # connection reset, or no route to the host
            return None
        return None if line is None else decode_line(line)

    def has_messages(self, count: int) -> bool:
        """True if `count` messages can be received without waiting, or if the other end is closed."""
        self._socket.setblocking(False)
        try:
            while self._lines.count < count and not self._lines.is_broken:
                if not (piece := self._socket.recv(2**16)):
                    break
                self._lines.add(piece)
        except BlockingIOError:
            return False
        except OSError:  # connection reset: `receive` returns None
            return True
        return True

    @property
    def ended(self) -> bool:
        """True if the other end is closed and everything it sent was read."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()

    def _drain(self) -> None:
        """Drop unread bytes. Raises OSError for more than MAX_UNREAD_BYTES."""
        self._lines.clear()
        self._socket.setblocking(False)
        drained = 0
        with suppress(BlockingIOError):
            while piece := self._socket.recv(2**16):
                drained += len(piece)
                if drained > MAX_UNREAD_BYTES:
                    raise OSError("the other end sends without pause")


TAIL_BYTES = 4096
CHUNK, CHUNKS = 65_536, 16  # limits one read: a worker that prints without pause must release the lock


class LogTail:
    """The end of a worker's printed output. A thread empties the pipe; `writer` is its writing end."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._tail = b""
        self._lock = Lock()
        Thread(target=self._follow, daemon=True).start()

    def close_writer(self) -> None:
        """Close this process's copy of `writer`, so that the log ends with the worker's last process."""
        os.close(self.writer)

    def clear(self) -> None:
        """Discard the text so far: a new job begins."""
        self.text()
        self._tail = b""

    def text(self) -> str:
        """The end of the output, in whole lines: half a line might reveal a secret without its name."""
        with self._lock:
            self._read()
            lines = self._tail if len(self._tail) < TAIL_BYTES else self._tail.partition(b"\n")[2]
            return (lines or self._tail).decode(errors="replace")

    def _follow(self) -> None:
        ended = False
        while not ended:
            select([self._reader], [], [])
            with self._lock:
                ended = self._read()
                if ended:
                    os.close(self._reader)
                    self._reader = -1

    def _read(self) -> bool:
        """Read the available output; return whether the pipe is closed."""
        with suppress(BlockingIOError, OSError):
            for _ in range(CHUNKS):
                content = os.read(self._reader, CHUNK)
                if not content:
                    return True
                self._tail = (self._tail + content)[-TAIL_BYTES:]
        return False
