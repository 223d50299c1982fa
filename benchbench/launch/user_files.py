"""Imports a user's workload files in a separate process, within a time limit.

A file that exits, hangs or crashes the process has a mistake. The next request starts a new process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any

import msgspec

from benchbench import paths, registry
from benchbench.errors import UsageError, page
from benchbench.format import visible
from benchbench.launch.channel import Channel
from benchbench.launch.project import UserCode, warn_of_first_execution
from benchbench.machine.environment import cache_folder
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import Cost
from benchbench.model.placement import Strategy
from benchbench.redaction import hide_in_message

LIMIT_S = 10.0  # to import a file or compute a workload's cost; then the process ends itself
START_S = 2.0  # added for starting the process
SLOW = "takes more than"
AGAIN, REMEMBERED_S = "not imported again within an hour, unless it changes", 3600.0
MORE = f"{page('workloads')} says what a workload file must have."


class _Mistake(msgspec.Struct):
    text: str
    line: int | None


class _Workload(msgspec.Struct):
    name: str
    summary: str
    phase: Phase
    defaults: dict[str, Scalar]
    written_for: list[str]
    draws_tolerated: float
    version: int
    refused_on_cpu: str
    worlds: list[int]
    divided_by: dict[str, list[Strategy]]
    lacking: dict[str, str]
    formerly: str


class _Described(msgspec.Struct):
    """What a file defines."""

    workloads: list[_Workload] = []
    mistakes: list[_Mistake] = []
    refused: str = ""


class _Figures(msgspec.Struct):
    """A workload at given parameters; `refused`: why there is none."""

    params: dict[str, Scalar] = {}
    refused_dtypes: dict[Dtype, str] = {}
    costs: dict[Dtype, Cost | None] = {}
    multiplications_saved: float | None = None
    backward_passes: int = 1
    refused: str = ""
    hint: str = ""
    mistakes: list[_Mistake] = []


@dataclass(frozen=True, slots=True)
class FileMistake:
    """A mistake in a file or folder. `stem`: the file's name without its ending; "" for a folder."""

    text: str
    stem: str = ""


@dataclass(frozen=True, slots=True)
class UserWorkloadSize:
    """A user's workload at given parameters."""

    params: dict[str, Scalar]
    refused: dict[Dtype, str]
    costs: dict[Dtype, Cost | None]
    multiplications_saved: float | None
    backward_passes: int

    def refuses(self, dtype: Dtype) -> str:
        """Why it cannot be computed in `dtype`, else ""."""
        return self.refused[dtype]

    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs, bytes and items of one step. Raises UsageError for a dtype that it refuses."""
        if (cost := self.costs[dtype]) is None:
            raise UsageError(self.refused[dtype])
        return cost


class UserWorkload:
    """A workload that a user's file defines, without parameters."""

    __name__: str  # it is used wherever a workload's class is

    def __init__(self, facts: _Workload, file: Path, process: UserFilesProcess) -> None:
        self.name = self.__name__ = facts.name
        self.summary, self.phase = facts.summary, facts.phase
        self.draws_tolerated = facts.draws_tolerated
        self.version, self.refused_on_cpu = facts.version, facts.refused_on_cpu
        self.formerly = facts.formerly
        self.worlds, self.lacking = tuple(facts.worlds), facts.lacking
        self._facts, self._file, self._process = facts, file, process
        self._at = lru_cache(maxsize=None)(self._ask_size)

    def fields(self) -> dict[str, Scalar]:
        """Parameter → default."""
        return dict(self._facts.defaults)

    def strategies(self, framework: str) -> tuple[Strategy, ...]:
        """How the framework's program can be divided among several devices; () if not at all."""
        return tuple(self._facts.divided_by.get(framework, ()))

    def frameworks(self) -> list[str]:
        """The frameworks it has builders for."""
        return list(self._facts.written_for)

    def __call__(self, **params: Scalar) -> UserWorkloadSize:
        """The workload at these parameters. Raises UsageError, also for a mistake in the file."""
        return self._at(tuple(params.items()))

    def _ask_size(self, params: tuple[tuple[str, Scalar], ...]) -> UserWorkloadSize:
        question = {"workload": self.name, "params": dict(params), "file": str(self._file)}
        figures = self._process.ask(question, _Figures)
        if figures.refused:
            raise UsageError(figures.refused, figures.hint)
        if figures.mistakes:
            raise UsageError(placed(self._file, figures.mistakes[0]), MORE)
        saved = figures.multiplications_saved
        passes = figures.backward_passes
        return UserWorkloadSize(figures.params, figures.refused_dtypes, figures.costs, saved, passes)


class UserFilesProcess:
    """The process that imports the user's files: started at the first request, replaced after a failure."""

    def __init__(self, code: UserCode, limit_s: float = LIMIT_S, start_s: float = START_S) -> None:
        self._code, self._limit_s, self._start_s = code, limit_s, start_s
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None

    def ask(self, question: dict[str, Any], kind: Any) -> Any:
        """Return the answer as a `kind`. Without an answer, its `mistakes` describe how the process ended."""
        try:
            channel = self._channel or self._started()
            channel.send(question)
            answer = channel.receive(self._limit_s + self._start_s)
            if answer is not None:
                return msgspec.convert(hide_in_message(answer), kind)
            text = self._ending()
        except TimeoutError:
            text = f"no answer within {self._limit_s + self._start_s:g} s"
        except ValueError as error:  # msgspec's are ones
            text = f"its answer cannot be read: {error}"
        except OSError as error:  # no more processes or descriptors
            text = f"no process to import it: {error.strerror}"
        self.close()
        return kind(mistakes=[_Mistake(text, None)])

    def close(self) -> None:
        """End the process and its children. The next request starts another."""
        if self._end:
            self._end()
        self._channel = self._process = self._end = None

    def _started(self) -> Channel:
        warn_of_first_execution()
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join([root, *self._code.sources, *self._code.python_path])
        folders = os.pathsep.join(self._code.workloads)
        own = [str(theirs.fileno()), str(self._limit_s)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchbench.worker.user_files", *own],
                env={**os.environ, "PYTHONPATH": path, registry.WORKLOAD_PATH: folders},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self._end = weakref.finalize(self, _end, self._process, self._channel)  # also when this one exits
        return self._channel

    def _ending(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(self._start_s)
        except subprocess.TimeoutExpired:
            return "it closes the connection to the process that imports it"
        if code == -signal.SIGALRM:
            return f"it {SLOW} {self._limit_s:g} s"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended the process that imported it: {how}"


def _end(process: subprocess.Popen[bytes], channel: Channel) -> None:
    channel.close()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def described_workloads(
    file: Path, module: str, process: UserFilesProcess
) -> tuple[list[UserWorkload], Iterable[FileMistake]]:
    """The workloads that a file defines, and its mistakes."""
    described = _known_slow(file) or process.ask({"module": module, "file": str(file)}, _Described)
    if any(SLOW in mistake.text for mistake in described.mistakes):
        _remember_slow(file)
    mistakes = [*described.mistakes, *([_Mistake(described.refused, None)] if described.refused else [])]
    stem = module.rpartition(".")[2]
    return (
        [UserWorkload(facts, file, process) for facts in described.workloads],
        [FileMistake(placed(file, mistake), stem) for mistake in mistakes],
    )


def _known_slow(file: Path) -> _Described | None:
    """The mistake of a file that recently took too long, so that not every command waits for it again."""
    with suppress(OSError):
        if time() - _memory(file).stat().st_mtime < REMEMBERED_S:
            return _Described(mistakes=[_Mistake(f"{AGAIN}: it {SLOW} {LIMIT_S:g} s", None)])
    return None


def _remember_slow(file: Path) -> None:
    """Mark the file as slow in the user's cache, if that is writable."""
    with suppress(OSError):
        memory = _memory(file)
        if not os.path.exists(memory):
            memory.parent.mkdir(parents=True, exist_ok=True)
            memory.touch()


def _memory(file: Path) -> Path:
    """Path of the mark in the cache for the file's present state. Raises OSError."""
    state = file.stat()
    content = f"{paths.resolved(file)}\0{state.st_mtime_ns}\0{state.st_size}"
    return cache_folder("slow-workloads") / sha256(content.encode(errors="replace")).hexdigest()[:24]


def placed(file: Path, mistake: _Mistake) -> str:
    """`mine/x.py, line 3: what is wrong`, safe to show."""
    line = f", line {mistake.line}" if mistake.line else ""
    return visible(f"{shown(file)}{line}: {mistake.text}")


def shown(path: Path) -> str:
    """The path, relative to the working folder where it lies below it."""
    here = paths.working_folder()
    return str(path.relative_to(here)) if here and path.is_relative_to(here) else str(path)
