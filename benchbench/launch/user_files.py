"""The user's workload files, imported by a worker within a time limit.

If a file exits, hangs or crashes the worker, that is a mistake in the file. The next job starts a new worker.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TypeVar

import msgspec

from benchbench import paths
from benchbench.errors import UsageError, page
from benchbench.format import visible
from benchbench.launch.project import UserCode
from benchbench.launch.transport import Answer, Message, RunJob
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import Cost, ModelFacts
from benchbench.model.placement import Strategy
from benchbench.model.run import Settings

T = TypeVar("T", "_FileDescription", "_SizeDescription")
TIMEOUT_S = 10.0  # to import a file or compute a workload's cost
HINT = f"{page('workloads')} says what a workload file must have."


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
    unsupported: dict[str, str]


class _FileDescription(msgspec.Struct):
    """The workloads and mistakes in a file; `refused`: why the file has none."""

    workloads: list[_Workload] = []
    mistakes: list[_Mistake] = []
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserWorkloadSize:
    """A user's workload or model at given parameters, as described by `worker.user_files.describe_size`."""

    params: dict[str, Scalar]
    refused: dict[Dtype, str]
    costs: dict[Dtype, Cost | None]
    multiplications_saved: float | None = None
    backward_passes: int = 1
    work_version: int | str = ""
    model_facts: ModelFacts | None = None

    def refuses(self, dtype: Dtype) -> str:
        """Reason why no framework can compute it in `dtype`, or ""."""
        return self.refused[dtype]

    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs, bytes and items of one step. Raises UsageError for a refused dtype."""
        if (cost := self.costs[dtype]) is None:
            raise UsageError(self.refused[dtype])
        return cost


class _SizeDescription(msgspec.Struct):
    """A workload at given parameters; `refused`: why these parameters are refused."""

    size: UserWorkloadSize | None = None
    refused: str = ""
    hint: str = ""
    mistakes: list[_Mistake] = []


@dataclass(frozen=True, slots=True)
class FileMistake:
    """A mistake in a file or folder. `stem`: the file's name without its suffix; "" for a folder."""

    text: str
    stem: str = ""


class UserWorkload:
    """A workload of a user's file, without parameters. It has the attributes of a class of workloads."""

    __name__: str

    def __init__(self, facts: _Workload, file: Path, run_job: RunJob) -> None:
        self.name = self.__name__ = facts.name
        self.summary, self.phase = facts.summary, facts.phase
        self.draws_tolerated = facts.draws_tolerated
        self.version, self.refused_on_cpu = facts.version, facts.refused_on_cpu
        self.worlds, self.unsupported = tuple(facts.worlds), facts.unsupported
        self._facts, self._file, self._run_job = facts, file, run_job
        self._size_at = lru_cache(maxsize=None)(self._describe_at)

    def fields(self) -> dict[str, Scalar]:
        """Default of each parameter."""
        return dict(self._facts.defaults)

    def strategies(self, framework: str) -> tuple[Strategy, ...]:
        """Strategies by which the framework's program can be divided among devices; () if none."""
        return tuple(self._facts.divided_by.get(framework, ()))

    def frameworks(self) -> list[str]:
        """Frameworks with a builder."""
        return list(self._facts.written_for)

    def __call__(self, **params: Scalar) -> UserWorkloadSize:
        """The workload at these parameters. Raises UsageError, also for a mistake in the file."""
        return self._size_at(tuple(params.items()))

    def _describe_at(self, params: tuple[tuple[str, Scalar], ...]) -> UserWorkloadSize:
        job = {"workload": self.name, "params": dict(params), "file": str(self._file)}
        description = _describe(job, _SizeDescription, self._run_job)
        if description.size is None:
            text = description.refused or mistake_text(self._file, description.mistakes[0])
            raise UsageError(text, description.hint if description.refused else HINT)
        return description.size


class UserFilesProcess:
    """Runs jobs in a process that imports the user's files: started at the first job, replaced if it ends."""

    def __init__(self, code: UserCode, timeout_s: float = TIMEOUT_S) -> None:
        self._code = code
        self._settings = Settings(threads=1, timeout_s=timeout_s)
        self._run_job = cache(self._start)

    def __call__(self, job: Message) -> Answer:
        return self._run_job()(job)

    def _start(self) -> RunJob:
        # Imported here, since most commands measure nothing and read no file of the user.
        from benchbench.launch.pool import WorkerPool
        from benchbench.launch.workers import REFERENCE

        pool = WorkerPool((), self._settings, sys.executable, self._code).__enter__()
        # The finalizer also ends the process when this interpreter exits.
        weakref.finalize(self, pool.__exit__, None, None, None)
        return partial(pool.run_job, target=REFERENCE.target)


def _describe(job: Message, kind: type[T], run_job: RunJob) -> T:
    """Describe a file or a size of its workload. Without an answer, the mistake is how the process ended."""
    answer = run_job({"kind": "workloads", **job})
    text = f"the process that imported it: {answer.message}"
    if answer.reply is not None:
        try:
            return msgspec.convert(answer.reply, kind)
        except ValueError as error:
            text = f"its description cannot be read: {error}"
    return kind(mistakes=[_Mistake(text, None)])


def described_workloads(
    file: Path, module: str, run_job: RunJob
) -> tuple[list[UserWorkload], Iterable[FileMistake]]:
    """The workloads that a file defines, and its mistakes."""
    description = _describe({"module": module, "file": str(file)}, _FileDescription, run_job)
    mistakes = [*description.mistakes]
    if description.refused:
        mistakes.append(_Mistake(description.refused, None))
    stem = module.rpartition(".")[2]
    return (
        [UserWorkload(facts, file, run_job) for facts in description.workloads],
        [FileMistake(mistake_text(file, mistake), stem) for mistake in mistakes],
    )


def mistake_text(file: Path, mistake: _Mistake) -> str:
    """`mine/x.py, line 3: message`, without control characters."""
    line = f", line {mistake.line}" if mistake.line else ""
    return visible(f"{relative_path(file)}{line}: {mistake.text}")


def relative_path(path: Path) -> str:
    """The path, relative to the working folder if it is in it."""
    here = paths.working_folder()
    return str(path.relative_to(here)) if here and path.is_relative_to(here) else str(path)
