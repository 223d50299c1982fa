"""Store runs: a folder `<root>/runs/<id>/` with run.json and records.jsonl, one record per line.

end.json, with the number of records, is written when a run finishes. A run without it was interrupted.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from errno import ELOOP, ENOENT
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from benchbench.errors import CannotWrite, UnreadableInput
from benchbench.format import visible
from benchbench.model.run import SCHEMA, Record, Run, RunInfo
from benchbench.redaction import Redaction, process_redaction
from benchbench.store import codec, disk
from benchbench.store.artifacts import profile_facts
from benchbench.store.codec import seal_text
from benchbench.store.disk import fleet_of, is_locked, lock

T = TypeVar("T")

RUNS, HEAD, RECORDS, END = "runs", "run.json", "records.jsonl", "end.json"
FLEETS = "fleets"  # the folder of fleet files, next to that of runs
HEAD_HINT = "The records in {} need it: restore it from a copy."
NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Content of end.json."""

    records: int
    schema: int = SCHEMA
    checksums: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head(RunInfo):
    """Content of run.json. `checksums`: every line has a checksum, and a finished run has an end.json."""

    checksums: bool = False  # old versions wrote none


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSuite:
    suite: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """Fields of run.json that a list of runs needs."""

    schema: int
    id: str
    started: str
    command: tuple[str, ...]
    plan: tuple[_PlannedSuite, ...]
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    checksums: bool = False


class RunWriter:
    """Appends records to a new or interrupted run, which it locks."""

    def __init__(
        self,
        folder: Path,
        write: Callable[[int, bytes], int] | None = None,
        redact: Redaction | None = None,
    ) -> None:
        """Open and lock the run. Raises CannotWrite, also if another process is adding to it.

        `write`: os.write by default. `redact`: by default the redaction of all stored texts.
        """
        self.folder = folder
        self._path = folder / RECORDS
        self._write = write or os.write
        self._redact = redact or process_redaction()
        self._lock = lock(folder)
        try:
            with disk.writing(self._path):
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o666)
        except CannotWrite:
            os.close(self._lock)
            raise

    def append(self, record: Record) -> Record:
        """Append a record as a whole line, which is on disk on return.

        Returns the stored record: a failure replaces a record that could not be read again. Raises
        CannotWrite; earlier records stay valid.
        """
        record, text = codec.storable_record(record, self._redact)
        line = text + b"\n"
        with disk.writing(self._path, f" (the record has {len(line)} bytes)"):
            end = os.fstat(self._descriptor).st_size
            if end and os.pread(self._descriptor, 1, end - 1) != b"\n":
                line = b"\n" + line  # the last record is incomplete; start a new line
            try:
                self._store(line)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, end)
                raise
        return record

    def _store(self, line: bytes) -> None:
        count = self._write(self._descriptor, line)
        if count != len(line):
            raise OSError(f"only {count} of {len(line)} bytes could be written")
        os.fsync(self._descriptor)
        if not os.fstat(
            self._descriptor
        ).st_nlink:  # writing to a removed file would lose all further records silently
            raise OSError(ENOENT, "the run was removed while it was measured", str(self._path))

    def drop_torn(self) -> None:
        """Remove an incomplete last line, which a killed process may leave."""
        with disk.writing(self._path):
            end = os.fstat(self._descriptor).st_size
            most = min(end, codec.LIMIT)
            last = os.pread(self._descriptor, most, end - most).rpartition(b"\n")[2]
            if len(last) < codec.LIMIT and not _is_record(last):
                os.ftruncate(self._descriptor, end - len(last))

    def end(self) -> None:
        """Write end.json with the number of records, so that losses are noticed later. Raises CannotWrite."""
        count = sum(line != b"\n" for line in read_lines(self._path))
        text = seal_text(codec.to_json(End(records=count), indent=1) + b"\n")
        with disk.writing(self._path):
            disk.replace(self._path.with_name(END), text)

    def close(self) -> None:
        """Close the file. Every record is already on disk."""
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
    """Create the folder of a new run and write its head. Raises CannotWrite, leaving nothing behind."""
    if not NAME.fullmatch(info.id):
        raise ValueError(f"{info.id!r} cannot be the id of a run")
    return create_in(root / RUNS / info.id, info)


def make_parent(folder: Path) -> None:
    """Create the folder that contains a run's folder. Raises OSError if it is a link."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if os.path.islink(folder.parent):
        raise OSError(ELOOP, "is a link, and links in results are not followed", str(folder.parent))


def create_in(folder: Path, info: RunInfo, redact: Redaction | None = None) -> RunWriter:
    """Create a run in a folder that does not exist yet."""
    head = _head_text(info, redact)
    with disk.writing(folder):
        make_parent(folder)
        folder.mkdir()
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        writer = RunWriter(folder, redact=redact)
        cleanup.callback(writer.close)
        with disk.writing(folder):
            disk.replace(folder / HEAD, head)
            disk.sync(folder.parent)
        cleanup.pop_all()
    return writer


def _head_text(info: RunInfo, redact: Redaction | None = None) -> bytes:
    values = {field.name: getattr(info, field.name) for field in fields(info)}
    text = codec.to_json(_Head(**values, checksums=True), indent=1, redact=redact or process_redaction())
    return codec.seal_document(text + b"\n", _Head, f"the head of the run {info.id}")


def store_run(root: Path, run: Run) -> Path:
    """Store a complete run and return its folder. Raises CannotWrite."""
    with create_run(root, run.info) as writer:
        for record in run.records:
            writer.append(record)
    return root / RUNS / run.info.id


def rewrite_head(folder: Path, info: RunInfo) -> None:
    """Replace the head of a stored run. Raises CannotWrite."""
    head = _head_text(info)
    with disk.writing(folder):
        disk.replace(folder / HEAD, head)


def _is_record(line: bytes) -> bool:
    with suppress(UnreadableInput):
        codec.decode(line, checksums=True)
        return True
    return False


def read_head(path: Path) -> RunInfo:
    """Read the head of the run in a folder. Raises UnreadableInput."""
    return _head(path)[0]


def _head(path: Path) -> tuple[RunInfo, bool]:
    """Read the head of a run, and whether its lines have checksums."""
    hint = HEAD_HINT.format(path / RECORDS)
    head = codec.document(path / HEAD, _Head, hint)
    _check_id(head.id, path, hint)
    info = RunInfo(**{field.name: getattr(head, field.name) for field in fields(RunInfo)})
    return info, head.checksums


def read_listed(path: Path) -> ListedRun:
    """Read the entry of a run in a list, without parsing all of its head. Raises UnreadableInput."""
    hint = HEAD_HINT.format(path / RECORDS)
    head = codec.part_of_document(path / HEAD, ListedRun, _Head, hint)
    _check_id(head.id, path, hint)
    return head


def _check_id(run_id: str, path: Path, hint: str) -> None:
    """Raise UnreadableInput for an id that cannot be part of file names, such as a baseline's."""
    if not NAME.fullmatch(run_id):
        raise UnreadableInput(f"{path / HEAD}: {visible(run_id[:100])!r} is not the id of a run", hint)


def read_run(path: Path) -> Run:
    """Read the run in a folder. Unreadable lines are listed in `damaged`; the other records remain usable.

    `damaged` also lists lines that repeat a case and round, lines whose case is not in the plan, and records
    that end.json counts but that are missing. Raises UnreadableInput if run.json is missing, damaged or from
    a newer version.
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
    ended, end_faults = _end(path, lines) if checksums else (True, [])
    profiles = profile_facts(path)
    return Run(
        info=info,
        records=tuple(records.values()),
        damaged=(*damaged, *end_faults),
        ended=ended,
        unprofiled=profiles.unprofiled,
        communication=profiles.communication,
        idle=profiles.idle,
    )


def _end(path: Path, lines: int) -> tuple[bool, list[str]]:
    """Return whether the run finished, and a line if records are missing."""
    if not os.path.exists(path / END):
        return False, []
    try:
        count = codec.document(path / END, End, "Without it, missing records cannot be noticed.").records
    except UnreadableInput as error:
        return True, [str(error)]
    return True, [f"{count - lines} of {count} records are missing"] if lines < count else []


class Progress(StrEnum):
    """State of a stored run."""

    ENDED = "ended"
    MEASURING = "being measured"
    INTERRUPTED = "interrupted"


def progress(path: Path) -> Progress:
    """State of the run in a folder; a run without checksums counts as ended. Raises UnreadableInput."""
    if os.path.exists(path / END):
        return Progress.ENDED
    head = read_listed(path)
    if not head.checksums:
        return Progress.ENDED
    fleet = fleet_of(head.tags)
    is_measured = is_locked(path) or bool(fleet and is_locked(path.parent.parent / FLEETS / f"{fleet}.json"))
    return Progress.MEASURING if is_measured else Progress.INTERRUPTED


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield lines with their newline, each cut off beyond the size limit. Raises UnreadableInput."""
    with disk.reading(path):
        if not os.path.exists(path):
            return
        if not os.path.isfile(path):
            raise UnreadableInput(f"{path} is not a file.")
        with path.open("rb") as file:
            while line := file.readline(codec.LIMIT + 2):
                chunk = line
                while chunk and not chunk.endswith(b"\n"):
                    chunk = file.readline(codec.LIMIT)
                yield line
