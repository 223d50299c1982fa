"""The user's workload files, imported in a separate process within a time limit.

If a file exits, hangs or crashes the process, that is a mistake in the file. The next request starts a new
process.
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
from pathlib import Path
from typing import Any

import msgspec

from benchbench import paths, registry
from benchbench.errors import UsageError, page
from benchbench.format import visible
from benchbench.launch.project import UserCode, warn_of_first_execution
from benchbench.launch.transport import Channel
from benchbench.model.case import Dtype, Phase, Scalar
from benchbench.model.measurement import Cost
from benchbench.model.placement import Strategy
from benchbench.redaction import hide_in_message

TIMEOUT_S = 10.0  # to import a file or compute a workload's cost; then the process ends itself
START_TIMEOUT_S = 2.0  # added for starting the process
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


class _SizeDescription(msgspec.Struct):
    """A workload at given parameters; `refused`: why these parameters are refused."""

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
    """A mistake in a file or folder. `stem`: the file's name without its suffix; "" for a folder."""

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
        """Reason why no framework can compute it in `dtype`, or ""."""
        return self.refused[dtype]

    def cost(self, dtype: Dtype) -> Cost:
        """FLOPs, bytes and items of one step. Raises UsageError for a refused dtype."""
        if (cost := self.costs[dtype]) is None:
            raise UsageError(self.refused[dtype])
        return cost


class UserWorkload:
    """A workload of a user's file, without parameters. It has the attributes of a class of workloads."""

    __name__: str

    def __init__(self, facts: _Workload, file: Path, process: UserFilesProcess) -> None:
        self.name = self.__name__ = facts.name
        self.summary, self.phase = facts.summary, facts.phase
        self.draws_tolerated = facts.draws_tolerated
        self.version, self.refused_on_cpu = facts.version, facts.refused_on_cpu
        self.worlds, self.unsupported = tuple(facts.worlds), facts.unsupported
        self._facts, self._file, self._process = facts, file, process
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
        request = {"workload": self.name, "params": dict(params), "file": str(self._file)}
        size = self._process.request(request, _SizeDescription)
        if size.refused:
            raise UsageError(size.refused, size.hint)
        if size.mistakes:
            raise UsageError(mistake_text(self._file, size.mistakes[0]), HINT)
        return UserWorkloadSize(
            params=size.params,
            refused=size.refused_dtypes,
            costs=size.costs,
            multiplications_saved=size.multiplications_saved,
            backward_passes=size.backward_passes,
        )


class UserFilesProcess:
    """The process that imports the user's files: started at the first request, replaced after a failure."""

    def __init__(
        self, code: UserCode, timeout_s: float = TIMEOUT_S, start_timeout_s: float = START_TIMEOUT_S
    ) -> None:
        self._code, self._timeout_s, self._start_timeout_s = code, timeout_s, start_timeout_s
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: Any = None

    def request(self, message: dict[str, Any], answer_type: Any) -> Any:
        """Send a request; return the answer. Without one, its `mistakes` describe how the process ended."""
        try:
            channel = self._channel or self._start()
            channel.send(message)
            answer = channel.receive(self._timeout_s + self._start_timeout_s)
            if answer is not None:
                return msgspec.convert(hide_in_message(answer), answer_type)
            text = self._ending()
        except TimeoutError:
            text = f"no answer within {self._timeout_s + self._start_timeout_s:g} s"
        except ValueError as error:  # also msgspec.ValidationError
            text = f"its answer cannot be read: {error}"
        except OSError as error:  # no more processes or descriptors
            text = f"no process to import it: {error.strerror}"
        self.close()
        return answer_type(mistakes=[_Mistake(text, None)])

    def close(self) -> None:
        """End the process and its children. The next request starts another."""
        if self._finalizer:
            self._finalizer()
        self._channel = self._process = self._finalizer = None

    def _start(self) -> Channel:
        warn_of_first_execution()
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join([root, *self._code.sources, *self._code.python_path])
        folders = os.pathsep.join(self._code.workloads)
        arguments = [str(theirs.fileno()), str(self._timeout_s)]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchbench.worker.user_files", *arguments],
                env={**os.environ, "PYTHONPATH": path, registry.WORKLOAD_PATH: folders},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = Channel(ours)
        # The finalizer also ends the process when this interpreter exits.
        self._finalizer = weakref.finalize(self, _end, self._process, self._channel)
        return self._channel

    def _ending(self) -> str:
        """How the process ended."""
        assert self._process is not None
        try:
            code = self._process.wait(self._start_timeout_s)
        except subprocess.TimeoutExpired:
            return "it closes the connection to the process that imports it"
        if code == -signal.SIGALRM:
            return f"it takes more than {self._timeout_s:g} s"
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended the process that imported it: {ending}"


def _end(process: subprocess.Popen[bytes], channel: Channel) -> None:
    channel.close()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def described_workloads(
    file: Path, module: str, process: UserFilesProcess
) -> tuple[list[UserWorkload], Iterable[FileMistake]]:
    """The workloads that a file defines, and its mistakes."""
    description = process.request({"module": module, "file": str(file)}, _FileDescription)
    mistakes = [*description.mistakes]
    if description.refused:
        mistakes.append(_Mistake(description.refused, None))
    stem = module.rpartition(".")[2]
    return (
        [UserWorkload(facts, file, process) for facts in description.workloads],
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
