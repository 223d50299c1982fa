"""What a machine is sent, a JSON object, and what it answers: lines, each of a kind and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchbench.errors import UnreadableInput
from benchbench.model.case import Case
from benchbench.model.device import Machine
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Policy
from benchbench.store.codec import LIMIT
from benchbench.wire import LineBuffer

MOST_BYTES = LIMIT + 32  # of a line: its kind stands before what is stored
UNREADABLE = "what it sent cannot be read: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """`describe` itself, `measure` suites, measure these cases `again` as a new run, or `resume` a run.

    `suites`: (name, TOML), since the machine need not have the file. `head`, `records`: the files of the run
    that is resumed.
    """

    kind: Literal["describe", "measure", "again", "resume"]
    options: MeasureOptions = field(default_factory=MeasureOptions)
    suites: tuple[tuple[str, str], ...] = ()
    cases: tuple[Case, ...] = ()
    policy: Policy | None = None
    seed: int | None = None
    run: str = ""
    head: str = ""
    records: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A machine's hardware and packages, as far as they are known before anything is imported there."""

    version: str  # of accelbench
    machine: Machine
    packages: dict[str, str]  # distribution of a framework → its version
    commit: str = ""  # of the checkout that it works in


class LineKind(StrEnum):
    """What a line of the answer holds."""

    DESCRIPTION = "description"
    HEAD = "head"
    RECORD = "record"  # as it is stored, with its checksum
    NOTE = "note"
    STAGE = "stage"
    ERROR = "error"
    END = "end"  # the job came to its end


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One of the answer."""

    kind: LineKind
    content: bytes

    @property
    def text(self) -> str:
        """The text of a line that holds one."""
        return str(read_json(self.content, str))


def with_suites(options: MeasureOptions, suites: Sequence[tuple[str, str]], folder: Path) -> MeasureOptions:
    """The options with suites of which name and TOML are known, written to files below `folder`."""
    paths = []
    for number, (name, text) in enumerate(suites):
        path = folder / "suites" / str(number) / f"{name}.toml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        paths.append(str(path))
    return dataclasses.replace(options, suites=tuple(paths))


def job_bytes(job: NodeJob) -> bytes:
    """One line of JSON, without its end."""
    return msgspec.json.encode(job)


def read_job(text: bytes) -> NodeJob:
    """Raises UnreadableInput."""
    found: NodeJob = read_json(text, NodeJob)
    return found


def line_bytes(kind: LineKind, content: Any) -> bytes:
    """A line; bytes are JSON already."""
    own = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return kind.encode() + b" " + own + b"\n"


def read_json(text: bytes, kind: Any) -> Any:
    """Raises UnreadableInput."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableInput(str(error)[:200]) from error


class LineReader:
    """Whole lines of an answer that comes in pieces."""

    def __init__(self) -> None:
        self._lines = LineBuffer(MOST_BYTES)

    def lines(self, piece: bytes) -> Iterator[NodeLine]:
        """Those that `piece` completes. Raises UnreadableInput for what is none of ours."""
        self._lines.take(piece)
        while (line := self._next()) is not None:
            kind, _, content = line.partition(b" ")
            try:
                yield NodeLine(LineKind(kind.decode()), content)
            except ValueError as error:
                raise UnreadableInput(f"{kind[:20]!r} begins no line") from error

    def _next(self) -> bytes | None:
        """Raises UnreadableInput."""
        try:
            return self._lines.pop()
        except ValueError as error:
            raise UnreadableInput(f"a line of {error}") from error
