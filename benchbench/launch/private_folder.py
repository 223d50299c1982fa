"""Files in a folder that only this user can read or write.

In a shared folder for temporary files, others may have made anything under any name. So a folder is used only
if it belongs to this user, and its files are opened by its descriptor, since a path may be redirected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchbench.errors import UsageError

MAX_BYTES = 4096  # read from a file
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FOLDER_HINT = 'Name one of your own to the launcher: export XDG_RUNTIME_DIR="$(mktemp -d)"'


def is_private(folder: Path) -> bool:
    """True for a folder of this user, not a link, that nobody else can read or write."""
    with suppress(OSError, ValueError):
        return _is_private(os.lstat(folder))
    return False


def _is_private(state: os.stat_result) -> bool:
    is_users = state.st_uid == os.geteuid()
    return is_users and stat.S_ISDIR(state.st_mode) and not stat.S_IMODE(state.st_mode) & 0o077


def _is_safe_parent(state: os.stat_result) -> bool:
    """True if nobody else can rename or remove this user's files in the folder."""
    mode = state.st_mode
    return not mode & (stat.S_IWGRP | stat.S_IWOTH) or bool(mode & stat.S_ISVTX)


@contextmanager
def _descriptor(folder: Path) -> Iterator[int]:
    """Yield the descriptor of a private folder, which is created if missing. Raises UsageError, OSError."""
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    try:
        descriptor = os.open(folder, FOLDER_FLAGS)
    except OSError as error:
        if not os.path.islink(folder):
            raise
        raise UsageError(f"{folder} is a link, which somebody else may have made.", FOLDER_HINT) from error
    try:
        if not _is_private(os.fstat(descriptor)) or not _is_safe_parent(folder.parent.stat()):
            raise UsageError(f"Somebody else can read or write {folder}.", FOLDER_HINT)
        yield descriptor
    finally:
        os.close(descriptor)


def write(folder: Path, name: str, content: bytes) -> None:
    """Write a file in a private folder atomically. Raises UsageError, OSError."""
    part = f"{name}.part"
    with _descriptor(folder) as descriptor:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=descriptor), "wb") as file:
            file.write(content)
        os.replace(part, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)


def read(folder: Path, name: str) -> bytes:
    """Up to MAX_BYTES of a file in a private folder. Raises UsageError; OSError if it is not this user's."""
    with _descriptor(folder) as descriptor:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
        with os.fdopen(opened, "rb") as file:
            state = os.fstat(opened)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
                raise PermissionError(f"{folder / name} is not a file of this user")
            return file.read(MAX_BYTES)


def remove(folder: Path, name: str) -> None:
    """Remove a file of a private folder, if it exists. Raises UsageError, OSError."""
    with _descriptor(folder) as descriptor, suppress(FileNotFoundError):
        os.unlink(name, dir_fd=descriptor)
