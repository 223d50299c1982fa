"""CPU time and peak memory of commands that read a store of up to a million records.

    python -m studies.many_records [LARGEST] > studies/output/many_records.md

The program makes stores of 10⁴, 10⁵ and 10⁶ records of a hundred cases, up to LARGEST: once as many runs of
a thousand records, once as a single run. It runs each command on each store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchbench.model.case import Case
from benchbench.store import codec, runs
from benchbench.store.codec import seal_text
from benchbench.store.disk import new_id
from benchbench.timing.policy import POLICIES
from tests.factories import a_case, a_measurement, a_record, a_run_info
from tests.program import environment

SIZES = (10**4, 10**5, 10**6)
RUN_RECORDS = 1000  # records of a run in a store of many runs
CASES, BLOCKS, DISTINCT_RUNS = 100, 20, 10
BLOCKS_PLACEHOLDER = 0.123456789  # replaced by the blocks of each record
DAY_S = 86_400.0
FIRST_RUN_S = 1_790_000_000.0
VERBS = {
    "many runs": (
        ("list", "runs"),
        ("history",),  # the first command fills the cache of summaries
        ("history",),
        ("hardware",),
        ("site", "-o", "site"),
        ("validate", "results"),
    ),
    "one run": (("report", "--format", "json"), ("compare", "latest", "latest"), ("validate", "results")),
}


def lines(cases: list[Case], rounds: int, source: np.random.Generator) -> Iterator[bytes]:
    """Encoded records of each case and round: blocks of ten steps, 1 % noise within and between processes."""
    texts = [
        codec.to_json(a_record(a_measurement(block_s=(BLOCKS_PLACEHOLDER,)), case=case)) for case in cases
    ]
    for number in range(rounds):
        levels = np.exp(source.normal(-7, 0.01, len(cases)))
        blocks = 10 * levels[:, None] * np.exp(source.normal(0, 0.01, (len(cases), BLOCKS)))
        for order, (text, seconds) in enumerate(zip(texts, blocks.tolist(), strict=True)):
            position = f'"round":{number},"order":{number * len(cases) + order}'.encode()
            blocked = text.replace(f"[{BLOCKS_PLACEHOLDER}]".encode(), json.dumps(seconds).encode(), 1)
            yield seal_text(blocked.replace(b'"round":0,"order":0', position, 1)) + b"\n"


def store_run(root: Path, number: int, cases: int, rounds: int) -> None:
    """Store a run as the command does, but without waiting for the disk after each record.

    Every tenth run has the same records.
    """
    planned = [a_case(params={"m": index + 1, "n": 64, "k": 64}) for index in range(cases)]
    began_s = FIRST_RUN_S + number * DAY_S
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(began_s))
    info = a_run_info(id=new_id(began_s), started=started, plan=tuple(planned), policy=POLICIES["quick"])
    lines_path = root.parent / f"lines-{number % DISTINCT_RUNS}"
    with runs.create_run(root, info) as writer, (writer.folder / runs.RECORDS).open("ab") as file:
        if lines_path.exists():
            file.write(lines_path.read_bytes())
        else:
            file.writelines(lines(planned, rounds, np.random.default_rng(number)))
            file.flush()
            lines_path.hardlink_to(writer.folder / runs.RECORDS)


def measure_command(folder: Path, arguments: tuple[str, ...]) -> tuple[int, float, float]:
    """Exit code, processor seconds and the largest memory in MiB of the command, its imports included."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchbench.cli", *arguments],
        cwd=folder,
        env=environment() | {"ACCELBENCH_CACHE": str(folder / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure_store(shape: str, size: int) -> Iterator[str]:
    """A row of the table for each verb."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if shape == "many runs":
            for number in range(size // RUN_RECORDS):
                store_run(folder / "results", number, CASES, RUN_RECORDS // CASES)
        else:
            store_run(folder / "results", 0, CASES, size // CASES)
        repeated: set[tuple[str, ...]] = set()
        for arguments in VERBS[shape]:
            code, seconds, mib = measure_command(folder, arguments)
            label = " ".join(arguments) + (", again" if arguments in repeated else "")
            repeated.add(arguments)
            yield f"| {shape} | {size:,} | {label} | {code} | {seconds:.1f} | {mib:.0f} |"


def main(shapes: Sequence[str], largest: int) -> None:
    print("| store | records | command | exit code | processor s | MiB |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for shape in shapes:
        for size in (size for size in SIZES if size <= largest):
            for line in measure_store(shape, size):
                print(line, flush=True)


if __name__ == "__main__":
    main(tuple(VERBS), int(sys.argv[1]) if len(sys.argv) > 1 else SIZES[-1])
