"""Summaries of stored runs for histories and comparisons of hardware, and a cache of them."""

from __future__ import annotations

import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from benchbench import paths
from benchbench.analyse.digest import CaseDigest, Setup, digest
from benchbench.analyse.metrics import METRICS, Metric, Rate
from benchbench.analyse.roofline import device_of
from benchbench.analyse.rows import case_key, probed_version_and_model, records_by_case, unranked_reason
from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import cache_folder
from benchbench.model.case import Case
from benchbench.model.device import Machine
from benchbench.model.run import Record, Run, RunInfo, Settings
from benchbench.store import runs, selectors

SAMPLED = tuple(metric for metric in METRICS if not isinstance(metric.source, Rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a case besides its values. Runs with equal facts share one object."""

    digest: CaseDigest  # without values
    unranked: str  # why its speed is not ranked; empty if it is
    device: str
    threads: int  # 0 on an accelerator


@dataclass(frozen=True, slots=True)
class Values:
    """Metric of a case in one run: pooled unless the processes disagree, and of each process."""

    pooled: float | None
    processes: tuple[float | None, ...]

    @property
    def known(self) -> tuple[float, ...]:
        """Positive, finite process values, for a logarithmic scale."""
        return tuple(value for value in self.processes if value is not None and 0 < value < math.inf)


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """A case in one run, with values by metric. Rates are derived from them."""

    facts: Facts
    values: Mapping[str, Values]

    @property
    def digest(self) -> CaseDigest:
        """Digest of the case, with these values."""
        values = {name: values.processes for name, values in self.values.items()}
        return replace(self.facts.digest, values=values)

    def of(self, metric: Metric) -> Values | None:
        """Values of a metric, if the case has any."""
        source = metric.source
        if not isinstance(source, Rate):
            return self.values.get(metric.name)
        divisor, cost = self.of(source.divisor), self.facts.digest.cost
        if divisor is None or cost is None:
            return None
        return Values(
            source.compute(cost, divisor.pooled) or None,
            tuple(source.compute(cost, value) for value in divisor.processes),
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned case: the parts of its id that searches use."""

    id: str
    workload: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a run. One side of an interleaved comparison (`is_half`) has no cases."""

    id: str
    started: str  # ISO 8601, UTC
    setup: Setup
    tags: Mapping[str, str] = field(default_factory=dict)
    machine_id: str = ""
    is_half: bool = False
    damaged: tuple[str, ...] = ()
    planned: tuple[Planned, ...]
    cases: Mapping[str, CaseSummary]

    @property
    def machine(self) -> Machine:
        return self.setup.machine

    @property
    def settings(self) -> Settings:
        return self.setup.settings


def summarise(run: Run) -> RunSummary:
    """Summary of a run, with all its cases and metrics."""
    info = run.info
    is_half = info.partner is not None
    return RunSummary(
        id=info.id,
        started=info.started,
        setup=Setup(machine=info.machine, settings=info.settings),
        tags=info.tags,
        machine_id=info.machine_id,
        is_half=is_half,
        damaged=run.damaged,
        planned=tuple(Planned(case.id, case.workload, case.target) for case in info.plan),
        cases={} if is_half else _cases(run),
    )


def summaries(runs: Iterable[Run | RunSummary]) -> Iterable[RunSummary]:
    """Summaries of the runs, computed one after the other."""
    return (run if isinstance(run, RunSummary) else summarise(run) for run in runs)


def _cases(run: Run) -> dict[str, CaseSummary]:
    recorded = records_by_case(run.records)
    planned = {case.id: case for case in run.info.plan}
    return {
        name: _case(run.info, planned[name], case_digest, recorded.get(case_key(planned[name]), ()))
        for name, case_digest in digest(run).cases.items()
        if name in planned and not case_digest.absent
    }


def _case(info: RunInfo, case: Case, case_digest: CaseDigest, records: Sequence[Record]) -> CaseSummary:
    model = records[0].device_model if records else probed_version_and_model(info, case)[1]
    device, threads = device_of(info, case, model)
    facts = Facts(
        digest=replace(case_digest, values={}, doubts=(), cycles=()),
        unranked=unranked_reason(case, model, records),
        device=device or case.device,
        threads=threads or 0,
    )
    values = {
        metric.name: _pooled(metric, case_digest.values[metric.name])
        for metric in SAMPLED
        if metric.name in case_digest.values
    }
    return CaseSummary(facts, values)


def _pooled(metric: Metric, processes: Sequence[float | None]) -> Values:
    """Values as floats, as the cache returns them: bytes are whole numbers."""
    values = Values(None, tuple([None if value is None else float(value) for value in processes]))
    pooled = metric.source.pool(values.known).value if values.known else None
    return replace(values, pooled=None if pooled is None else float(pooled))


LOCK_TIMEOUT_S = 5.0
PROGRESS_S = 10.0  # between two lines about progress
TABLE = "CREATE TABLE IF NOT EXISTS runs (folder TEXT PRIMARY KEY, stamp TEXT, summary BLOB)"


class _Case(msgspec.Struct):
    facts: msgspec.Raw
    values: dict[str, Values]


class _Row(msgspec.Struct):
    """The fields of a RunSummary; those that most runs share are decoded once."""

    id: str
    started: str
    setup: msgspec.Raw
    tags: dict[str, str]
    machine_id: str
    is_half: bool
    damaged: tuple[str, ...]
    planned: tuple[Planned, ...]
    cases: dict[str, _Case]


def read_summaries(
    root: Path,
    *,
    skipped: Callable[[str], None],
    progress: Callable[[str], None] = lambda _: None,
) -> Generator[RunSummary, None, None]:
    """Summaries of all stored runs, oldest first.

    `skipped` receives a line for each copy of a run and each unreadable run; `progress` receives the progress
    of a long reading. Summaries are cached one by one, so an interrupted reading is not lost.
    """
    stored = selectors.stored_runs(root)
    for line in selectors.copy_warnings(root, stored):
        skipped(line)
    folders = [root / runs.RUNS / name for name in stored.names]
    with closing(_Cache(root)) as cache:
        cached = dict(cache.query("SELECT folder, stamp FROM runs"))
        for name in cached.keys() - {folder.name for folder in folders}:
            cache.query("DELETE FROM runs WHERE folder = ?", name)
        outdated = sum(cached.get(folder.name) != _stamp(folder) for folder in folders)
        summarised, last_s = 0, time.monotonic()
        for folder in folders:
            if summary := cache.summary(folder):
                yield summary
                continue
            try:
                summary = cache.add(folder)
            except UnreadableInput as error:
                skipped(str(error))
                continue
            summarised += 1
            if time.monotonic() - last_s > PROGRESS_S:
                progress(f"read {summarised:,} of {outdated:,} runs; the next reading is fast")
                last_s = time.monotonic()
            yield summary


class _Cache:
    """SQLite file of a results folder. After an error it behaves as an empty cache that stores nothing."""

    def __init__(self, root: Path) -> None:
        self._connection: sqlite3.Connection | None = None
        with suppress(OSError, UsageError, UnreadableInput, sqlite3.Error):
            name = sha256(str(paths.resolved(root)).encode(errors="replace")).hexdigest()[:24]
            self._path = cache_folder("summaries") / f"{name}.sqlite"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None)
            self.query("PRAGMA synchronous = OFF")  # a lost summary can be computed again
            self.query(TABLE)

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a statement."""
        if not self._connection:
            return []
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            if not isinstance(error, sqlite3.OperationalError):  # broken, not only locked or full
                with suppress(OSError):
                    self._path.unlink()
            return []

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    def summary(self, folder: Path) -> RunSummary | None:
        """Summary of an unchanged run; None if it is not cached."""
        stamp = _stamp(folder)
        rows = self.query("SELECT summary FROM runs WHERE folder = ? AND stamp = ?", folder.name, stamp)
        with suppress(IndexError, TypeError, zlib.error, msgspec.MsgspecError):
            key, _, content = zlib.decompress(rows[0][0]).partition(b"\n")  # raises for a wrong checksum
            if key == f"{folder.name} {stamp}".encode():
                return _summary(msgspec.msgpack.decode(content, type=_Row))
        return None

    def add(self, folder: Path) -> RunSummary:
        """Summarise a run, and store the summary if the run has ended. Raises UnreadableInput."""
        stamp = _stamp(folder)
        run = runs.read_run(folder)
        summary = summarise(run)
        if run.ended and stamp == _stamp(folder):
            content = f"{folder.name} {stamp}\n".encode() + msgspec.msgpack.encode(summary)
            blob = zlib.compress(content, level=1)
            self.query("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", folder.name, stamp, blob)
        return summary


def _summary(row: _Row) -> RunSummary:
    cases = {
        name: CaseSummary(_shared(bytes(case.facts), Facts), case.values) for name, case in row.cases.items()
    }
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return RunSummary(**fields | {"setup": _shared(bytes(row.setup), Setup), "cases": cases})


@cache
def _shared(content: bytes, kind: type) -> Any:
    """Decoded value; equal values of many runs are one object."""
    return msgspec.msgpack.decode(content, type=kind)


def _stamp(folder: Path) -> str:
    """Code version, with the size and time of each file that a summary is derived from."""
    parts = [code_version()]
    for name in (runs.HEAD, runs.RECORDS, runs.END):
        try:
            stat = (folder / name).stat()
            parts.append(f"{stat.st_size}@{stat.st_mtime_ns}")
        except OSError:
            parts.append("-")
    return " ".join(parts)


@cache
def code_version() -> str:
    """Hash of the sizes and times of this package's files, since summaries depend on the code."""
    paths_of_code = [
        path for path in Path(str(files("benchbench"))).rglob("*") if path.suffix in (".py", ".csv")
    ]
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(paths_of_code)]
    return sha256(repr(stats).encode()).hexdigest()[:16]
