"""A template process that imports one framework and forks a process per job, below a supervisor.

On macOS, whose libraries do not work in a fork, it starts a fresh process per job instead:
`python -m benchbench.worker BACKEND`.

Run as `python -m benchbench.worker BACKEND DESCRIPTOR PARENT`. Messages are JSON lines on the descriptor;
standard output belongs to the frameworks. It runs under foreign interpreters, so it imports only the standard
library, NumPy and the framework.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import mmap
import os
import random
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn, Self

from benchbench import registry
from benchbench.backends.base import Backend, backend_class
from benchbench.errors import one_line
from benchbench.machine.kernel import CAN_FORK, LINUX, cpu_seconds
from benchbench.model.case import Phase, Status
from benchbench.worker.children import (
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
    supervise,
)
from benchbench.worker.jobs import reply_with_failure, run_job
from benchbench.worker.program import Message

DESCRIPTORS = {True: 2, False: 1}  # files sent with a job, by whether it is forked: socket and log, or socket
JOB_SOCKET = 3  # descriptor of the job's socket in a spawned process
MAX_PADDING = 2**20  # bytes
MAX_REPLY_BYTES = 7 * 2**20  # the parent rejects messages of more than 8 MiB


def main(backend_name: str, descriptor: int, parent: int) -> None:
    """Serve jobs until the channel closes."""
    die_with_parent(supervise(parent, descriptor))
    adopt_orphans()
    os.set_inheritable(descriptor, False)  # processes that a job starts must not write there
    with socket.socket(fileno=descriptor) as channel:
        registry.add_user_folders()
        backend = backend_class(backend_name)()
        greeting = load_framework(backend)
        channel.sendall(as_json(greeting) + b"\n")
        if greeting["status"] == "ready":
            Template(backend, channel).serve()


def load_framework(backend: Backend) -> Message:
    """Import the framework. Return its version, or why it cannot be used."""
    try:
        return {"status": "ready", "version": backend.load()}
    except ImportError as error:
        status = "unavailable" if is_missing(backend, error) else "broken"
        return {"status": status, "reason": one_line(error)}
    except Exception as error:  # noqa: BLE001 - a framework may fail to import in any way
        return {"status": "broken", "reason": one_line(error)}


class Template:
    """Runs jobs, in a fork or in this process."""

    def __init__(self, backend: Backend, channel: socket.socket) -> None:
        self._backend = backend
        self._channel = channel
        self._jobs: set[int] = set()  # ids of forked processes that have not been reaped
        self._helpers: set[int] = set()  # children that the framework started

    def serve(self) -> None:
        """Handle the parent's requests until it closes the channel."""
        for message, descriptors in requests(self._channel):
            if "reap" in message:
                self._channel.sendall(as_json({"exit": self._reap(message["reap"])}) + b"\n")
            else:
                self._begin(message["job"], descriptors)

    def _begin(self, job: Message, descriptors: list[int]) -> None:
        """Run one job. It replies on the first descriptor; a forked one prints to the second."""
        if not job["fork"]:
            with JobChannel(descriptors[0]) as channel:
                channel.answer(self._backend, job)
            return
        if not CAN_FORK:
            self._jobs.add(spawn(type(self._backend), job, descriptors))
            for descriptor in descriptors:
                os.close(descriptor)
            return
        preload_for(self._backend, job)
        if not self._jobs:
            self._helpers = children()
        gc.freeze()  # garbage collection in a job skips the objects of the framework's import
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes; running jobs continue
            status = Status.OUT_OF_MEMORY if error.errno == errno.ENOMEM else Status.FAILED
            with JobChannel(descriptors[0]) as channel:
                channel.send(
                    {"unforked": reply_with_failure(status, f"no process can be forked: {one_line(error)}")}
                )
            os.close(descriptors[1])
            return
        if pid == 0:
            self._channel.close()  # a job must not reply for another
            child(self._backend, job, descriptors)
        self._jobs.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)

    def _reap(self, pid: int) -> int:
        """Wait for a job and end the processes that it left. Return its exit code, negative for a signal."""
        self._jobs.discard(pid)
        if not LINUX:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Until the process is reaped, the id of its process group is not reused.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        for sign in (signal.SIGTERM, signal.SIGCONT):
            with suppress(ProcessLookupError, PermissionError):  # it had no group yet, or left no process
                os.killpg(pid, sign)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        end_children(exempt=self._helpers | self._jobs)
        return code


def requests(channel: socket.socket) -> Iterator[tuple[Message, list[int]]]:
    """Yield the parent's messages with the files sent along, until the channel is closed."""
    content, descriptors = b"", list[int]()
    while chunk := _receive(channel, descriptors):
        *lines, remainder = (content + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            count = DESCRIPTORS[message["job"]["fork"]] if "job" in message else 0
            yield message, descriptors[:count]
            del descriptors[:count]
        content = remainder


def _receive(channel: socket.socket, descriptors: list[int]) -> bytes:
    """Receive bytes; files that came with them are appended to `descriptors`."""
    chunk, files, *_ = socket.recv_fds(channel, 2**16, sum(DESCRIPTORS.values()))
    for descriptor in files:
        os.set_inheritable(descriptor, False)
    descriptors += files
    return chunk


def preload_for(backend: Backend, job: Message) -> None:
    """Import once, in this template, what each process forked for such a job would import."""
    with suppress(Exception):  # the job itself reports the error
        if job["kind"] == "reference":
            importlib.import_module("benchbench.worker.reference")
        if case := job.get("case"):
            backend.preload(Phase(case["phase"]), case["mode"])


def child(backend: Backend, job: Message, descriptors: list[int]) -> NoReturn:
    """Run the job in the forked process, and exit without clean-up: frameworks may hang in theirs."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(os.getppid())
        adopt_orphans()  # so that the parent can stop everything that the job starts, and the job can end it
        job_socket, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        channel = JobChannel(job_socket)
        channel.send({"pid": os.getpid()})
        padding = random_padding()  # noqa: F841 - must live while the job runs
        channel.answer(backend, job)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - this process must never become a second template
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def spawn(backend: type[Backend], job: Message, descriptors: list[int]) -> int:
    """Start a fresh process for the job, in a process group of its own. Returns its id."""
    job_socket, log = descriptors
    reader, writer = os.pipe()
    actions = [
        (os.POSIX_SPAWN_DUP2, old, new)
        for old, new in ((reader, 0), (log, 1), (log, 2), (job_socket, JOB_SOCKET))
    ]
    name = backend.__module__.rpartition(".")[2]
    command = [sys.executable, "-P", "-m", "benchbench.worker", name]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setpgroup=0)
    os.close(reader)
    with open(writer, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(as_json(job))
    return pid


def run_spawned(backend_name: str) -> None:
    """Import the framework in a fresh process, run the job on standard input and send its reply."""
    job = json.load(sys.stdin.buffer)
    os.set_inheritable(JOB_SOCKET, False)
    registry.add_user_folders()
    with JobChannel(JOB_SOCKET) as channel:
        channel.send({"pid": os.getpid()})
        backend = backend_class(backend_name)()
        load_framework(backend)
        preload_for(backend, job)
        padding = random_padding()  # noqa: F841 - must live while the job runs
        channel.answer(backend, job)


def random_padding() -> tuple[bytearray, mmap.mmap]:
    """Unused memory of random size, so that arrays have different addresses in each fork of a template.

    The relative addresses of arrays change how they share the caches.
    """
    source = random.SystemRandom()
    return bytearray(source.randrange(1, MAX_PADDING)), mmap.mmap(-1, source.randrange(1, MAX_PADDING))


class ParentTurns:
    """Turns requested by the parent, one message each. Implements `timing.sampling.Turns`."""

    def __init__(self, send: Callable[[Message], None], receive: Callable[[], Message]) -> None:
        self._send = send
        self._receive = receive

    def take(self, block_s: float) -> Iterator[float]:
        """Report that the case is warm, then yield the seconds of each turn until the parent sends 0.

        After each turn, send the CPU seconds that the turn used. `block_s`: seconds of one timed block.
        """
        self._send({"warm": block_s})
        while seconds := float(self._receive()["turn"]):
            used_s = cpu_seconds()
            yield seconds
            self._send({"cpu_s": cpu_seconds() - used_s})


class JobChannel:
    """A job's end of its socket to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, message: Message) -> None:
        """Send a message to the parent."""
        self._socket.sendall(as_json(message) + b"\n")

    def receive(self) -> Message:
        """Receive the parent's next message. Exit if the parent has closed the socket."""
        if not (line := self._lines.readline()):
            raise SystemExit("the parent has closed the job's socket")
        message: Message = json.loads(line)
        return message

    def answer(self, backend: Backend, job: Message) -> None:
        """Run the job and send its reply. A reply that JSON cannot represent becomes a failure."""
        reply = run_job(backend, job, ParentTurns(self.send, self.receive))
        try:
            line = as_json({"reply": reply})
        except (ValueError, TypeError, RecursionError) as error:
            message = f"the worker's answer cannot be read: {one_line(error)}"
            line = as_json({"reply": reply_with_failure(Status.FAILED, message)})
        if len(line) > MAX_REPLY_BYTES:
            line = as_json({"fault": f"more than {MAX_REPLY_BYTES} bytes"})
        self._socket.sendall(line + b"\n")


def as_json(message: Message) -> bytes:
    """Standard JSON. Lone surrogates, as in file names, become question marks."""
    return json.dumps(message, allow_nan=False, ensure_ascii=False).encode(errors="replace")


def is_missing(backend: Backend, error: ImportError) -> bool:
    """True if a requirement of the backend is not installed, False if it is broken."""
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in backend.requirements}
    return isinstance(error, ModuleNotFoundError) and error.name in names


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run_spawned(sys.argv[1])
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
