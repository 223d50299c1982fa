"""Memory, open files and CPU time of `accelbench fleet` with a large number of simulated machines.

    python -m studies.fleet_size [MACHINES [RECORDS [FILES]]] > studies/output/fleet_size.txt

By default, 1,000 machines send 87 records of 8 kB each to a process that may open 1,024 files. Then the study
measures the CPU time of reading a long line in pieces. The folder for temporary files should be in memory,
because each record is synchronised to the disk.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchbench.cluster.entry import PIECE
from benchbench.cluster.fleet import FleetObserver, FleetOptions, FleetResult, measure_fleet
from benchbench.cluster.messages import (
    Arrived,
    Description,
    Ended,
    Event,
    LineKind,
    LineReader,
    Node,
    line_bytes,
    read_job,
)
from benchbench.documents.fleet import is_incomplete
from benchbench.model.case import Case
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Record, RunInfo
from benchbench.running import request
from benchbench.store import codec, runs
from tests.factories import a_case, a_machine, a_measurement, a_record, a_run_info

MACHINES, RECORDS, ROUNDS = 1000, 87, 3
FILES = 1024  # limit of open files
RECORD_BYTES = 8_000
OPTIONS = MeasureOptions(suites=("quick",), rounds=ROUNDS, command=("fleet",))
LINES_MIB = (4, 8, 16)


class SimulatedCluster:
    """Machines that all send the same records. Each poll returns the next line of each."""

    def __init__(self, machines: int, cases: Sequence[Case]) -> None:
        self.records = [
            line_bytes(LineKind.RECORD, codec.encode(replace(record, round=number, order=number)))
            for number in range(ROUNDS)
            for record in map(a_long_record, cases)
        ]
        self._machines = machines
        self._head = a_run_info(plan=tuple(cases), policy=request.request(OPTIONS).policy)
        self._jobs: dict[int, Iterator[Event]] = {}
        self._started = 0

    def nodes(self) -> list[Node]:
        return [Node(id=f"{n}", name=f"m{n:04}", kind="A100", cpus=2) for n in range(self._machines)]

    def start(self, node: Node, job: bytes) -> int:
        request_message = read_job(job)
        self._started += 1
        describes = request_message.kind == "describe"
        head = replace(self._head, tags=dict(request_message.options.tags))
        self._jobs[self._started] = self._description_events() if describes else self._record_events(head)
        return self._started

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events = [replace(next(job), task=task) for task, job in self._jobs.items()]
        for event in events:
            if isinstance(event, Ended):
                del self._jobs[event.task]
        return events

    def stop(self, task: int) -> None:
        self._jobs.pop(task, None)

    def _description_events(self) -> Iterator[Event]:
        version, packages = self._head.version, {"torch": "2.13.0"}
        description = Description(version=version, machine=a_machine(), packages=packages)
        yield Arrived(0, line_bytes(LineKind.DESCRIPTION, description))
        yield Ended(0)

    def _record_events(self, head: RunInfo) -> Iterator[Event]:
        yield Arrived(0, line_bytes(LineKind.HEAD, codec.to_json(head)))
        for line in self.records:
            yield Arrived(0, line)
        yield Arrived(0, line_bytes(LineKind.END, "measure"))
        yield Ended(0)


def a_long_record(case: Case) -> Record:
    """Return a record of about RECORD_BYTES."""
    blocks = tuple(0.01 + 1e-9 * number for number in range(RECORD_BYTES // 15))
    return a_record(a_measurement(block_s=blocks), case=case)


def simulate(machines: int, records: int, results: Path) -> tuple[FleetResult, float, float]:
    """Measure a simulated fleet.

    Returns its result, the CPU seconds per record (including the simulation) and the bytes of a record.
    """
    cases = [a_case(params={"m": m, "n": 64, "k": 64}) for m in range(1, records // ROUNDS + 1)]
    cluster = SimulatedCluster(machines, cases)
    began = time.process_time()
    result = measure_fleet(
        FleetOptions(measure=OPTIONS, allow_different=True), cluster, results, FleetObserver(), time.monotonic
    )
    return result, (time.process_time() - began) / machines / len(cluster.records), len(cluster.records[0])


def splitting_s(mebibytes: int) -> float:
    """Return the CPU seconds to read one line of that length in pieces."""
    piece, reader = b"x" * PIECE, LineReader()
    began = time.process_time()
    for _ in range(mebibytes * 2**20 // PIECE):
        assert not list(reader.lines(piece))
    return time.process_time() - began


def main(arguments: list[str]) -> None:
    """Print the figures. The exit code is 1 if a record was not stored."""
    numbers = [int(argument) for argument in arguments]
    machines, records, files = (*numbers, *(MACHINES, RECORDS, FILES)[len(numbers) :])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with tempfile.TemporaryDirectory() as name:
        result, cpu_s, record_bytes = simulate(machines, records, Path(name))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        folders = [Path(name) / runs.RUNS / share.run for share in result.shares if share.run]
        stored_records = sum(len(runs.read_run(folder).records) for folder in folders)
    print(f"{machines} machines, {records} records of {record_bytes} bytes each, {files} open files")
    print(f"complete: {not is_incomplete(result)}, {stored_records} records stored")
    print(f"peak memory: {peak:.0f} MiB; CPU time of a record: {1e3 * cpu_s:.2f} ms")
    seconds = ", ".join(f"{size} MiB {1e3 * splitting_s(size):.1f} ms" for size in LINES_MIB)
    print(f"CPU time of a line: {seconds}")
    sys.exit(is_incomplete(result) or stored_records < machines * records)


if __name__ == "__main__":
    main(sys.argv[1:])
