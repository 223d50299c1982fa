"""Whether somebody is adding to a run: a lock on its folder, which ends with the process that holds it.

A fleet has one on its file, since it would need a descriptor for each of its runs.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep

from benchbench import paths
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


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Meanwhile no other process adds to the run, nor to one within it. Raises CannotWrite where one does."""
    with ExitStack() as held:
        for each in _with_inner(folder):
            held.callback(os.close, lock(each))
        yield


def in_use(folder: Path) -> bool:
    """Whether another process is adding to the run now, or to one within it."""
    return any(map(is_locked, _with_inner(folder)))


def _with_inner(folder: Path) -> list[Path]:
    """The run's folder, and those of the second tests that it keeps."""
    return [each for each in (folder, *paths.listed(folder / "runs")) if os.path.isdir(each)]


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
