"""The runs of this user that measure on this machine now: a locked file each.

The kernel lets a lock go however a process ends, so none is stale. Where no file can be kept, no run knows of
another.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchbench import paths
from benchbench.machine.environment import cache_folder
from benchbench.machine.kernel import read_text

BOOT = "proc/sys/kernel/random/boot_id"
MARK = ".measuring"


def presence_folder(root: Path = Path("/")) -> Path:
    """Of this machine as it runs now: a home folder may be shared by several."""
    return cache_folder("measuring") / (read_text(root / BOOT).strip() or platform.node())


class Presence:
    """Whether this process measures, as the others see it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        self._descriptor: int | None = None

    def others(self) -> list[int]:
        """The ids of the other processes that measure."""
        marks = [path for path in paths.listed(self._folder, f"*{MARK}") if path != self._own]
        return [process for path in marks if (process := _holder(path)) is not None]

    def enter(self, *, alone: bool = False) -> bool:
        """Show others that this process measures; whether it does. `alone`: only if no other process does."""
        with suppress(OSError):
            if self._own is not None:
                return True
            self._folder.mkdir(parents=True, exist_ok=True)
            with _turn(self._folder):
                if alone and self.others():
                    return False
                self._mark()
        return True

    def _mark(self) -> None:
        new = self._folder / f".{secrets.token_hex(8)}"
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._descriptor, str(os.getpid()).encode())
        self._own = new.rename(new.with_name(f"{new.name[1:]}{MARK}"))  # not seen before it is locked

    def leave(self) -> None:
        """This process measures no more."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._own = self._descriptor = None


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: of two processes that wait for the same run, the second must see the first."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> int | None:
    """The process that holds a mark, 0 if its id cannot be read; None, and the mark is gone, if none does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.read(descriptor, 20)
        return int(text) if text.isdigit() else 0
    else:
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)
