"""pyperf's files: several processes of each benchmark, its runs; those that only calibrate are left out."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from benchbench.machine.environment import os_name
from benchbench.model.device import Machine
from benchbench.store.imports.processes import Benchmark, Process
from benchbench.store.naming import HASH

TOOL = "pyperf"
HOW_TO = "Make one with: pyperf timeit -o FILE …, or the script's own -o FILE"
KEYS = frozenset({"benchmarks", "metadata"})
SECONDS = "second"
ARCHITECTURE = re.compile(r"x86_64|AMD64|aarch64|arm64|i[3-6]86|ppc64le|s390x|riscv64")

Metadata = dict[str, Any]


class _Run(msgspec.Struct):
    """A process; `values`: seconds of an iteration."""

    metadata: Metadata = {}
    values: list[float] = []


class _Benchmark(msgspec.Struct):
    runs: list[_Run]
    metadata: Metadata = {}


class _File(msgspec.Struct):
    """Version 1.0 of its format: what runs or benchmarks have in common is in the file's `metadata`."""

    benchmarks: list[_Benchmark]
    metadata: Metadata = {}


def processes(content: Any, name: str) -> list[Process]:
    """As many as the benchmark of most runs has; `name`: of a benchmark that has none. Raises ValueError."""
    found = msgspec.convert(content, _File)
    measured: list[list[tuple[Metadata, Benchmark]]] = []
    for benchmark in found.benchmarks:
        for number, run in enumerate(each for each in benchmark.runs if each.values):
            if number == len(measured):
                measured.append([])
            told = {**found.metadata, **benchmark.metadata, **run.metadata}
            measured[number].append((told, _benchmark(told, run, name)))
    return [_process([told for told, _ in each], [made for _, made in each]) for each in measured]


def _benchmark(told: Metadata, run: _Run, name: str) -> Benchmark:
    own = str(told.get("name") or name)
    if (unit := told.get("unit", SECONDS)) != SECONDS:
        raise ValueError(f"{own} is in the unit {unit}; seconds are read")
    loops = [told.get(count, 1) for count in ("loops", "inner_loops")]
    iterations = loops[0] * loops[1] if all(isinstance(each, int) for each in loops) else 0
    return Benchmark(own, tuple(run.values), iterations, str(told.get("timer", "not known")))


def _process(told: list[Metadata], benchmarks: list[Benchmark]) -> Process:
    one = told[0]
    system, release, *_ = [*str(one.get("platform", "")).split("-"), "", ""]
    architecture = ARCHITECTURE.search(str(one.get("platform", "")))
    count, commit = one.get("cpu_count"), one.get("commit_id")
    return Process(
        tool=TOOL,
        version=str(one.get("perf_version", "not known")),
        started=str(one.get("date", "")),
        machine=Machine(
            cpu=str(one.get("cpu_model_name", "not known")),
            cores=0,
            threads=count if isinstance(count, int) else 0,
            memory_bytes=0,
            architecture=architecture[0] if architecture else "",
            os=os_name(system, release),
            python=str(one.get("python_version", "")),
        ),
        commit=commit if isinstance(commit, str) and HASH.fullmatch(commit) else "",
        benchmarks=tuple(benchmarks),
    )
