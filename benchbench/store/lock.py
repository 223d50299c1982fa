"""Whether somebody is adding to a run: a lock on its folder, which ends with the process that holds it.

A fleet has one on its file, since it would need a descriptor for each of its runs.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from time import sleep

from benchbench.errors import CannotWrite
from benchbench.store import disk

TRIES, PAUSE_S = 5, 0.05  # `is_locked` of another process holds the lock for a moment


def lock(path: Path) -> int:
    """A descriptor that keeps other processes from adding to a run or fleet, until it is closed.

    Where the file system has no locks it keeps nobody away. Raises CannotWrite.
    """
    with disk.writing(path):
        descriptor = os.open(path, os.O_RDONLY)
    for _ in range(TRIES):
        if _locked(descriptor):
            return descriptor
        sleep(PAUSE_S)
    os.close(descriptor)
    message = f"Another process is adding to {path.stem!r}."
    raise CannotWrite(message, "Wait until it has ended, or choose another name.")


def is_locked(path: Path) -> bool:
    """Whether another process is adding to the run or fleet now."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return not _locked(descriptor)
        finally:
            os.close(descriptor)
    return False


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return True
