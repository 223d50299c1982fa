"""A worker as a process of this machine: start it, ask it, bound it in time, and tell how it ended."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from select import select
from threading import Lock, Thread
from time import monotonic
from typing import Any

import msgspec

from benchbench.launch.transport import IMPORT_TIMEOUT_S, Answer, Files, Greeting, JobEnd, Message, Worker
from benchbench.machine.environment import oom_kills
from benchbench.machine.kernel import cpus_for, is_group_alive, is_group_stopped
from benchbench.wire import MOST_BYTES, LineBuffer, message_of, next_line

GRACE_S = 5.0  # between asking a job to end and ending it, where its own time was not shorter
LINUX = sys.platform == "linux"


class _Started(msgspec.Struct, forbid_unknown_fields=True):
    """A job runs in a process of its own."""

    stamp: dict[str, Any]
    pid: int


class _JobAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """What the job's own process wrote into its answer file."""

    stamp: dict[str, Any]
    reply: dict[str, Any]


class _Ended(msgspec.Struct, forbid_unknown_fields=True):
    """A job's process ended. `answer`: what it wrote, if it wrote JSON; `fault`: why it cannot be read."""

    stamp: dict[str, Any]
    exit: int
    answer: Any = None
    fault: str = ""


class LocalWorker(Worker):
    """A worker that is a template process of this machine, in a folder of its own."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        threads: int,
        count_oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        """`command`: to which the channel's descriptor and this process's id are added. Raises OSError."""
        self._count_oom_kills = count_oom_kills
        self._threads = threads
        self._folder = folder
        self._started = monotonic()
        self._log = LogTail()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        try:
            with theirs:
                own = [str(theirs.fileno()), str(os.getpid())]
                self._process = self._begun([*command, *own], environment, theirs)
        except OSError:
            self._channel.close()
            raise
        finally:
            self._log.give_away()
        self._oom_kills = self._jobs = 0
        self._closed = False

    def _begun(
        self, command: list[str], environment: dict[str, str], theirs: socket.socket
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log.writer,
            stderr=self._log.writer,
            start_new_session=True,
        )

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """The template's first message, or why there is none."""
        try:
            message = self._channel.receive(timeout_s)
            if message is not None:
                return msgspec.convert(message, Greeting)
            reason = f"its import ended the interpreter: {self._ending()}"
        except TimeoutError:
            reason = f"importing it took more than {monotonic() - self._started:.0f} s"
        except ValueError as error:
            reason = f"its first message cannot be read: {error}"
        self.close()
        return Greeting(status="broken", reason=reason)

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Begin a job. Its stamp comes back with every message about it."""
        self._jobs += 1
        self._stamp = {"job": self._jobs, "case": job.get("case_id"), "nonce": secrets.token_hex(8)}
        self._job_folder = JobFolder(self._folder / f"job-{self._jobs}", files or {})
        self._expected = 2 if fork else 1  # messages: a process of its own is told when it begins
        self._log.clear()
        self._oom_kills = self._count_oom_kills()
        own = {"stamp": self._stamp, "fork": fork, "folder": str(self._job_folder.path)}
        self._channel.send({**job, **own, "threads": self._threads, "affinity": self._affinity()})
        self._posted = monotonic()

    def collect(self, timeout_s: float) -> Answer:
        """The answer to the job posted. A worker that answers otherwise is ended."""
        try:
            return self._collected(timeout_s)
        except ValueError as error:
            self.close()
            return self._failed(JobEnd.UNREADABLE, f"the worker's answer cannot be read: {error}")
        finally:
            self._job_folder.close()

    def has_ended(self) -> bool:
        """Whether the job has ended, or its worker has."""
        return self._channel.has_come(self._expected)

    def _collected(self, timeout_s: float) -> Answer:
        deadline = monotonic() + timeout_s
        pid: int | None = None
        try:
            while (message := self._channel.receive(deadline - monotonic())) is not None:
                if "exit" in message:
                    return self._answer(msgspec.convert(message, _Ended))
                pid = self._job_of(message)
        except TimeoutError:
            return self._late(pid, timeout_s)
        return self._failed(JobEnd.CRASHED, self._ending())

    def _late(self, pid: int | None, timeout_s: float) -> Answer:
        """End a job that is late, and say how it ended."""
        what = f"no answer after {monotonic() - self._posted:.0f} s"
        group = pid or self._process.pid  # without a fork the worker itself had the job
        is_stopped = is_group_stopped(Path("/"), group)
        idle = pid is not None and not is_stopped and not _has_worked(pid)
        self._end_job(pid, min(GRACE_S, timeout_s))
        if is_group_alive(Path("/"), group):
            return self._failed(JobEnd.STUCK, f"{what}, and no signal ends its process {group}")
        if idle:
            return self._failed(JobEnd.HUNG, f"{what}: it hung without computing")
        reason = ": a signal had stopped its process (SIGSTOP)" if is_stopped else ""
        return self._failed(JobEnd.TIMED_OUT, f"{what}{reason}")

    @property
    def alive(self) -> bool:
        """Whether it runs, can still be asked, and has its folder."""
        return not self._closed and self._process.poll() is None and os.path.isdir(self._folder)

    def close(self) -> None:
        """End it and what it started; returns within seconds."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        if LINUX:  # its supervisor ends everything below it, then itself
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # one that was stopped would not heed it
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2 * GRACE_S)
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)

    def _affinity(self) -> list[int] | None:
        """The CPUs a job may use, when fewer threads were asked for than there are CPUs."""
        if not hasattr(os, "sched_getaffinity"):
            return None
        if self._threads >= len(os.sched_getaffinity(0)):
            return None
        return list(cpus_for(self._threads, Path("/")))

    def _job_of(self, message: Message) -> int:
        """The id of the job's process. Raises ValueError."""
        started = msgspec.convert(message, _Started)
        self._check(started.stamp)
        if started.pid < 2:
            raise ValueError(f"{started.pid} is no process of a job")
        return started.pid

    def _check(self, stamp: Message) -> None:
        if stamp != self._stamp:
            raise ValueError("it belongs to another job")

    def _answer(self, ended: _Ended) -> Answer:
        self._check(ended.stamp)
        if ended.exit == -signal.SIGKILL and self._count_oom_kills() > self._oom_kills:
            return self._failed(JobEnd.OUT_OF_MEMORY, "the kernel ended it: the machine's memory was full")
        if ended.exit or (ended.answer is None and not ended.fault):
            return self._failed(JobEnd.CRASHED, _describe(ended.exit))
        try:
            if ended.fault:
                raise ValueError(ended.fault)
            answer = msgspec.convert(ended.answer, _JobAnswer)
            self._check(answer.stamp)
            return Answer(answer.reply, files=self._job_folder.files())
        except (ValueError, OSError) as error:
            return self._failed(JobEnd.UNREADABLE, f"its answer cannot be read: {error}")

    def _failed(self, end: JobEnd, message: str) -> Answer:
        return Answer(None, end, message, self._log.text())

    def _end_job(self, pid: int | None, grace_s: float) -> None:
        """SIGTERM, a grace period, SIGKILL; a template that does not report the end is ended, too."""
        for signs in ((signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)):  # SIGCONT: if it was stopped
            with suppress(ProcessLookupError, PermissionError, TypeError):
                for sign in signs:
                    os.killpg(pid, sign)  # type: ignore[arg-type]  # None: there is no job process
            with suppress(TimeoutError):
                if pid is not None and self._channel.receive(grace_s) is not None:
                    return
        self.close()

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        return _describe(self._process.returncode or 0)


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


SEND_S = 60.0  # for the other end to take a message
MOST_UNREAD = 16 * MOST_BYTES  # what came and was not read may be that much


class Channel:
    """This process's end of the socket to a worker: one JSON object a line, either way."""

    def __init__(self, end: socket.socket, lines: LineBuffer | None = None) -> None:
        """`lines`: what was read of it before."""
        self._socket = end
        self._lines = LineBuffer() if lines is None else lines

    def send(self, message: Message) -> None:
        """Send a message. What came before and was not read is dropped: it answers nothing asked now."""
        try:
            self._drain()
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # its process or its host is gone, or it takes nothing: `receive` will tell
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # else the rest of a line might come later

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None when the other end is closed. Raises TimeoutError, ValueError."""
        try:
            line = next_line(self._socket, self._lines, monotonic() + timeout_s)
        except TimeoutError:
            raise
        except OSError:  # reset, or no route to its host any longer
            return None
        return None if line is None else message_of(line)

    def has_come(self, count: int) -> bool:
        """Whether so many messages can be received at once, or none further: without waiting."""
        self._socket.setblocking(False)
        try:
            while self._lines.count < count and not self._lines.is_broken:
                if not (piece := self._socket.recv(2**16)):
                    break
                self._lines.take(piece)
        except BlockingIOError:
            return False
        except OSError:  # as above
            return True
        return True

    @property
    def ended(self) -> bool:
        """Whether the other end is closed, and all that it sent was read."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """The other end sees that it is closed."""
        self._socket.close()

    def _drain(self) -> None:
        """Raises OSError for one who sends without end."""
        self._lines.clear()
        self._socket.setblocking(False)
        drained = 0
        with suppress(BlockingIOError):
            while piece := self._socket.recv(2**16):
                drained += len(piece)
                if drained > MOST_UNREAD:
                    raise OSError("it sends without end")


MOST_FILE_BYTES = 2**30  # of all files a job leaves: the traces of a profile take up to some 100 MiB


class JobFolder:
    """Made with the files a job is given; removed by `close`."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        path.mkdir(parents=True)
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)

    def files(self) -> Files:
        """Relative path → content of the regular files there, links not followed.

        Raises ValueError for more than MOST_FILE_BYTES.
        """
        sizes = {path: _size(path) for path in sorted(self.path.rglob("*"))}
        regular = {path: size for path, size in sizes.items() if size is not None}
        if sum(regular.values()) > MOST_FILE_BYTES:
            raise ValueError(f"it left files of more than {MOST_FILE_BYTES} bytes")
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in regular}

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None of anything else."""
    status = os.lstat(path)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


KEPT_BYTES = 4096  # that are kept
CHUNK, CHUNKS = 65_536, 16  # read at once: a worker that floods must not keep others from the lock


class LogTail:
    """A pipe, and the thread that empties it. `writer`: for the worker's standard output and error."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._tail = b""
        self._lock = Lock()
        Thread(target=self._follow, daemon=True).start()

    def give_away(self) -> None:
        """The worker has the writing end now: with its last process the log ends."""
        os.close(self.writer)

    def clear(self) -> None:
        """What comes from here on is another job's."""
        self.text()
        self._tail = b""

    def text(self) -> str:
        """The last of what was printed, in whole lines: of half a line, a secret's name might be cut off."""
        with self._lock:
            self._read()
            whole = self._tail if len(self._tail) < KEPT_BYTES else self._tail.partition(b"\n")[2]
            return (whole or self._tail).decode(errors="replace")

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
        """What there is; whether nothing more can come."""
        with suppress(BlockingIOError, OSError):
            for _ in range(CHUNKS):
                content = os.read(self._reader, CHUNK)
                if not content:
                    return True
                self._tail = (self._tail + content)[-KEPT_BYTES:]
        return False
