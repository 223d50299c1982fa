"""Faults injected into a program's writes: the k-th one raises an error or ends the process as SIGKILL would.

A write is every write, flush, fsync, truncate, rename, link, unlink, mkdir and open for writing.
"""

from __future__ import annotations

import errno
import io
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchbench.errors import AccelbenchError

NAMES = ("write", "fsync", "ftruncate", "replace", "rename", "link", "symlink", "unlink", "rmdir", "mkdir")
ENDED = 9  # the exit code of a child that was ended at its write
Act = Callable[[], None]


def error() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end() -> None:
    os._exit(ENDED)


ACTS: dict[str, Act] = {"error": error, "end": end}


@dataclass(frozen=True)
class Outcome:
    """The end of a child. `promises`: values it had reported; `failure`: the expected error it ended with."""

    code: int
    promises: list[Any]
    failure: str
    operations: int


class _File:
    """An open file that counts its writes."""

    def __init__(self, file: Any, count: Callable[[], None]) -> None:
        self._file, self._count = file, count

    def write(self, content: Any) -> int:
        self._count()
        return int(self._file.write(content))

    def flush(self) -> None:
        self._count()
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Injector:
    """Counts operations once installed, and acts at operation `at`, counted from 0."""

    def __init__(self, at: int, act: Act) -> None:
        self._at, self._act = at, act
        self.count = 0

    def install(self) -> None:
        for name in NAMES:
            setattr(os, name, self._counting(getattr(os, name)))
        io_open, os_open = io.open, os.open

        def open_file(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            handle = io_open(file, mode, *more, **options)
            return _File(handle, self._tick) if set(mode) & set("wxa+") else handle

        def open_descriptor(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self._tick()
            return os_open(path, flags, *more, **options)

        io.open, os.open = open_file, open_descriptor

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_count(*arguments: Any, **options: Any) -> Any:
            self._tick()
            return function(*arguments, **options)

        return call_and_count

    def _tick(self) -> None:
        self.count += 1
        if self.count - 1 == self._at:
            self._act()


def run_in_child(work: Callable[[Callable[[Any], None]], None], at: int, act: Act) -> Outcome:
    """Run `work` in a fork with a fault at operation `at`; `work` gets a function that reports a promise."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads: the child only writes
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(work, writer, Injector(at, act))
    os.close(writer)
    with os.fdopen(reader) as lines:
        messages = [json.loads(line) for line in lines]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    promises = [value for kind, value in messages if kind == "promise"]
    failure = next((value for kind, value in messages if kind == "failure"), "")
    operations = next((value for kind, value in messages if kind == "operations"), 0)
    return Outcome(code, promises, failure, operations)


def _child(work: Callable[[Callable[[Any], None]], None], writer: int, injector: Injector) -> None:
    write = os.write

    def send(kind: str, value: Any) -> None:
        write(writer, json.dumps([kind, value]).encode() + b"\n")

    code = 1
    try:
        injector.install()
        work(lambda value: send("promise", value))
        code = 0
    except AccelbenchError as error:
        send("failure", str(error))
        code = error.exit_code
    except BaseException as error:  # noqa: BLE001 - a fault of the product, which the parent reports
        send("failure", f"{type(error).__name__}: {error}")
        code = 70
    finally:
        send("operations", injector.count)
        os._exit(code)


def every_fault(
    make: Callable[[], Callable[[Callable[[Any], None]], None]],
) -> Iterator[tuple[str, int, Outcome]]:
    """(act, index, outcome) for a fault at each operation in turn; `make` prepares fresh work each time."""
    count = run_in_child(make(), -1, error).operations
    for name, act in ACTS.items():
        for at in range(count):
            yield name, at, run_in_child(make(), at, act)
