"""Run folders: ids and tags, durable atomic writes with helpful errors, and locks.

A lock on a run's folder ends with the process that took it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from errno import EMFILE, ENFILE
from pathlib import Path
from time import sleep
from typing import Protocol

from benchbench import paths
from benchbench.errors import CannotWrite, UnreadableInput
from benchbench.reading import unix_time

HINT = "Free space there or make it writable, or choose another folder."
OPEN = "Allow more open files: ulimit -n 4096"
NO_FOLDER = "it is a link or no folder; links below an output folder are not followed"
TRIES, PAUSE_S = 5, 0.05  # another process that calls `is_locked` has the lock for a moment


def free_bytes(root: Path) -> int:
    """Free disk space of an existing or future folder. Raises CannotWrite if it is not writable."""
    with writing(root):
        existing = next(
            (folder for folder in (root, *paths.absolute(root).parents) if os.path.exists(folder)), root
        )
        try:
            with tempfile.TemporaryFile(dir=existing):
                return shutil.disk_usage(existing).free
        except OSError as error:  # name the folder in the error, not the temporary file
            raise OSError(error.errno, error.strerror or str(error), str(existing)) from error


def save(path: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder if needed. Raises CannotWrite."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        target = paths.resolved(path)  # write through a link instead of replacing it
        if os.path.isfile(target) or not os.path.exists(target):
            replace(target, content)
        else:  # /dev/stdout, a pipe
            target.write_bytes(content)


def save_below(root: Path, path: Path, content: bytes) -> None:
    """Write a file below an output folder and create its folders. Raises CannotWrite.

    No link below `root` is followed, since its content may come from anybody: a link in place of the file is
    replaced, one in place of a folder is an error. `root` itself may be a link, for example to a larger disk.
    """
    with writing(path):
        root.mkdir(parents=True, exist_ok=True)
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for below in [*reversed(path.relative_to(root).parents)][1:]:
                parent, folder = folder, _open_below(folder, root / below)
                os.close(parent)
            _replace_in(folder, path, content)
        finally:
            os.close(folder)


def _open_below(parent: int, path: Path) -> int:
    """Open the folder `path` below the open folder `parent`, creating it if needed."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path.name, dir_fd=parent)
        return os.open(path.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:  # name the whole path in the error
        reason = NO_FOLDER if isinstance(error, NotADirectoryError) else error.strerror or str(error)
        raise OSError(error.errno, reason, str(path)) from error


def _replace_in(folder: int, path: Path, content: bytes) -> None:
    """Replace the file `path` in its open folder: on an error, its old content stays."""
    temporary = f".{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)  # a new name survives a power cut only then
    except OSError as error:  # name the target in the error, not the temporary file
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def replace(path: Path, content: bytes) -> None:
    """Write a file atomically: on an error, its old content stays."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _replace_in(folder, path, content)
    finally:
        os.close(folder)


def sync(folder: Path) -> None:
    """Flush a folder: new names in it survive a power cut only then."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path, detail: str = "") -> Iterator[None]:
    """Turn an OSError into CannotWrite; `detail` is appended to the message."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        hint = OPEN if error.errno in (EMFILE, ENFILE) else HINT
        raise CannotWrite(f"{place}: {error.strerror or error}{detail}", hint) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError into UnreadableInput."""
    try:
        yield
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}", "accelbench list runs") from error


def lock(path: Path, message: str = "", hint: str = "") -> int:
    """Lock a run or fleet against additions by other processes; returns a descriptor to close.

    `message` and `hint`: of the error if another process has locked it, by default those of a run.
    A fleet is locked by its file, since locking each of its runs would take a descriptor for each. On a file
    system without locks this has no effect. Raises CannotWrite.
    """
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
    for _ in range(TRIES):
        if _try_lock(descriptor):
            return descriptor
        sleep(PAUSE_S)
    os.close(descriptor)
    message = message or f"Another process is adding to {path.stem!r}."
    raise CannotWrite(message, hint or "Wait until it has ended, or choose another name.")


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Lock a run and the runs inside it. Raises CannotWrite if another process is adding to one."""
    with ExitStack() as locks:
        for run in _run_folders(folder):
            locks.callback(os.close, lock(run))
        yield


def in_use(folder: Path) -> bool:
    """True if another process is adding to the run or to one inside it."""
    return any(map(is_locked, _run_folders(folder)))


def _run_folders(folder: Path) -> list[Path]:
    """Return the run's folder and the folders of second tests inside it."""
    return [path for path in (folder, *paths.listed(folder / "runs")) if os.path.isdir(path)]


def is_locked(path: Path) -> bool:
    """True if another process is adding to the run or fleet."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True


CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ULID = re.compile(f"[0-7][{CROCKFORD}]{{25}}")
COMMIT = "commit"  # set automatically in a git checkout
DIRTY = "-dirty"  # suffix of a commit whose files were changed
FLEET, MACHINE, INSTEAD_OF = "fleet", "machine", "instead-of"  # set for the runs of a fleet
BISECT, VERSION = "bisect", "version"  # set for the runs of a bisection
HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b")  # SHA-1 or SHA-256


class IdSource:
    """Create ids that sort by time. Each is greater than the last, even if the clock goes back."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, now: float | None = None, randomness: Callable[[int], bytes] = os.urandom) -> str:
        """Create a ULID: 48 bits of Unix milliseconds, 80 random bits, in base 32 (github.com/ulid/spec)."""
        milliseconds = int((time.time() if now is None else now) * 1000)
        fresh = milliseconds << 80 | int.from_bytes(randomness(10))
        if fresh <= self._last:  # a random step, since forked processes share `_last`
            fresh = self._last + 1 + int.from_bytes(randomness(8))
        self._last = fresh
        return "".join(CROCKFORD[fresh >> shift & 31] for shift in range(125, -1, -5))

    def follow(self, name: str) -> None:
        """Make all later ids greater than `name`, a ULID."""
        self._last = max(self._last, _number(name))


new_id = IdSource()


class Dated(Protocol):
    """A run's id, start time and tags."""

    @property
    def id(self) -> str:
        """A ULID, unless the run was renamed."""

    @property
    def started(self) -> str:
        """Start time in ISO 8601, UTC."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags as name → value."""


def start_time(info: Dated) -> float:
    """Start time of a run in Unix seconds, from its id if that is a ULID; 0 if unknown."""
    if ULID.fullmatch(info.id):
        return (_number(info.id) >> 80) / 1000
    with suppress(ValueError):
        return unix_time(info.started)
    return 0.0


def _number(ulid: str) -> int:
    return sum(CROCKFORD.index(letter) << 5 * place for place, letter in enumerate(reversed(ulid)))


def fleet_of(tags: Mapping[str, str]) -> str:
    """Id of the fleet that a run with these tags belongs to, or an empty text."""
    return tags[FLEET] if MACHINE in tags and ULID.fullmatch(tags.get(FLEET, "")) else ""


def bisect_of(tags: Mapping[str, str]) -> str:
    """Id of the bisection that a run with these tags belongs to, or an empty text."""
    return tags[BISECT] if VERSION in tags and ULID.fullmatch(tags.get(BISECT, "")) else ""


def commit_name(name: str, *, dirty: bool) -> str:
    """Value of the commit tag: the hash, with a suffix if files were changed."""
    return name + DIRTY if dirty else name


def short(value: str) -> str:
    """Shorten the hashes in a text to twelve digits."""
    return HASH.sub(r"\1", value)


def tags_text(tags: Mapping[str, str]) -> str:
    """Format tags as `commit=1f0c2a9b7d3e, branch=main`."""
    return ", ".join(f"{name}={short(value)}" for name, value in tags.items())
