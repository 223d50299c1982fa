"""A folder that no other user can read or write, and small files in it: where processes of one user agree.

In a shared folder for temporary files, others may have made anything under any name beforehand. So a folder
is used only if it is this user's own, and a file is opened below it, not by a path that may be redirected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchbench.errors import UsageError

MOST_BYTES = 4096  # of a file
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
HINT = 'Name one of your own to the launcher: export XDG_RUNTIME_DIR="$(mktemp -d)"'


def is_private(folder: Path) -> bool:
    """Whether it is a folder of this user, no link, that nobody else can read or write."""
    with suppress(OSError, ValueError):
        return _is_private(os.lstat(folder))
    return False


def _is_private(state: os.stat_result) -> bool:
    own = state.st_uid == os.geteuid()
    return own and stat.S_ISDIR(state.st_mode) and not stat.S_IMODE(state.st_mode) & 0o077


def _is_safe_parent(state: os.stat_result) -> bool:
    """Whether others cannot rename or remove what this user makes there."""
    mode = state.st_mode
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) or bool(mode & stat.S_ISVTX)


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """The descriptor of a private folder, which is made if it is not there. Raises UsageError, OSError."""
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        descriptor = os.open(folder, FOLDER)
    except OSError as error:
        if not os.path.islink(folder):
            raise
        raise UsageError(f"{folder} is a link, which somebody else may have made.", HINT) from error
    try:
        if not _is_private(os.fstat(descriptor)) or not _is_safe_parent(folder.parent.stat()):
            raise UsageError(f"{folder} can be written or read by somebody else.", HINT)
        yield descriptor
    finally:
        os.close(descriptor)


def write(folder: Path, name: str, content: bytes) -> None:
    """Write a file of a private folder, whole or not at all. Raises UsageError, OSError."""
    part = f"{name}.part"
    with opened(folder) as place:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=place), "wb") as file:
            file.write(content)
        os.replace(part, name, src_dir_fd=place, dst_dir_fd=place)


def read(folder: Path, name: str) -> bytes:
    """A file of a private folder. Raises UsageError; OSError where it is not there or is not this user's."""
    with opened(folder) as place:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
                raise PermissionError(f"{folder / name} is not a file of this user")
            return file.read(MOST_BYTES)


def remove(folder: Path, name: str) -> None:
    """Remove a file of a private folder, if it is there. Raises UsageError, OSError."""
    with opened(folder) as place, suppress(FileNotFoundError):
        os.unlink(name, dir_fd=place)
