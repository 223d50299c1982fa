"""Environments of this user and other interpreters: list them, and choose the interpreter of each backend."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from benchbench import paths, registry
from benchbench.backends.base import backend_class
from benchbench.errors import CannotWrite, UsageError, unknown
from benchbench.machine.environment import CACHE, cache_folder
from benchbench.model.device import Target
from benchbench.model.options import parse_interpreters
from benchbench.store import disk

RECORD = "accelbench-env.json"
SCHEMA = 1  # version of the record format
LABEL = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
START_S = 20.0  # time-out for starting an interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Record of an environment, written after it was built and checked."""

    schema: int = SCHEMA
    name: str
    backend: str
    requirements: tuple[str, ...]
    python: str  # version
    created: str  # ISO 8601, UTC
    main: tuple[str, ...]  # the requested packages
    packages: dict[str, str]  # name → version
    bytes: int
    broken: str = ""  # why its framework could not be imported after the build


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentState:
    """Current state of an environment; `record` is None if it was not built completely."""

    name: str
    backend: str
    record: Environment | None
    health: Literal["ready", "broken", "incomplete", "building"]
    reason: str = ""

    @property
    def python(self) -> str:
        return str(interpreter_in(environment_folder(self.name)))

    @property
    def usable(self) -> bool:
        """True if a worker can be started. An environment recorded as broken may have been repaired."""
        return self.record is not None and (self.health == "ready" or self.reason == self.record.broken)


def environments_folder() -> Path:
    """Folder of all environments; it may not exist yet."""
    return cache_folder("envs")


def environment_folder(name: str) -> Path:
    return environments_folder() / name


def interpreter_in(environment: Path) -> Path:
    return environment / "bin" / "python"


def split_name(name: str) -> tuple[str, str]:
    """Split a target's name: `torch@2.12` → ("torch", "2.12"). Raises UsageError."""
    backend, at, label = name.partition("@")
    backends = registry.entry_names("benchbench.backends")
    if backend not in backends:
        raise UsageError(f"No backend named {backend!r}.", unknown("backends", backend, backends))
    if at and not LABEL.fullmatch(label):
        raise UsageError(
            f"{name!r} has no label after its @.",
            f"Up to 64 letters, digits, dots, underscores and hyphens: {backend}@2.12, {backend}@nightly.",
        )
    return backend, label


def environment_names() -> list[str]:
    """Sorted names of the environments, complete or not."""
    folders = paths.listed(environments_folder())
    return [folder.name for folder in folders if os.path.isdir(folder) and _is_target_name(folder.name)]


def _is_target_name(name: str) -> bool:
    with suppress(UsageError):
        return bool(split_name(name))
    return False


def find_environment(name: str) -> EnvironmentState:
    """Find the state of an environment in `environment_names()`. Starts its interpreter, but no framework."""
    state = partial(EnvironmentState, name=name, backend=split_name(name)[0])
    if not os.path.exists(environment_folder(name) / RECORD):
        if disk.is_locked(_lock(name)):
            return state(record=None, health="building", reason="it is being built now")
        return state(record=None, health="incomplete", reason="it is incomplete")
    record = _record(environment_folder(name) / RECORD)
    if isinstance(record, str):
        return state(record=None, health="broken", reason=record)
    started = version_of(interpreter_in(environment_folder(name))) is not None
    reason = record.broken if started else "its interpreter does not start"
    return state(record=record, health="broken" if reason else "ready", reason=reason)


def _record(path: Path) -> Environment | str:
    """Read a record, or return why that failed."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Environment)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return "its record cannot be read"
    return record if record.schema <= SCHEMA else "its record was written by a newer accelbench"


def version_of(python: Path) -> tuple[int, int, int] | None:
    """Version of an interpreter, or None if it does not start."""
    command = [str(python), "-I", "-c", "import sys; print(*sys.version_info[:3])"]
    try:
        process = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=START_S, check=True
        )
        major, minor, micro = map(int, process.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor, micro


@contextmanager
def locked(name: str) -> Iterator[int]:
    """Lock an environment for this process and for children that inherit the descriptor.

    Raises CannotWrite if another process has the lock.
    """
    try:
        environments_folder().mkdir(parents=True, exist_ok=True)
        _lock(name).touch()
    except OSError as error:
        raise CannotWrite(
            f"{environments_folder()}: {error.strerror}", f"{CACHE} names another folder."
        ) from error
    message = f"{name} is being built or removed by another process."
    descriptor = disk.lock(_lock(name), message, "Wait until it ends.")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(name: str) -> Path:
    # Outside of the environment: removing a locked file would allow a second lock.
    return environments_folder() / f".{name}.lock"


def remove_environment(name: str) -> None:
    """Remove an environment, its record first, so that an interrupted removal leaves it incomplete.

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
    """Size of the files in a folder, not following links."""
    return sum(
        path.lstat().st_size for top, _, files in os.walk(folder) for path in map(Path(top).joinpath, files)
    )


VARIABLE = "ACCELBENCH_PYTHON"  # NAME=PATH, separated like the folders of PATH
OLDEST = (3, 11)  # Python version that can run a worker


def interpreter(text: str) -> str:
    """Absolute path of an interpreter or of a virtual environment's interpreter. Raises UsageError."""
    path = paths.absolute(paths.expanded(text))
    if os.path.isdir(path):
        path = interpreter_in(path)
    version = version_of(path)
    if version is None:
        raise UsageError(
            f"{path} does not start as a Python.", "Name an interpreter, or a virtual environment."
        )
    if version < OLDEST:
        actual, required = (".".join(map(str, numbers)) for numbers in (version, OLDEST))
        raise UsageError(f"{path} is Python {actual}.", f"accelbench needs {required} or later.")
    return str(path)


def check_interpreters(paths: Mapping[str, str]) -> dict[str, str]:
    """Check names and interpreters, and make their paths absolute. Raises UsageError."""
    for name in paths:
        split_name(name)
    return {name: interpreter(path) for name, path in paths.items()}


def absolute_interpreters(paths: Mapping[str, str]) -> dict[str, str]:
    """Interpreters by name: those in `paths`, then those of ACCELBENCH_PYTHON. Raises UsageError."""
    entries = [text for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text.strip()]
    return check_interpreters(parse_interpreters(entries) | dict(paths))


def choose_targets(names: Sequence[str], paths: Mapping[str, str], *, labelled: bool = False) -> list[Target]:
    """Choose targets by name. `paths`: name → interpreter; they override those of ACCELBENCH_PYTHON.

    Raises UsageError, also for an interpreter in `paths` whose name is not selected.
    """
    selected = targets(names, absolute_interpreters(paths), labelled=labelled)
    for name in paths.keys() - {target.name for target in selected}:
        raise UsageError(f"--python names {name!r}, which is not selected.", f"Add it: -b {name}")
    return selected


def targets(
    names: Sequence[str], interpreters_by_name: Mapping[str, str], *, labelled: bool = False
) -> list[Target]:
    """Create targets by name, without duplicates. Raises UsageError.

    A target's interpreter is the one in `interpreters_by_name`, or that of its environment. A target without
    a label may use the running one. Without names, every backend with real time is a target; `labelled` adds
    every environment.
    """
    target_names = dict.fromkeys(names) or dict.fromkeys(
        name for name in registry.entry_names("benchbench.backends") if not is_virtual(name)
    )
    if labelled and not names:
        target_names |= dict.fromkeys(sorted({*environment_names(), *interpreters_by_name}))
    return [_target(name, interpreters_by_name) for name in target_names]


def is_virtual(backend: str) -> bool:
    """True if a backend simulates its time, which other programs cannot disturb."""
    return backend_class(backend).virtual


def _target(name: str, interpreters_by_name: Mapping[str, str]) -> Target:
    backend, label = split_name(name)
    if name in interpreters_by_name:
        remedy = f"install {backend} for the interpreter given as {name}"
        return Target(name=name, backend=backend, python=interpreters_by_name[name], remedy=remedy)
    if name in environment_names():
        return _environment_target(find_environment(name))
    if label:
        existing = sorted({*environment_names(), *interpreters_by_name})
        hint = f"accelbench env create {name} builds one, --python {name}=PATH names one."
        raise UsageError(
            f"No interpreter for {name!r}.", f"{hint} There are: {', '.join(existing) or 'none'}."
        )
    return Target(name=name, backend=backend, python=sys.executable)


def _environment_target(environment: EnvironmentState) -> Target:
    create = f"accelbench env create {environment.name}"
    return Target(
        name=environment.name,
        backend=environment.backend,
        python=environment.python,
        fault="" if environment.usable else f"its environment cannot be used: {environment.reason}",
        remedy=f"accelbench env rm {environment.name}, then {create}"
        if environment.health == "ready"
        else create,
    )
