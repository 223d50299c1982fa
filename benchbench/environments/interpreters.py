"""The register of environments: where they live, what their records say, and whether they can be used.

`build.py` builds them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from benchbench import paths, registry
from benchbench.errors import CannotWrite, UsageError, unknown
from benchbench.machine.environment import CACHE, cache_folder

RECORD = "accelbench-env.json"
SCHEMA = 1  # of the record. 1: first
LABEL = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
START_S = 20.0  # for an interpreter that does nothing
LOCK_TRIES, LOCK_WAIT_S = 5, 0.1  # `env list` holds a lock for an instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The record of an environment, written when it is built and checked."""

    schema: int = SCHEMA
    name: str
    backend: str
    requirements: tuple[str, ...]
    python: str  # version
    created: str  # ISO 8601, UTC
    main: tuple[str, ...]  # the packages that were asked for
    packages: dict[str, str]  # name → version
    bytes: int
    broken: str = ""  # why its framework could not be imported, right after it was built


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An environment as it is now; without a record unless it was built to the end."""

    name: str
    backend: str
    record: Environment | None
    health: Literal["ready", "broken", "incomplete", "building"]
    reason: str = ""

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(interpreter_in(environment_folder(self.name)))

    @property
    def usable(self) -> bool:
        """Whether a worker can be started; what is recorded as broken may have been mended since."""
        return self.record is not None and (self.health == "ready" or self.reason == self.record.broken)


def environments_folder() -> Path:
    """The folder of all environments; it need not exist."""
    return cache_folder("envs")


def environment_folder(name: str) -> Path:
    """The folder of one environment."""
    return environments_folder() / name


def interpreter_in(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    return environment / "bin" / "python"


def split_name(name: str) -> tuple[str, str]:
    """`torch@2.12` → ("torch", "2.12"); no label: "". Raises UsageError."""
    backend, at, label = name.partition("@")
    known = registry.entry_names("benchbench.backends")
    if backend not in known:
        raise UsageError(f"No backend named {backend!r}.", unknown("backends", backend, known))
    if at and not LABEL.fullmatch(label):
        raise UsageError(
            f"{name!r} has no label after its @.",
            f"Up to 64 letters, digits, dots, underscores and hyphens: {backend}@2.12, {backend}@nightly.",
        )
    return backend, label


def environment_names() -> list[str]:
    """The environments there are, complete or not, sorted."""
    found = paths.listed(environments_folder())
    return [each.name for each in found if os.path.isdir(each) and _named(each.name)]


def _named(name: str) -> bool:
    with suppress(UsageError):
        return bool(split_name(name))
    return False


def find_environment(name: str) -> Found:
    """The environment of that name, which must be one of `names()`; starts its interpreter, no framework."""
    backend, _ = split_name(name)
    if not os.path.exists(environment_folder(name) / RECORD):
        if _busy(name):
            reason = "it is being built now"
            return Found(name=name, backend=backend, record=None, health="building", reason=reason)
        reason = "it is incomplete"
        return Found(name=name, backend=backend, record=None, health="incomplete", reason=reason)
    record = _record(environment_folder(name) / RECORD)
    if isinstance(record, str):
        return Found(name=name, backend=backend, record=None, health="broken", reason=record)
    started = version_of(interpreter_in(environment_folder(name))) is not None
    reason = record.broken if started else "its interpreter does not start"
    health: Literal["ready", "broken"] = "broken" if reason else "ready"
    return Found(name=name, backend=backend, record=record, health=health, reason=reason)


def _record(path: Path) -> Environment | str:
    """What is written there, or why it says nothing."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Environment)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return "its record cannot be read"
    return found if found.schema <= SCHEMA else "its record was written by a newer accelbench"


def version_of(python: Path) -> tuple[int, int, int] | None:
    """The version of an interpreter; None where nothing of the kind starts."""
    command = [str(python), "-I", "-c", "import sys; print(*sys.version_info[:3])"]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=START_S, check=True
        )
        major, minor, micro = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor, micro


@contextmanager
def locked(name: str) -> Iterator[int]:
    """The environment is this process's alone, and that of children that inherit the descriptor.

    Raises CannotWrite when another has it.
    """
    try:
        environments_folder().mkdir(parents=True, exist_ok=True)
        descriptor = os.open(_lock(name), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise CannotWrite(
            f"{environments_folder()}: {error.strerror}", f"{CACHE} names another folder."
        ) from error
    try:
        for _ in range(LOCK_TRIES):
            if _taken(descriptor):
                break
            time.sleep(LOCK_WAIT_S)
        else:
            raise CannotWrite(f"{name} is being built or removed by another process.", "Wait until it ends.")
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(name: str) -> Path:
    return (
        environments_folder() / f".{name}.lock"
    )  # beside it: removing it would let two processes hold two locks


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(name: str) -> bool:
    try:
        descriptor = os.open(_lock(name), os.O_RDWR)
    except OSError:
        return False
    try:
        return not _taken(descriptor)
    finally:
        os.close(descriptor)


def remove_environment(name: str) -> None:
    """Whatever is there under that name, its record first: what is left of a removal cut short is incomplete.

    The caller has the lock. Raises CannotWrite.
    """
    try:
        (environment_folder(name) / RECORD).unlink(missing_ok=True)
        if os.path.exists(environment_folder(name)):
            shutil.rmtree(environment_folder(name))
    except OSError as error:
        raise CannotWrite(
            f"{error.filename}: {error.strerror}", "Make it writable, then try again."
        ) from error


def bytes_in(folder: Path) -> int:
    """What its files take, links not followed."""
    return sum(
        each.lstat().st_size for top, _, files in os.walk(folder) for each in map(Path(top).joinpath, files)
    )
