"""Google Benchmark's files: one process each, a sample for each repetition, or what they were reduced to."""

from __future__ import annotations

from typing import Any

import msgspec

from benchbench.model.device import Machine
from benchbench.model.note import NoteKind, note
from benchbench.store.imports.processes import Benchmark, Process

TOOL = "google-benchmark"
HOW_TO = "Make one with: --benchmark_out=FILE --benchmark_out_format=json --benchmark_repetitions=10"
KEYS = frozenset({"context", "benchmarks"})
UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
REDUCED = ("median", "mean")  # the better first


class _Entry(msgspec.Struct):
    """A repetition, or an aggregate of several; times are of an iteration, in `time_unit`."""

    name: str
    run_name: str = ""
    run_type: str = "iteration"
    aggregate_name: str = ""
    repetitions: int = 1
    iterations: int = 1
    real_time: float | None = None
    time_unit: str = "ns"
    error_occurred: bool = False
    error_message: str = ""

    @property
    def benchmark(self) -> str:
        """Older versions have no `run_name`."""
        return self.run_name or self.name

    @property
    def step_s(self) -> float:
        """Raises ValueError for what is no time."""
        if self.real_time is None or self.time_unit not in UNITS_S:
            raise ValueError(f"{self.name} has no real_time in {', '.join(UNITS_S)}")
        return self.real_time * UNITS_S[self.time_unit]


class _Context(msgspec.Struct):
    date: str
    num_cpus: int = 0
    library_version: str = "not known"


class _File(msgspec.Struct):
    context: _Context
    benchmarks: list[_Entry]


def processes(content: Any, name: str) -> list[Process]:  # noqa: ARG001 - a file names its benchmarks
    """The one process of a file; neither CPU nor system is in it. Raises ValueError."""
    found = msgspec.convert(content, _File)
    entries: dict[str, list[_Entry]] = {}
    for entry in found.benchmarks:
        entries.setdefault(entry.benchmark, []).append(entry)
    machine = Machine(
        cpu="not known",
        cores=0,
        threads=found.context.num_cpus,
        memory_bytes=0,
        architecture="",
        os="system not known",
        python="",
    )
    return [
        Process(
            tool=TOOL,
            version=found.context.library_version,
            started=found.context.date,
            machine=machine,
            benchmarks=tuple(made for each in entries.values() for made in _benchmark(each)),
        )
    ]


def _benchmark(entries: list[_Entry]) -> list[Benchmark]:
    """None of complexities alone, which are no times."""
    name = entries[0].benchmark
    if failed := [entry for entry in entries if entry.error_occurred]:
        return [Benchmark(name, (), 1, failure=failed[0].error_message or "it reported an error")]
    repetitions = [entry for entry in entries if entry.run_type == "iteration"]
    if repetitions:
        steps = tuple(entry.step_s for entry in repetitions)
        return [Benchmark(name, steps, repetitions[0].iterations, "real_time")]
    reduced = {entry.aggregate_name: entry for entry in entries}
    what = next((each for each in REDUCED if each in reduced), None)
    if what is None:
        return []
    told = note(NoteKind.SAMPLES_NOT_KEPT, tool=TOOL, count=reduced[what].repetitions, what=what)
    return [Benchmark(name, (reduced[what].step_s,), 1, "real_time", notes=(told,))]
