"""The parent's side of a worker: start it, ask it, bound it in time, and tell how it ended.

The parent blocks on the channel while a case is timed: it never spins.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from benchbench.launch.scratch import RunScratch
from benchbench.machine.environment import oom_kills
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.model.status import Status

IMPORT_TIMEOUT_S = 90.0  # a framework that takes longer to import is called broken
GRACE_S = 5.0  # between asking a job to end and ending it
MOST_BYTES = 8 * 2**20  # of one answer
LOG_TAIL = 4096  # bytes of a worker's output kept with a failure

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a job ended: with a reply, or with a status and a message."""

    reply: Message | None
    status: Status = Status.OK
    message: str = ""
    log: str = ""


class Worker:
    """One template process. Usable until `close`, or until it dies: then every answer says so."""

    def __init__(
        self,
        target: Target,
        settings: Settings,
        scratch: RunScratch,
        count_oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        self.target = target
        self._count_oom_kills = count_oom_kills
        self._oom_kills = 0
        self._settings = settings
        folder = scratch.worker_folder()
        self._log = folder / "log"
        self._started = monotonic()
        self._channel, theirs = socket.socketpair()
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    target.python,
                    "-P",
                    "-m",
                    "benchbench.worker",
                    target.backend,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                cwd=folder,
                env=scratch.environment(target, settings),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._received = bytearray()
        self._log_start = 0

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Message:
        """Its first message: status `ready` with a version, else `unavailable` or `broken` with a reason."""
        try:
            message = self._receive(timeout_s)
        except TimeoutError:
            self.close()
            waited = monotonic() - self._started
            return {"status": "broken", "reason": f"importing it took more than {waited:.0f} s"}
        if message is None:
            return {"status": "broken", "reason": f"its import ended the interpreter: {self._ending()}"}
        return message

    def ask(self, job: Message, timeout_s: float, *, fork: bool) -> Answer:
        """Run one job; `fork`: in a process of its own."""
        self.post(job, fork=fork)
        return self.collect(timeout_s)

    def post(self, job: Message, *, fork: bool) -> None:
        """Have a job begun; `collect` must follow before the next."""
        self._log_start = self._log.stat().st_size
        self._oom_kills = self._count_oom_kills()
        message = {**job, "fork": fork, "threads": self._settings.threads, "affinity": self._affinity()}
        with suppress(BrokenPipeError, ConnectionResetError):  # collect will find out
            self._channel.settimeout(None)
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def collect(self, timeout_s: float) -> Answer:
        """The answer to the job posted, within `timeout_s` from now and what it takes to end it."""
        deadline = monotonic() + timeout_s
        pid: int | None = None
        try:
            while True:
                message = self._receive(deadline - monotonic())
                if message is None:
                    return self._failed(Status.CRASHED, self._ending())
                if "exit" in message:
                    return self._answer(message)
                pid = message["pid"]
        except TimeoutError:
            idle = pid is not None and not _has_worked(pid)
            self._end_job(pid)
            what = f"no answer after {timeout_s:.0f} s" + (": it hung without computing" if idle else "")
            return self._failed(Status.TIMEOUT, what)
        except ConnectionResetError:
            return self._failed(Status.CRASHED, self._ending())
        except ValueError as error:
            self.close()
            return self._failed(Status.FAILED, f"the worker's answer cannot be read: {error}")

    @property
    def alive(self) -> bool:
        """Whether it can take another job."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it and what it started; returns within seconds."""
        self._channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)

    def _affinity(self) -> list[int] | None:
        """The CPUs a job may use, when fewer threads were asked for than there are CPUs."""
        if not hasattr(os, "sched_getaffinity"):
            return None
        usable = sorted(os.sched_getaffinity(0))
        return usable[: self._settings.threads] if self._settings.threads < len(usable) else None

    def _answer(self, message: Message) -> Answer:
        code = message["exit"]
        if code == 0 and message["reply"] is not None:
            return Answer(message["reply"])
        if code == -signal.SIGKILL and self._count_oom_kills() > self._oom_kills:
            return self._failed(Status.OUT_OF_MEMORY, "the kernel ended it: the machine's memory was full")
        return self._failed(Status.CRASHED, _describe(code))

    def _failed(self, status: Status, message: str) -> Answer:
        with self._log.open("rb") as log:
            log.seek(max(self._log_start, self._log.stat().st_size - LOG_TAIL))
            return Answer(None, status, message, log.read().decode(errors="replace"))

    def _end_job(self, pid: int | None) -> None:
        """SIGTERM, a grace period, SIGKILL; the template goes too when it does not report the end."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError, TypeError):
                os.killpg(pid, sign)  # type: ignore[arg-type]  # None: there is no job process
            with suppress(TimeoutError):
                if pid is not None and self._receive(GRACE_S) is not None:
                    return
        self.close()

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        return _describe(self._process.returncode or 0)

    def _receive(self, timeout_s: float) -> Message | None:
        """The next message; None when the channel is closed. Raises TimeoutError, ValueError."""
        deadline = monotonic() + timeout_s
        while b"\n" not in self._received:
            self._channel.settimeout(max(deadline - monotonic(), 0.001))
            chunk = self._channel.recv(65536)
            if not chunk:
                return None
            self._received += chunk
            if len(self._received) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        try:
            return msgspec.json.decode(line, type=Message)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def _describe(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"killed by signal {-code}"
    return f"the process ended with exit code {code} and no answer"


def _has_worked(pid: int) -> bool:
    """Whether the process used more than a second of CPU: a deadlock after a fork does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 1.0
