"""What a worker can say about its host memory. Standard library only: foreign interpreters run this."""

from __future__ import annotations

import os
import re
from pathlib import Path

from benchbench.model.measurement import Memory

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


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
