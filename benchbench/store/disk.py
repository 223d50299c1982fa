"""Files written whole and durably, or an error that says what to do."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchbench.errors import CannotWrite, UnreadableInput


def save(path: Path, content: bytes) -> None:
    """A file made from a run, its folder made if need be; never half of it. Raises CannotWrite."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()  # else a link would be replaced, not what it points to
        if target.is_file() or not target.exists():
            replace(target, content)
        else:  # /dev/stdout, a pipe
            target.write_bytes(content)


def replace(path: Path, content: bytes) -> None:
    """Afterwards `path` holds `content`, or what it held before."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # of the file that was asked for, not of the temporary one
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Names in a folder survive a power cut only once the folder itself is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path, detail: str = "") -> Iterator[None]:
    """CannotWrite for an OSError; `detail` is added to what it says."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        hint = "Free space there or make it writable, or choose another folder."
        raise CannotWrite(f"{where}: {error.strerror or error}{detail}", hint) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """UnreadableInput for an OSError."""
    try:
        yield
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}", "accelbench list runs") from error
