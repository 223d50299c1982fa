"""What reading takes of a store of up to a million records: processor time and the most memory of each verb.

`python -m studies.many_records` makes stores of 10⁴, 10⁵ and 10⁶ records of a hundred cases, once as
many runs of a thousand records, once as a single run, and calls the command for each. What it printed is in
output/many_records.md. With an argument: up to so many.
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
OF_A_RUN = 1000  # records, where there are many runs
CASES, BLOCKS, DIFFERENT = 100, 20, 10
MARK = 0.123456789  # where blocks come
DAY_S = 86_400.0
FIRST = 1_790_000_000.0
VERBS = {
    "many runs": (
        ("list", "runs"),
        ("history",),  # the first that reads the store makes the cache of summaries
        ("history",),
        ("hardware",),
        ("site", "-o", "site"),
        ("validate", "results"),
    ),
    "one run": (("report", "--format", "json"), ("compare", "latest", "latest"), ("validate", "results")),
}


def lines(cases: list[Case], rounds: int, source: np.random.Generator) -> Iterator[bytes]:
    """A record of each case in each round: blocks of ten steps, 1 % of noise in and between processes."""
    texts = [codec.to_json(a_record(a_measurement(block_s=(MARK,)), case=case)) for case in cases]
    for number in range(rounds):
        levels = np.exp(source.normal(-7, 0.01, len(cases)))
        blocks = 10 * levels[:, None] * np.exp(source.normal(0, 0.01, (len(cases), BLOCKS)))
        for order, (text, seconds) in enumerate(zip(texts, blocks.tolist(), strict=True)):
            place = f'"round":{number},"order":{number * len(cases) + order}'.encode()
            blocked = text.replace(f"[{MARK}]".encode(), json.dumps(seconds).encode(), 1)
            yield seal_text(blocked.replace(b'"round":0,"order":0', place, 1)) + b"\n"


def keep(root: Path, number: int, cases: int, rounds: int) -> None:
    """A run like those that the command stores, without waiting for the disk after each record.

    The records of every tenth run are the same.
    """
    planned = [a_case(params={"m": each + 1, "n": 64, "k": 64}) for each in range(cases)]
    began = FIRST + number * DAY_S
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(began))
    info = a_run_info(id=new_id(began), started=started, plan=tuple(planned), policy=POLICIES["quick"])
    known = root.parent / f"lines-{number % DIFFERENT}"
    with runs.create_run(root, info) as writer, (writer.folder / runs.RECORDS).open("ab") as file:
        if known.exists():
            file.write(known.read_bytes())
        else:
            file.writelines(lines(planned, rounds, np.random.default_rng(number)))
            file.flush()
            known.hardlink_to(writer.folder / runs.RECORDS)


def measured(folder: Path, arguments: tuple[str, ...]) -> tuple[int, float, float]:
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


def study(shape: str, size: int) -> Iterator[str]:
    """A row of the table for each verb."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if shape == "many runs":
            for number in range(size // OF_A_RUN):
                keep(folder / "results", number, CASES, OF_A_RUN // CASES)
        else:
            keep(folder / "results", 0, CASES, size // CASES)
        done: set[tuple[str, ...]] = set()
        for arguments in VERBS[shape]:
            code, seconds, mib = measured(folder, arguments)
            typed = " ".join(arguments) + (", again" if arguments in done else "")
            done.add(arguments)
            yield f"| {shape} | {size:,} | {typed} | {code} | {seconds:.1f} | {mib:.0f} |"


def main(shapes: Sequence[str], most: int) -> None:
    print("| store | records | command | exit code | processor s | MiB |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for shape in shapes:
        for size in (each for each in SIZES if each <= most):
            for line in study(shape, size):
                print(line, flush=True)


if __name__ == "__main__":
    main(tuple(VERBS), int(sys.argv[1]) if len(sys.argv) > 1 else SIZES[-1])
