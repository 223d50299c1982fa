"""pytest-benchmark's files: one process each, with its samples where they were saved, else their median."""

from __future__ import annotations

from typing import Any

import msgspec

from benchbench.machine.environment import os_name
from benchbench.model.device import Machine
from benchbench.model.note import NoteKind, note
from benchbench.store.imports.processes import Benchmark, Process
from benchbench.store.naming import HASH, commit_name

TOOL = "pytest-benchmark"
HOW_TO = "Make one with: pytest --benchmark-json=FILE"
KEYS = frozenset({"machine_info", "benchmarks"})


class _Stats(msgspec.Struct):
    """The statistics of one benchmark; `data`: seconds of an iteration, a value for each round."""

    data: list[float] = []
    iterations: int = 1
    median: float | None = None
    rounds: int = 0


class _Benchmark(msgspec.Struct):
    fullname: str
    stats: _Stats
    options: dict[str, Any] = {}


class _File(msgspec.Struct):
    machine_info: dict[str, Any]
    benchmarks: list[_Benchmark]
    datetime: str
    version: str
    commit_info: dict[str, Any] = {}


def processes(content: Any, name: str) -> list[Process]:  # noqa: ARG001 - a file names its tests
    """The one process of a file. Raises ValueError."""
    found = msgspec.convert(content, _File)
    return [
        Process(
            tool=TOOL,
            version=found.version,
            started=found.datetime,
            machine=_machine(found.machine_info),
            commit=_commit(found.commit_info),
            benchmarks=tuple(map(_benchmark, found.benchmarks)),
        )
    ]


def _benchmark(found: _Benchmark) -> Benchmark:
    """Without samples, as `--benchmark-save` and others' defaults write it, the median is the one value."""
    stats, timer = found.stats, str(found.options.get("timer", "not known"))
    if stats.data or stats.median is None:
        return Benchmark(found.fullname, tuple(stats.data), stats.iterations, timer)
    told = note(NoteKind.SAMPLES_NOT_KEPT, tool=TOOL, count=stats.rounds, what="median")
    return Benchmark(found.fullname, (stats.median,), stats.iterations, timer, notes=(told,))


def _commit(info: dict[str, Any]) -> str:
    """The commit's hash, as our runs write it; empty for `unversioned`, `unknown` and what is no hash."""
    name = info.get("id")
    if not (isinstance(name, str) and HASH.fullmatch(name)):
        return ""
    return commit_name(name, dirty=bool(info.get("dirty")))


def _machine(info: dict[str, Any]) -> Machine:
    """Neither cores nor memory are in the file."""
    cpu = info.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    count = cpu.get("count")
    return Machine(
        cpu=str(cpu.get("brand_raw") or cpu.get("brand") or info.get("processor") or "not known"),
        cores=0,
        threads=count if isinstance(count, int) else 0,
        memory_bytes=0,
        architecture=str(info.get("machine", "")),
        os=os_name(str(info.get("system", "")), str(info.get("release", ""))),
        python=str(info.get("python_version", "")),
    )
