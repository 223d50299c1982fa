"""Summaries of ended runs in the user's cache, so that a history reads thousands of runs in seconds.

A SQLite file for each results folder, with a row per run, case and metric. The runs' own files stay the only
truth: a row counts where these have the sizes and times, and the code the text, that it was made of. The file
may be deleted at any time. One that is broken, locked, full or read-only is as if there were none.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from math import isnan, nan
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from benchbench import paths
from benchbench.analyse.metrics import LATENCY, METRICS, Metric
from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import cache_folder
from benchbench.model.case import present_id
from benchbench.store import runs, selectors
from benchbench.summaries.summary import (
    CaseSummary,
    Facts,
    Planned,
    RunSummary,
    Setup,
    Values,
    Wanted,
    needed,
    summarise,
)

T = TypeVar("T")
FOLDER = "summaries"
# What summaries follow from: a change of any of these files makes rows of before count no more.
COMPUTED_BY = (
    "analyse",
    "machine",
    "model",
    "store",
    "summaries",
    "timing",
    "workloads",
    "stats.py",
    "reading.py",
    "format.py",
)
STORED_FILES = (runs.HEAD, runs.RECORDS, runs.END)
LOCKED_S = 5.0  # how long another process may keep the file: it writes for a fraction of that
KEPT_S = 2.0  # of reading, that an end of the process may cost
TOLD_S = 10.0  # between two lines that say how many runs are read
SCHEMA = """
CREATE TABLE IF NOT EXISTS texts (key INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS cases (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, workload TEXT, target TEXT
);
CREATE TABLE IF NOT EXISTS runs (
    key INTEGER PRIMARY KEY AUTOINCREMENT, folder TEXT NOT NULL UNIQUE, stamp TEXT, setup INTEGER, head TEXT,
    seal INTEGER
);
CREATE TABLE IF NOT EXISTS points (
    metric INTEGER, case_key INTEGER, run INTEGER, facts INTEGER, pooled REAL, processes BLOB, seal INTEGER,
    PRIMARY KEY (metric, case_key, run)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What is kept of a run beside its setup and its cases. `planned`: keys of cases."""

    id: str
    started: str
    tags: dict[str, str]
    machine_id: str
    is_half: bool
    damaged: tuple[str, ...]
    planned: tuple[int, ...]
    renamed: dict[str, str]


def read_summaries(
    root: Path,
    metrics: Sequence[Metric],
    wanted: Wanted | None = None,
    *,
    skipped: Callable[[str], None],
    told: Callable[[str], None] = lambda _: None,
) -> Generator[RunSummary, None, None]:
    """The summary of every stored run, oldest first, with values that `metrics` follow from.

    `wanted`: the cases that are needed; others may be there, too. `skipped` is told why a run cannot be read;
    `told`, how far reading has come where it takes long. What is read is kept, even if this is interrupted.
    """
    names = selectors.run_ids(root)
    with _cache(root) as kept:
        known = kept.load({name: _stamp(root / runs.RUNS / name) for name in names}, needed(metrics), wanted)
        read, missing, last = 0, len(names) - len(known), time.monotonic()
        for name in names:
            if found := known.get(name):
                yield found
                continue
            try:
                found = kept.summary(root / runs.RUNS / name)
            except UnreadableInput as error:
                skipped(str(error))
                continue
            read += 1
            if time.monotonic() - last > TOLD_S:
                told(f"read {read:,} of {missing:,} runs; what is read is kept for the next time")
                last = time.monotonic()
            yield found


@cache
def code_version() -> str:
    """A hash of the code that summaries follow from."""
    package = files("benchbench")
    found = sha256()
    for each in COMPUTED_BY:
        path = Path(str(package / each))
        for file in sorted(path.rglob("*")) if os.path.isdir(path) else [path]:
            if file.suffix in (".py", ".csv"):
                found.update(f"{file.relative_to(str(package))}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _stamp(folder: Path) -> str:
    """The code, and the size and time of each file that a summary is made of."""
    parts = [code_version()]
    for name in STORED_FILES:
        try:
            found = (folder / name).stat()
            parts.append(f"{found.st_size}@{found.st_mtime_ns}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


@contextmanager
def _cache(root: Path) -> Iterator[_Cache]:
    """The cache of a results folder; what was read is in it at the end, however that comes."""
    cache = _Cache(root)
    try:
        yield cache
    finally:
        cache.close()


class _Cache:
    """A connection, or none: then nothing is known, and nothing is kept."""

    def __init__(self, root: Path) -> None:
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[tuple[str, str, RunSummary]] = []
        self._since = time.monotonic()
        self._stale: tuple[int, ...] = ()
        with suppress(OSError, UsageError, UnreadableInput):
            name = sha256(str(paths.resolved(root)).encode(errors="replace")).hexdigest()[:24]
            self._path = cache_folder(FOLDER) / f"{name}.sqlite"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._attempt(self._open)

    def _open(self) -> None:
        self._connection = sqlite3.connect(self._path, timeout=LOCKED_S, isolation_level=None)
        self._connection.executescript(SCHEMA)

    def _attempt(self, function: Callable[[], T]) -> T | None:
        """What it returns; None without a cache, and from an error on there is none."""
        try:
            return function()
        except sqlite3.OperationalError:  # locked, full, read-only: it may be whole
            self._disconnect()
        except (sqlite3.Error, msgspec.MsgspecError, _Broken, KeyError, struct.error):
            self._disconnect()
            with suppress(OSError):
                self._path.unlink()
        return None

    def _disconnect(self) -> None:
        if self._connection:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def load(
        self, stamps: Mapping[str, str], metrics: Sequence[Metric], wanted: Wanted | None
    ) -> dict[str, RunSummary]:
        """The summaries of the folders whose files are as they were."""
        connection = self._connection
        if connection is None:
            return {}
        found = self._attempt(lambda: _loaded(connection, stamps, metrics, wanted))
        if found is None and not os.path.exists(self._path):
            self._attempt(self._open)  # what was broken is replaced
        self._stale = found.stale if found else ()
        return found.summaries if found else {}

    def summary(self, folder: Path) -> RunSummary:
        """The summary of a run that is not known; if it has ended, it will be. Raises UnreadableInput."""
        stamp = _stamp(folder)
        run = runs.read_run(folder)
        made = summarise(run)
        if self._connection and run.ended and stamp == _stamp(folder):
            self._waiting.append((folder.name, stamp, made))
            if time.monotonic() - self._since > KEPT_S:
                self._keep()
        return made

    def close(self) -> None:
        """Keep what was read, and let go of the file."""
        self._keep()
        self._disconnect()

    def _keep(self) -> None:
        connection, waiting = self._connection, self._waiting
        if connection and (waiting or self._stale):
            self._attempt(lambda: _store(connection, waiting, stale=self._stale))
            self._stale = ()
        self._waiting, self._since = [], time.monotonic()


class _Broken(Exception):
    """A row is not as it was written."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    summaries: dict[str, RunSummary]
    stale: tuple[int, ...]  # keys of runs that are gone or have changed


def _loaded(
    connection: sqlite3.Connection,
    stamps: Mapping[str, str],
    metrics: Sequence[Metric],
    wanted: Wanted | None,
) -> _Loaded:
    connection.execute("BEGIN")  # all that is read is of one moment
    try:
        texts = _Texts(connection.execute("SELECT key, text FROM texts"))
        planned = {
            key: Planned(*fields)
            for key, *fields in connection.execute("SELECT key, id, workload, target FROM cases")
        }
        heads = list(connection.execute("SELECT key, folder, stamp, setup, head, seal FROM runs"))
        current = {row[0]: row for row in heads if stamps.get(row[1]) == row[2]}
        cases: dict[int, dict[str, CaseSummary]] = {key: {} for key in current}
        own = {key: _head(row) for key, row in current.items()}
        renamed = {former: name for head in own.values() for former, name in head.renamed.items()}
        names = {
            key: each.id
            for key, each in planned.items()
            if wanted is None or wanted(each.id) or wanted(present_id(each.id, renamed))
        }
        for metric in metrics:
            _add_points(cases, _points(connection, metric, names, len(planned)), metric, names, texts)
    finally:
        connection.execute("ROLLBACK")
    found = {
        row[1]: _run_summary(row[3], own[key], cases[key], planned, texts) for key, row in current.items()
    }
    if LATENCY in metrics:
        expected = frozenset(names.values())
        if any(_lacks(each, expected) for each in found.values()):
            raise _Broken
    return _Loaded(found, stale=tuple(row[0] for row in heads if row[0] not in current))


def _lacks(run: RunSummary, expected: frozenset[str]) -> bool:
    """Whether a row is gone: each case of a run has one of the latency, whatever came of it."""
    return not run.is_half and any(each.id in expected and each.id not in run.cases for each in run.planned)


def _points(
    connection: sqlite3.Connection, metric: Metric, names: Mapping[int, str], count: int
) -> Iterable[tuple[Any, ...]]:
    """The rows of a metric, of the cases that are wanted alone."""
    number = METRICS.index(metric)
    select = "SELECT metric, case_key, run, facts, pooled, processes, seal FROM points WHERE metric = ?"
    if len(names) == count:
        return connection.execute(select, (number,))
    rows = (connection.execute(f"{select} AND case_key = ?", (number, case)) for case in names)
    return (row for each in rows for row in each)


def _add_points(
    cases: dict[int, dict[str, CaseSummary]],
    points: Iterable[tuple[Any, ...]],
    metric: Metric,
    names: Mapping[int, str],
    texts: _Texts,
) -> None:
    name = metric.name
    for number, case, run, facts, pooled, processes, seal in points:
        own = cases.get(run)
        if own is None:
            continue  # of a run that is gone or has changed
        if seal != _seal(number, case, run, facts, pooled, processes):
            raise _Broken
        values = {name: Values(pooled, _unpacked(processes))} if processes else {}
        known = own.get(names[case])
        if known is None:
            own[names[case]] = CaseSummary(texts.facts(facts, names[case]), values)
        else:
            own[names[case]] = CaseSummary(known.facts, {**known.values, **values})


def _head(row: tuple[Any, ...]) -> _Head:
    _key, folder, stamp, setup, text, seal = row
    if seal != crc32(f"{folder} {stamp} {setup} {text}".encode()):
        raise _Broken
    return msgspec.json.decode(text, type=_Head)


def _run_summary(
    setup: int,
    head: _Head,
    cases: dict[str, CaseSummary],
    planned: Mapping[int, Planned],
    texts: _Texts,
) -> RunSummary:
    own = [planned[key] for key in head.planned]
    return RunSummary(
        id=head.id,
        started=head.started,
        setup=texts.setup(setup),
        tags=head.tags,
        machine_id=head.machine_id,
        is_half=head.is_half,
        damaged=head.damaged,
        planned=tuple(own),
        renamed=head.renamed,
        cases={each.id: cases[each.id] for each in own if each.id in cases},
    )


class _Texts:
    """What many rows share: read once, however many have it."""

    def __init__(self, rows: Iterable[tuple[int, str]]) -> None:
        self._texts = dict(rows)
        self._facts: dict[int, Facts] = {}
        self._setups: dict[int, Setup] = {}

    def facts(self, key: int, case: str) -> Facts:
        """Those of a case, which is in them."""
        if key not in self._facts:
            found = msgspec.json.decode(_checked(self._texts[key]), type=Facts)
            if found.digest.case is None or found.digest.case.id != case:
                raise _Broken
            self._facts[key] = found
        return self._facts[key]

    def setup(self, key: int) -> Setup:
        """That of a run."""
        if key not in self._setups:
            self._setups[key] = msgspec.json.decode(_checked(self._texts[key]), type=Setup)
        return self._setups[key]


def _checked(text: str) -> str:
    """The text, which begins with its checksum."""
    seal, _, content = text.partition(" ")
    if seal != f"{crc32(content.encode()):08x}":
        raise _Broken
    return content


def _store(
    connection: sqlite3.Connection, summaries: Sequence[tuple[str, str, RunSummary]], *, stale: Sequence[int]
) -> None:
    """Keep summaries of folders with these stamps, all or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        keys = _Keys(connection)
        for folder, stamp, summary in summaries:
            _store_run(connection, keys, folder, stamp, summary)
        if stale:
            _clean(connection, stale)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _store_run(
    connection: sqlite3.Connection, keys: _Keys, folder: str, stamp: str, summary: RunSummary
) -> None:
    head = _Head(
        id=summary.id,
        started=summary.started,
        tags=dict(summary.tags),
        machine_id=summary.machine_id,
        is_half=summary.is_half,
        damaged=summary.damaged,
        planned=tuple([keys.case(each) for each in summary.planned]),
        renamed=dict(summary.renamed),
    )
    text, setup = msgspec.json.encode(head).decode(), keys.text(summary.setup)
    seal = crc32(f"{folder} {stamp} {setup} {text}".encode())
    connection.execute("DELETE FROM runs WHERE folder = ?", (folder,))  # its points are orphans then
    row = connection.execute(
        "INSERT INTO runs (folder, stamp, setup, head, seal) VALUES (?, ?, ?, ?, ?)",
        (folder, stamp, setup, text, seal),
    )
    run, planned = row.lastrowid, {each.id: each for each in summary.planned}
    points = []
    for name, case in summary.cases.items():
        key, facts = keys.case(planned[name]), keys.text(case.facts)
        for number, metric in enumerate(METRICS):
            values = case.values.get(metric.name)
            if values or metric is LATENCY:  # a case that failed has one row, too
                packed = _packed(values.processes) if values else b""
                own = number, key, run, facts, values.pooled if values else None, packed
                points.append((*own, _seal(*own)))
    connection.executemany("INSERT INTO points VALUES (?, ?, ?, ?, ?, ?, ?)", points)


def _clean(connection: sqlite3.Connection, stale: Sequence[int]) -> None:
    """Remove runs by their keys, and all that no run has."""
    connection.executemany("DELETE FROM runs WHERE key = ?", [(key,) for key in stale])
    connection.execute("DELETE FROM points WHERE run NOT IN (SELECT key FROM runs)")


class _Keys:
    """The keys of texts and cases, which are made where they are new."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, int] = {}

    def text(self, value: Facts | Setup) -> int:
        """The key of what rows share."""
        content = msgspec.json.encode(value)
        text = f"{crc32(content):08x} {content.decode()}"
        insert = "INSERT OR IGNORE INTO texts (text) VALUES (?)"
        return self._key(text, insert, (text,), "SELECT key FROM texts WHERE text = ?")

    def case(self, case: Planned) -> int:
        """The key of a case."""
        insert = "INSERT OR IGNORE INTO cases (id, workload, target) VALUES (?, ?, ?)"
        fields = case.id, case.workload, case.target
        return self._key(case.id, insert, fields, "SELECT key FROM cases WHERE id = ?")

    def _key(self, text: str, insert: str, fields: tuple[str, ...], select: str) -> int:
        if text not in self._known:
            self._connection.execute(insert, fields)
            (self._known[text],) = self._connection.execute(select, (text,)).fetchone()
        return self._known[text]


def _packed(values: Sequence[float | None]) -> bytes:
    """Doubles; no value is NaN, which none is."""
    return struct.pack(f"<{len(values)}d", *(nan if value is None else value for value in values))


def _unpacked(values: bytes) -> tuple[float | None, ...]:
    found = struct.unpack(f"<{len(values) // 8}d", values)
    return tuple([None if isnan(value) else value for value in found])


def _seal(*fields: Any) -> int:
    return crc32(repr(fields).encode())
