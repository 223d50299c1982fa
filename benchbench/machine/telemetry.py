"""What a worker can say about its host memory and its CPU time. Standard library only: foreign interpreters
run this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from time import process_time

from benchbench.model.measurement import Memory

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
PROC = Path("/proc")


def reset_host_peak(clear_refs: Path = CLEAR_REFS) -> bool:
    """Let the peak start again from what is resident now; False where the system cannot (proc(5))."""
    try:
        descriptor = os.open(clear_refs, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(descriptor, b"5") == 1  # 5: reset VmHWM
    except OSError:
        return False
    finally:
        os.close(descriptor)


def peak_host(reset: bool, status: Path = STATUS) -> Memory:
    """Most bytes this process had resident since the peak was reset, frameworks included.

    `reset` is what `reset_host_peak` answered: without it the peak is not the case's.
    """
    if not reset:
        return Memory(
            bytes=None, reason="the peak could not be reset, so it includes everything since the start"
        )
    try:
        text = status.read_text(errors="replace")
    except OSError as error:
        return Memory(bytes=None, reason=f"{status}: {error.strerror}")
    found = re.search(r"^VmHWM:\s*([0-9]+) kB", text, re.MULTILINE)
    if found is None:
        return Memory(bytes=None, reason=f"{status} has no VmHWM")
    return Memory(bytes=int(found[1]) * 1024)


def cpu_seconds(proc: Path = PROC) -> float:
    """CPU seconds of this process and of every process below it, those that have ended among them.

    The workers of a framework's input pipeline are processes of the case, not neighbours of it.
    """
    own = os.times()
    return process_time() + own.children_user + own.children_system + sum(_below(os.getpid(), proc))


def _below(pid: int, proc: Path) -> Iterator[float]:
    """CPU seconds of each process below it, with those it has waited for; nothing without a /proc."""
    if not _has_children():  # nor have most cases: then nothing need be read
        return
    children: dict[int, list[tuple[int, float]]] = {}
    for path in proc.glob("[0-9]*/stat"):
        if (found := _parent_and_cpu(path)) is not None:
            parent, seconds = found
            children.setdefault(parent, []).append((int(path.parent.name), seconds))
    waiting = [pid]
    while waiting:
        for child, seconds in children.get(waiting.pop(), ()):
            yield seconds
            waiting.append(child)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _parent_and_cpu(stat: Path) -> tuple[int, float] | None:
    """Fields 4, and 14 to 17 in clock ticks, of proc(5); None of a process that is gone."""
    try:
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
