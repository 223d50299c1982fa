"""Files written whole and durably, or an error that says what to do; who may add to a run.

A lock on a run's folder ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EMFILE, ENFILE
from pathlib import Path
from time import sleep

from benchbench import paths
from benchbench.errors import CannotWrite, UnreadableInput

HINT = "Free space there or make it writable, or choose another folder."
OPEN = "Allow more open files: ulimit -n 4096"
NO_FOLDER = "it is a link or no folder; links below an output folder are not followed"
TRIES, PAUSE_S = 5, 0.05  # `is_locked` of another process holds the lock for a moment


def free_bytes(root: Path) -> int:
    """The bytes free where a folder is, or will be. Raises CannotWrite where nothing can be written."""
    with writing(root):
        there = next((each for each in (root, *paths.absolute(root).parents) if os.path.exists(each)), root)
        try:
            with tempfile.TemporaryFile(dir=there):
                return shutil.disk_usage(there).free
        except OSError as error:  # of the folder, not of the temporary file
            raise OSError(error.errno, error.strerror or str(error), str(there)) from error


def save(path: Path, content: bytes) -> None:
    """A file made from a run, its folder made if need be; never half of it. Raises CannotWrite."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        target = paths.resolved(path)  # else a link would be replaced, not what it points to
        if os.path.isfile(target) or not os.path.exists(target):
            replace(target, content)
        else:  # /dev/stdout, a pipe
            target.write_bytes(content)


def save_below(root: Path, path: Path, content: bytes) -> None:
    """Write a file below an output folder, such as that of results, and make its folders. Raises CannotWrite.

    No link below `root` is followed, since what is there may come from anybody: one in place of the file is
    replaced, one in place of a folder is an error. `root` itself may be a link, to a larger disk say.
    """
    with writing(path):
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for below in [*reversed(path.relative_to(root).parents)][1:]:
                parent, folder = folder, _opened(folder, root / below)
                os.close(parent)
            _replace_in(folder, path.name, content)
        finally:
            os.close(folder)


def _opened(parent: int, path: Path) -> int:
    """The folder `path`, which is in the open folder `parent`; made if it is not there."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path.name, dir_fd=parent)
        return os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError as error:
        raise OSError(error.errno, NO_FOLDER, str(path)) from error


def _replace_in(folder: int, name: str, content: bytes) -> None:
    temporary = f".{secrets.token_hex(8)}.tmp"
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


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
        hint = OPEN if error.errno in (EMFILE, ENFILE) else HINT
        raise CannotWrite(f"{where}: {error.strerror or error}{detail}", hint) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """UnreadableInput for an OSError."""
    try:
        yield
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}", "accelbench list runs") from error


def lock(path: Path) -> int:
    """A descriptor that keeps other processes from adding to a run or fleet, until it is closed.

    A fleet has its lock on its file, since it would need a descriptor for each of its runs. Where the file
    system has no locks it keeps nobody away. Raises CannotWrite.
    """
    with writing(path):
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
