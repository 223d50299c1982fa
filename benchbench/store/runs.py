"""Runs on disk: a folder `<root>/runs/<id>/` with run.json and records.jsonl, one record per line.

end.json is written when a run ends by itself and counts the records: without it the run was interrupted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from enum import StrEnum
from errno import ELOOP, ENOENT
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from benchbench.errors import CannotWrite, UnreadableInput
from benchbench.format import visible
from benchbench.model.case import Case
from benchbench.model.record import SCHEMA, Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.redaction import Redaction, own_redaction
from benchbench.store import codec, disk
from benchbench.store.artifacts import profile_facts
from benchbench.store.codec import sealed
from benchbench.store.disk import is_locked, lock
from benchbench.store.naming import fleet_of

T = TypeVar("T")

RUNS, HEAD, RECORDS, END = "runs", "run.json", "records.jsonl", "end.json"
FLEETS = "fleets"  # the folder of what was asked of fleets, beside that of runs
NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What end.json holds."""

    records: int
    schema: int = SCHEMA
    checksums: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head(RunInfo):
    """What run.json holds. `checksums`: whether every line has one, and an ended run its end.json."""

    checksums: bool = False  # as in runs of before there were any


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSuite:
    suite: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListedHead:
    """What a list of runs needs of run.json."""

    schema: int
    id: str
    started: str
    command: tuple[str, ...]
    plan: tuple[_PlannedSuite, ...]
    tags: dict[str, str] = field(default_factory=dict)
    checksums: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """What a list of runs shows of one: `cases` are counted, `suites` those that they are of."""

    id: str
    started: str
    command: tuple[str, ...]
    cases: int
    suites: tuple[str, ...]
    tags: dict[str, str]
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stages:
    wall: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedLine:
    """What an estimate needs of a record."""

    case: Case
    outcome: _Outcome
    stages_s: _Stages = field(default_factory=_Stages)


class RunWriter:
    """Appends records to the run in a folder, a new one or one that was interrupted, and nobody else does."""

    def __init__(
        self,
        folder: Path,
        write: Callable[[int, bytes], int] | None = None,
        redact: Redaction | None = None,
    ) -> None:
        """`write`: by default os.write. `redact`: by default what every stored text passes.

        Raises CannotWrite, also where another process is adding to the run.
        """
        self.folder = folder
        self._path = folder / RECORDS
        self._write = write or os.write
        self._redact = redact or own_redaction()
        self._lock = lock(folder)
        try:
            with disk.writing(self._path):
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o666)
        except CannotWrite:
            os.close(self._lock)
            raise

    def append(self, record: Record) -> Record:
        """Append a record as a whole line, which is on disk when this returns.

        Returns what was stored: a failure in place of a record that could not be read again. Raises
        CannotWrite; earlier records stay valid.
        """
        record, text = codec.storable(record, self._redact)
        line = text + b"\n"
        with disk.writing(self._path, f" (the record has {len(line)} bytes)"):
            end = os.fstat(self._descriptor).st_size
            if end and os.pread(self._descriptor, 1, end - 1) != b"\n":
                line = b"\n" + line  # the last record was torn; this one must not be lost with it
            try:
                self._store(line)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, end)
                raise
        return record

    def _store(self, line: bytes) -> None:
        written = self._write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes could be written")
        os.fsync(self._descriptor)
        if not os.fstat(self._descriptor).st_nlink:  # else all that follows would be lost in silence
            raise OSError(ENOENT, "the run was removed while it was measured", str(self._path))

    def drop_torn(self) -> None:
        """Cut off a last line that is no whole record: a process that is killed may leave one."""
        with disk.writing(self._path):
            end = os.fstat(self._descriptor).st_size
            most = min(end, codec.LIMIT)
            last = os.pread(self._descriptor, most, end - most).rpartition(b"\n")[2]
            if len(last) < codec.LIMIT and not _is_record(last):
                os.ftruncate(self._descriptor, end - len(last))

    def end(self) -> None:
        """Write how many records there are, so that one that is lost later is missed. Raises CannotWrite."""
        count = sum(line != b"\n" for line in read_lines(self._path))
        text = sealed(codec.to_json(End(records=count), indent=1) + b"\n")
        with disk.writing(self._path):
            disk.replace(self._path.with_name(END), text)

    def close(self) -> None:
        """Close the file; every record is on disk already."""
        os.close(self._descriptor)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            self.close()


def create_run(root: Path, info: RunInfo) -> RunWriter:
    """Make the folder of a new run and write its head. Raises CannotWrite; then nothing is left behind."""
    if not NAME.fullmatch(info.id):
        raise ValueError(f"{info.id!r} cannot be the id of a run")
    return create_in(root / RUNS / info.id, info)


def make_parent(folder: Path) -> None:
    """Make the folder that a run's own is in. Raises OSError where it is a link."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(folder.parent):
        raise OSError(ELOOP, "is a link, and links in results are not followed", str(folder.parent))


def create_in(folder: Path, info: RunInfo, redact: Redaction | None = None) -> RunWriter:
    """A writer of a run whose folder is not there yet."""
    head = _head_text(info, redact)
    with disk.writing(folder):
        make_parent(folder)
        folder.mkdir()
    with ExitStack() as made:
        made.callback(shutil.rmtree, folder, ignore_errors=True)
        writer = RunWriter(folder, redact=redact)
        made.callback(writer.close)
        with disk.writing(folder):
            disk.replace(folder / HEAD, head)
            disk.sync(folder.parent)
        made.pop_all()
    return writer


def _head_text(info: RunInfo, redact: Redaction | None = None) -> bytes:
    given = {each.name: getattr(info, each.name) for each in fields(info)}
    text = codec.to_json(_Head(**given, checksums=True), indent=1, redact=redact or own_redaction())
    return codec.sealed_document(text + b"\n", _Head, f"the head of the run {info.id}")


def keep(root: Path, run: Run) -> Path:
    """Store a run that is complete already; its folder. Raises CannotWrite."""
    with create_run(root, run.info) as writer:
        for record in run.records:
            writer.append(record)
    return root / RUNS / run.info.id


def rewrite_head(folder: Path, info: RunInfo) -> None:
    """The head of the run in `folder` becomes `info`. Raises CannotWrite."""
    head = _head_text(info)
    with disk.writing(folder):
        disk.replace(folder / HEAD, head)


def _is_record(line: bytes) -> bool:
    with suppress(UnreadableInput):
        codec.decode(line, checksums=True)
        return True
    return False


def read_head(path: Path) -> RunInfo:
    """The head of the run in the folder `path`. Raises UnreadableInput, as `read` does."""
    return _head(path)[0]


def _head(path: Path) -> tuple[RunInfo, bool]:
    """The head, and whether the lines of its run have checksums."""
    hint = f"The records in {path / RECORDS} need it: restore it from a copy."
    stored = codec.document(path / HEAD, _Head, hint)
    if not NAME.fullmatch(stored.id):  # it names files elsewhere, such as a baseline's
        raise UnreadableInput(f"{path / HEAD}: {visible(stored.id[:100])!r} is not the id of a run", hint)
    info = RunInfo(**{each.name: getattr(stored, each.name) for each in fields(RunInfo)})
    return info, stored.checksums


def read_listed(path: Path) -> ListedRun:
    """What a list shows of the run in the folder `path`, without reading all of its head.

    Raises UnreadableInput.
    """
    hint = f"The records in {path / RECORDS} need it: restore it from a copy."
    stored = codec.part_of_document(path / HEAD, _ListedHead, _Head, hint)
    if not NAME.fullmatch(stored.id):
        raise UnreadableInput(f"{path / HEAD}: {visible(stored.id[:100])!r} is not the id of a run", hint)
    return ListedRun(
        id=stored.id,
        started=stored.started,
        command=stored.command,
        cases=len(stored.plan),
        suites=tuple(dict.fromkeys([each.suite for each in stored.plan])),
        tags=stored.tags,
        progress=_progress(path, stored.tags, checksums=stored.checksums),
    )


def read_run(path: Path) -> Run:
    """The run in the folder `path`. A line that cannot be read is named in `damaged` and costs only itself.

    So is a line that repeats another's case and round, or whose case is not in the plan, and so are records
    that end.json counts and that are not there. Raises UnreadableInput when run.json is missing, damaged or
    from a newer version.
    """
    info, checksums = _head(path)
    planned = {(case.suite, case.id) for case in info.plan}
    records: dict[tuple[str, str, int], Record] = {}
    damaged: list[str] = []
    lines = 0
    for number, line in enumerate(read_lines(path / RECORDS), start=1):
        if line == b"\n":
            continue
        lines += 1
        try:
            record = codec.decode(line.removesuffix(b"\n"), checksums=checksums)
        except UnreadableInput as error:
            damaged.append(f"line {number}: {error}")
            continue
        key = record.case.suite, record.case.id, record.round
        if key[:2] not in planned:
            damaged.append(f"line {number}: {record.case.id} is not in the plan of the run")
            continue
        if records.setdefault(key, record) is not record:
            damaged.append(f"line {number}: another line has round {record.round + 1} of {record.case.id}")
    ended, missing = _end(path, lines) if checksums else (True, [])
    profiles = profile_facts(path)
    return Run(
        info=info,
        records=tuple(records.values()),
        damaged=(*damaged, *missing),
        ended=ended,
        unprofiled=profiles.unprofiled,
        communication=profiles.communication,
        idle=profiles.idle,
    )


def read_walls(path: Path, lines: int) -> Iterator[tuple[str, float]]:
    """The case and the wall time in seconds of each measurement among the first `lines` of a run.

    For estimates: lines that cannot be read are left out. Raises UnreadableInput where none can be.
    """
    for line in islice(read_lines(path / RECORDS), lines):
        with suppress(UnreadableInput):
            found = codec.part_of_line(line.removesuffix(b"\n"), _TimedLine, checksums=False)
            if found.stages_s.wall and found.outcome.status == Status.OK:
                yield found.case.id, found.stages_s.wall


def _end(path: Path, lines: int) -> tuple[bool, list[str]]:
    """Whether the run ended by itself, and what is said of lines that are missing."""
    if not os.path.exists(path / END):
        return False, []
    try:
        count = codec.document(
            path / END, End, "Without it nothing tells whether records are missing."
        ).records
    except UnreadableInput as error:
        return True, [str(error)]
    return True, [f"{count - lines} of {count} records are missing"] if lines < count else []


class Progress(StrEnum):
    """How far a stored run has come."""

    ENDED = "ended"
    MEASURING = "being measured"
    INTERRUPTED = "interrupted"


def progress(path: Path) -> Progress:
    """How far the run in a folder came; one without checksums has ended. Raises UnreadableInput."""
    if os.path.exists(path / END):
        return Progress.ENDED
    info, checksums = _head(path)
    return _progress(path, info.tags, checksums=checksums)


def _progress(path: Path, tags: Mapping[str, str], *, checksums: bool) -> Progress:
    if not checksums or os.path.exists(path / END):
        return Progress.ENDED
    fleet = fleet_of(tags)
    is_measured = is_locked(path) or bool(fleet and is_locked(path.parent.parent / FLEETS / f"{fleet}.json"))
    return Progress.MEASURING if is_measured else Progress.INTERRUPTED


def read_lines(path: Path) -> Iterator[bytes]:
    """Lines with their newline; only the beginning of a line beyond the limit. Raises UnreadableInput."""
    with disk.reading(path):
        if not os.path.exists(path):
            return
        if not os.path.isfile(path):
            raise UnreadableInput(f"{path} is not a file.")
        with path.open("rb") as file:
            while line := file.readline(codec.LIMIT + 2):
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(codec.LIMIT)
                yield line
