"""A template process that imports one framework and forks a process per job, below a supervisor.

`python -m benchbench.worker BACKEND DESCRIPTOR PARENT`. One JSON line per message on the descriptor;
standard output belongs to the frameworks. Standard library, NumPy and the framework only: it runs under
foreign interpreters.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.model.case import Phase
from benchbench.model.status import Status
from benchbench.worker.causes import one_line
from benchbench.worker.children import (
    LINUX,
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
    supervise,
)
from benchbench.worker.jobs import failed, run_job
from benchbench.worker.program import Message

MOST_BYTES = 7 * 2**20  # of an answer; the parent reads no message of more than 8 MiB


def main(backend_name: str, descriptor: int, parent: int) -> None:
    """Serve jobs until the channel closes."""
    die_with_parent(supervise(parent, descriptor))
    adopt_orphans()
    os.set_inheritable(descriptor, False)  # whatever a job starts must not write there
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as lines:
        registry.add_user_folders()
        backend = registry.load_class("benchbench.backends", backend_name, Backend)()  # type: ignore[type-abstract]
        greeting = load_framework(backend)
        send(lines, greeting)
        if greeting["status"] == "ready":
            for line in lines:
                serve(lines, backend, json.loads(line), descriptor)


def load_framework(backend: Backend) -> Message:
    """Import the framework: its version, or why it cannot be used."""
    try:
        return {"status": "ready", "version": backend.load()}
    except ImportError as error:
        status = "unavailable" if missing(backend, error) else "broken"
        return {"status": status, "reason": one_line(error)}
    except Exception as error:  # noqa: BLE001 - a framework may fail to import in any way
        return {"status": "broken", "reason": one_line(error)}


def serve(lines: Any, backend: Backend, job: Message, descriptor: int) -> None:
    """Run one job in a fork, or in this process, and report how it ended."""
    stamp = job["stamp"]
    if not job["fork"]:
        send(lines, {"stamp": stamp, "exit": 0, "answer": json.loads(answered(backend, job))})
        return
    preload_for(backend, job)
    path = Path(f"{job['folder']}.answer")
    own = children()  # which its framework started
    gc.freeze()  # a process that collects its garbage need not go through what the framework's import made
    pid = os.fork()
    if pid == 0:
        os.close(descriptor)  # one job cannot answer for another
        child(backend, job, path)
    send(lines, {"stamp": stamp, "pid": pid})
    status = reap(pid, own)
    send(lines, {"stamp": stamp, "exit": status, **(written(path) if status == 0 else {})})
    path.unlink(missing_ok=True)


def preload_for(backend: Backend, job: Message) -> None:
    """Import here, once, what each process forked for such a job would import."""
    with suppress(Exception):  # the job itself will tell
        if job["kind"] == "reference":
            importlib.import_module("benchbench.worker.reference")
        if case := job.get("case"):
            backend.preload(Phase(case["phase"]), case["mode"])


def child(backend: Backend, job: Message, path: Path) -> None:
    """The forked process: never returns. No clean-up is run: frameworks may hang in theirs."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(os.getppid())
        path.write_bytes(answered(backend, job))
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, this process must not become a second template
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def answered(backend: Backend, job: Message) -> bytes:
    """The reply to a job, under its stamp; what JSON cannot hold makes it a failure."""
    try:
        return as_json({"stamp": job["stamp"], "reply": run_job(backend, job)})
    except (ValueError, TypeError, RecursionError) as error:
        message = f"the worker's answer cannot be read: {one_line(error)}"
        return as_json({"stamp": job["stamp"], "reply": failed(Status.FAILED, message)})


def as_json(message: Message) -> bytes:
    """JSON that any reader takes: half a surrogate, of a file's name in a text, becomes a question mark."""
    return json.dumps(message, allow_nan=False, ensure_ascii=False).encode(errors="replace")


def written(path: Path) -> Message:
    """What the job's process wrote, or why it cannot be read; nothing where it wrote nothing."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return {"fault": f"more than {MOST_BYTES} bytes"}
        return {"answer": json.loads(path.read_bytes())}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        return {"fault": one_line(error)}


def reap(pid: int, own: set[int]) -> int:
    """Wait for the job; end what it left running, all but `own`; its exit code, negative for a signal."""
    if not LINUX:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its group stays its own until it is reaped
    with suppress(ProcessLookupError, PermissionError):  # it had no group yet, or left nobody behind
        os.killpg(pid, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    end_children(spare=own)
    return code


def missing(backend: Backend, error: ImportError) -> bool:
    """Whether what the backend needs is not installed, rather than broken."""
    needed = {re.split(r"[^\w-]", each)[0] for each in backend.requirements}
    return isinstance(error, ModuleNotFoundError) and error.name in needed


def send(lines: Any, message: Message) -> None:
    """One line, flushed."""
    lines.write(as_json(message) + b"\n")
    lines.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
