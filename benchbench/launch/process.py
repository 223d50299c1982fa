"""Worker processes on this machine, their jobs, and the end of a job at its time limit."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import msgspec

from benchbench.launch.transport import (
    IMPORT_TIMEOUT_S,
    Answer,
    Channel,
    Files,
    Greeting,
    JobEnd,
    LogTail,
    Message,
    RunningJob,
    Worker,
)
from benchbench.machine.environment import oom_kills
from benchbench.machine.kernel import (
    LINUX,
    ProcessEnd,
    allowed_cpus,
    cpus_for,
    is_group_alive,
    is_group_stopped,
    is_stopped,
    process_tree,
    used_cpu_s,
)

GRACE_S = 5.0  # between SIGTERM and SIGKILL, or the job's time limit if that is shorter
KILL_TIMEOUT_S = 5.0  # to wait for a killed process: freeing a GPU's memory takes a while
STOP_TIMEOUT_S = 2.0  # to wait until all threads of a job are stopped
STOP_POLL_S = 0.0002
POLL_S = 0.1  # between checks whether a job's process is alive
MAX_FILE_BYTES = 2**30  # all output files of a job together; the traces of a profile take some 100 MiB


class _Exit(msgspec.Struct, forbid_unknown_fields=True):
    """The template's answer to a request to reap a job's process: the exit code."""

    exit: int


class _LastMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A job's last message: its reply, or the reason why the reply cannot be sent."""

    reply: dict[str, object] | None = None
    fault: str = ""


class LocalWorker(Worker):
    """A template process on this machine, with a working folder."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        threads: int,
        count_oom_kills: Callable[[], int] = oom_kills,
    ) -> None:
        """`command`: its last arguments, the socket's descriptor and this process's id, are added.

        Raises OSError.
        """
        self.count_oom_kills = count_oom_kills
        self._threads = threads
        self._folder = folder
        self._started = monotonic()
        self.log = LogTail()
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        try:
            with theirs:
                arguments = [str(theirs.fileno()), str(os.getpid())]
                self._process = self._start([*command, *arguments], environment, theirs)
        except OSError:
            self._channel.close()
            raise
        finally:
            self.log.close_writer()
        self._jobs = 0
        self._running: set[LocalJob] = set()
        self._posted: LocalJob | None = None
        self._closed = False

    def _start(
        self, command: list[str], environment: dict[str, str], theirs: socket.socket
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log.writer,
            stderr=self.log.writer,
            start_new_session=True,
        )

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """Return the template's first message, or a `broken` greeting with the reason for its absence."""
        try:
            message = self._channel.receive(timeout_s)
            if message is not None:
                return msgspec.convert(message, Greeting)
            reason = f"importing it ended the interpreter: {self.ending()}"
        except TimeoutError:
            reason = f"importing it took more than {monotonic() - self._started:.0f} s"
        except ValueError as error:
            reason = f"its first message cannot be read: {error}"
        self.close()
        return Greeting(status="broken", reason=reason)

    def begin(self, job: Message, files: Files | None = None, *, fork: bool) -> LocalJob:
        """Start a job. Each job has a socket; a forked job has a log of its own."""
        self._jobs += 1
        running = LocalJob(self, JobFolder(self._folder / f"job-{self._jobs}", files or {}), fork=fork)
        placement = {"fork": fork, "folder": str(running.folder.path)}
        message = {**job, **placement, "threads": self._threads, "affinity": self._affinity()}
        with running.descriptors() as descriptors:
            self._channel.send({"job": message}, descriptors)
        self._running.add(running)
        return running

    def forget(self, job: LocalJob) -> None:
        """Remove the job from the running ones."""
        self._running.discard(job)

    def has_other_jobs(self, job: LocalJob) -> bool:
        """True if other jobs than this one are running."""
        return bool(self._running - {job})

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        self._posted = self.begin(job, files, fork=fork)

    def collect(self, timeout_s: float) -> Answer:
        assert self._posted is not None
        return self._posted.result(timeout_s)

    def has_ended(self) -> bool:
        """True if the posted job or its worker has ended."""
        return self._posted is None or self._posted.has_ended()

    def reap(self, pid: int) -> int | None:
        """Let the template reap a job's process and end the job's remaining child processes.

        Returns the exit code, negative for a signal; None if the template has ended. Raises ValueError,
        TimeoutError.
        """
        self._channel.send({"reap": pid})
        message = self._channel.receive(IMPORT_TIMEOUT_S)
        return None if message is None else msgspec.convert(message, _Exit).exit

    @property
    def pid(self) -> int:
        """The id of the worker's process, which is also its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True if the process runs, accepts jobs, and still has its folder."""
        is_running = not self._closed and self._process.poll() is None and not self._channel.ended
        return is_running and os.path.isdir(self._folder)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        if LINUX:  # the supervisor ends all its descendants, then itself
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)  # a stopped process does not react to SIGTERM
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2 * GRACE_S)
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        for job in [*self._running]:
            job.close()

    def ending(self) -> str:
        """How the worker's process ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        return describe_exit(self._process.returncode or 0)

    def _affinity(self) -> list[int] | None:
        """The CPUs that a job may use; None for all, if it has at least as many threads."""
        if self._threads >= len(allowed_cpus()):
            return None
        return list(cpus_for(self._threads, Path("/")))


class LocalJob(RunningJob):
    """A running job in a process forked from its worker, or in the worker itself."""

    def __init__(self, worker: LocalWorker, folder: JobFolder, *, fork: bool) -> None:
        self.folder = folder
        self._worker = worker
        self._fork = fork
        ours, self._theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._log = LogTail() if fork else worker.log
        if not fork:
            self._log.clear()
        self._oom_kills = worker.count_oom_kills()
        self._began = monotonic()
        self._pid: int | None = None
        self._process_end: ProcessEnd | None = None
        self._last: _LastMessage | None = None
        self._closed = False  # by the job
        self._stopped: set[int] = set()
        self._answer: Answer | None = None

    @contextmanager
    def descriptors(self) -> Iterator[list[int]]:
        """The job's ends of its socket and log, to be sent to the worker. Closes them here afterwards."""
        try:
            yield [self._theirs.fileno(), *([self._log.writer] if self._fork else [])]
        finally:
            self._theirs.close()
            if self._fork:
                self._log.close_writer()

    @property
    def pid(self) -> int:
        """The id of the job's process, or of the worker's process if the job is not forked."""
        return self._pid or self._worker.pid

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def receive(self, timeout_s: float) -> Message | None:
        deadline = monotonic() + timeout_s
        while not self._is_over:
            message = self._next(deadline)
            if message is None:
                self._closed = True
            elif self._fork and self._pid is None and "unforked" in message:
                self._last = _LastMessage(reply=msgspec.convert(message["unforked"], dict[str, object]))
            elif self._fork and self._pid is None:
                self._pid = _decode_pid(message)
                self._process_end = ProcessEnd(self._pid)
            elif "reply" in message or "fault" in message:
                self._last = msgspec.convert(message, _LastMessage)
            else:
                return message
        return None

    def _next(self, deadline: float) -> Message | None:
        """Return the next message; None if the socket is closed or the process has ended.

        The process is checked too, since a child process of the job may keep the socket open.
        """
        while True:
            try:
                return self._channel.receive(min(max(deadline - monotonic(), 0.0), POLL_S))
            except TimeoutError:
                if self._process_end and self._process_end.wait(0.0) and self._process_end.is_watched:
                    with suppress(TimeoutError):
                        return self._channel.receive(0.0)
                    return None
                if monotonic() >= deadline:
                    raise

    def has_ended(self) -> bool:
        """True if `result` would return almost at once."""
        return self._is_over or self._channel.has_messages(2 if self._fork and self._pid is None else 1)

    @property
    def _is_over(self) -> bool:
        return self._last is not None or self._closed

    def result(self, timeout_s: float) -> Answer:
        """Return the reply, or the reason for its absence. A job with an unreadable answer is ended."""
        if self._answer is None:
            try:
                self._answer = self._wait(timeout_s)
            except ValueError as error:
                self._end(GRACE_S)
                self._answer = self._failed(JobEnd.UNREADABLE, f"the worker's answer cannot be read: {error}")
            finally:
                self.close()
        return self._answer

    def close(self) -> None:
        """Remove the job's folder and close its socket."""
        self._closed = True
        self.folder.close()
        self._channel.close()
        if self._process_end:
            self._process_end.close()
        self._worker.forget(self)

    def _wait(self, timeout_s: float) -> Answer:
        deadline = monotonic() + timeout_s
        try:
            if self.receive(timeout_s) is not None:
                raise ValueError("an unexpected message")
            if not self._fork or (self._pid is None and self._last):
                return self._answered()
            if self._pid is None:
                return self._failed(JobEnd.CRASHED, self._worker.ending())
            assert self._process_end is not None
            if not self._process_end.wait(max(deadline - monotonic(), 0.0)):
                return self._late(timeout_s)
            code = self._worker.reap(self._pid)
        except TimeoutError:
            return self._late(timeout_s)
        if code is None:
            return self._failed(JobEnd.CRASHED, self._worker.ending())
        if code == -signal.SIGKILL and self._worker.count_oom_kills() > self._oom_kills:
            return self._failed(JobEnd.OUT_OF_MEMORY, "killed by the kernel: the machine's memory was full")
        if code or self._last is None:
            return self._failed(JobEnd.CRASHED, describe_exit(code))
        return self._answered()

    def _answered(self) -> Answer:
        """The answer of a job that has ended: its reply and output files."""
        if self._last is None:
            return self._failed(JobEnd.CRASHED, self._worker.ending())
        try:
            if self._last.reply is None:
                raise ValueError(self._last.fault)
            return Answer(self._last.reply, files=self.folder.files())
        except (ValueError, OSError) as error:
            return self._failed(JobEnd.UNREADABLE, f"its answer cannot be read: {error}")

    def _late(self, timeout_s: float) -> Answer:
        """End a job at its time limit, and return how it ended."""
        fact = f"no answer after {monotonic() - self._began:.0f} s"
        group = self.pid
        is_stopped_by_others = not self._stopped and is_group_stopped(Path("/"), group)
        is_idle = self._pid is not None and not is_stopped_by_others and not _has_worked(self._pid)
        self._end(min(GRACE_S, timeout_s))
        if is_group_alive(Path("/"), group):
            return self._failed(JobEnd.STUCK, f"{fact}, and no signal ends its process {group}")
        if is_idle:
            return self._failed(JobEnd.HUNG, f"{fact}: it hung without computing")
        reason = ": a signal had stopped its process (SIGSTOP)" if is_stopped_by_others else ""
        return self._failed(JobEnd.TIMED_OUT, f"{fact}{reason}")

    def _end(self, grace_s: float) -> None:
        """End the job by SIGTERM and, after a grace period, SIGKILL. End a template that does not reap it.

        If no signal ends the job, the template continues for its other running jobs.
        """
        if self._pid is None or self._process_end is None:
            self._worker.close()
            return
        terminate, kill = (signal.SIGTERM, signal.SIGCONT), (signal.SIGKILL,)  # SIGCONT: if it is stopped
        for signals, wait_s in ((terminate, grace_s), (kill, KILL_TIMEOUT_S)):
            for number in signals:
                self._signal(number)
            if self._process_end.wait(wait_s):
                with suppress(TimeoutError, ValueError):
                    if self._worker.reap(self._pid) is not None:
                        return
                break
        else:
            if self._worker.has_other_jobs(self):
                return
        self._worker.close()

    def stop(self) -> None:
        """Stop the job's processes; returns once all their threads are stopped, or after STOP_TIMEOUT_S."""
        if self._pid is None:
            return
        deadline = monotonic() + STOP_TIMEOUT_S
        while monotonic() < deadline:
            if not all(map(is_stopped, self._stopped)):  # `self._stopped`: processes that got SIGSTOP
                sleep(STOP_POLL_S)
            elif new_pids := process_tree(self._pid) - self._stopped:  # a process may have forked meanwhile
                self._stopped |= new_pids
                self._signal(signal.SIGSTOP)
            else:
                return

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._stopped = set()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the job's process group and to the stopped processes that left it."""
        if self._pid is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, number)
        for pid in self._stopped - {self._pid}:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _failed(self, end: JobEnd, message: str) -> Answer:
        return Answer(None, end, message, self._log.text())


def _decode_pid(message: Message) -> int:
    """The process id in a forked job's first message. Raises ValueError."""
    pid = message.get("pid")
    if not isinstance(pid, int) or pid < 2:
        raise ValueError(f"{pid} is not a process id")
    return pid


def describe_exit(code: int) -> str:
    """Describe an exit code, which is negative for a signal."""
    if code < 0:
        with suppress(ValueError):
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"killed by signal {-code}"
    return f"the process ended with exit code {code} and no answer"


def _has_worked(pid: int) -> bool:
    """True if the process used more than a second of CPU time; a deadlock after the fork uses less."""
    used_s = used_cpu_s(pid)
    return used_s is None or used_s > 1.0


class JobFolder:
    """A folder created with a job's input files and removed by `close`."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        path.mkdir(parents=True)
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)

    def files(self) -> Files:
        """Content of the regular files in the folder, by relative path. Links are not followed.

        Raises ValueError for more than MAX_FILE_BYTES.
        """
        states = {path: os.lstat(path) for path in sorted(self.path.rglob("*"))}
        sizes = {path: state.st_size for path, state in states.items() if stat.S_ISREG(state.st_mode)}
        if sum(sizes.values()) > MAX_FILE_BYTES:
            raise ValueError(f"its files are larger than {MAX_FILE_BYTES} bytes")
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in sizes}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
