"""Runs ended at random moments: is every record that was shown kept, does each resume to the same cases?

    python -m studies.kills fake 150
    python -m studies.kills torch 50

Each trial starts a run, ends it by SIGKILL, SIGINT or SIGTERM, one time in four with its workers stopped
(SIGSTOP), resumes it, ends that in four of five cases, and so on until one is let go to its end. What the
last 200 came to is in output/kills.txt.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from benchbench.store import runs
from benchbench.store.validation import validate_path

COMMAND = [sys.executable, "-m", "benchbench.cli", "run"]
WORK = ["-w", "gemm", "-p", "m=64,128", "-p", "n=64", "-p", "k=64", "--quick"]
ROUNDS = {"fake": 5}  # processes of virtual time are soon over; of other backends two rounds
PER_HEAT = 2  # cases that are alive at once, in which other backends have 1 and 2 threads
RESUME = ["--resume"]
LONGEST_S = 600.0
GONE_S = 30.0  # in which every process of a killed run has to end
AGAIN = 0.8  # of resumed runs are killed as well
ENDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
LATE = "ended once they were continued, since they had been stopped while they started"
STOPPED = 0.25  # of them with workers that were stopped before
BEGUN_S = 0.1  # before that, the interpreter itself is starting, and heeds signals in its own way
SHORTER = 0.7  # a resumed run has less to do: within this part of a whole run's time it is killed
FAILED = 4  # exit code of a run that ended, where a case of it failed


Measured = set[tuple[str, int]]  # case and round


def options(backend: str) -> list[str]:
    """Of the run that is killed."""
    threads = [] if backend == "fake" else ["--threads", "1,2"]
    return [
        *("-b", backend, "-d", "cpu", *WORK, *threads, "--seed", "1"),
        *("--rounds", str(ROUNDS.get(backend, 2))),
    ]


def cases_of_a_heat(backend: str) -> int:
    """Those measured together: virtual time has no threads."""
    return 1 if backend == "fake" else PER_HEAT


def begin(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A command in the background, what it says in a file."""
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            [*COMMAND, *arguments, "--results", str(folder / "results")],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


def whole_run(backend: str) -> tuple[Measured, float]:
    """What a run that nobody kills measures, and the seconds it takes."""
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        process = begin(Path(name), *options(backend))
        assert process.wait(LONGEST_S) == 0
        (path,) = stored(Path(name))
        return measured(path), time.monotonic() - start


def stored(folder: Path) -> list[Path]:
    """The folders of runs that have a head."""
    return sorted(path.parent for path in folder.glob("results/runs/*/run.json"))


def measured(run: Path) -> Measured:
    """What the records are of."""
    return {(record.case.id, record.round) for record in runs.read_run(run).records}


def killed_after(
    process: subprocess.Popen[bytes], seconds: float, source: random.Random
) -> Counter[str] | None:
    """How it was killed, and how many of its processes outlive it; None where it had ended before."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return None
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    stopped = source.random() < STOPPED
    for worker in started if stopped else ():
        with suppress(psutil.NoSuchProcess):
            worker.suspend()
    process.send_signal(source.choice(ENDS))
    process.wait(GONE_S)
    _, alive = psutil.wait_procs(started, timeout=GONE_S)
    for worker in alive:  # one that was stopped before it could ask to end with its parent
        with suppress(psutil.NoSuchProcess):
            worker.resume()
    _, left = psutil.wait_procs(alive, timeout=GONE_S)
    late = len(alive) - len(left)
    return Counter({"kills": 1, "workers stopped": stopped, LATE: late, "processes left": len(left)})


def faults_after(folder: Path, whole: Measured, per_heat: int) -> Iterator[str]:
    """What is wrong after a kill: of the store, and of what was shown before."""
    heats = sum(line.startswith(b"heat ") for line in (folder / "said").read_bytes().splitlines())
    shown, kept = per_heat * heats, 0
    for path in stored(folder):
        run = runs.read_run(path)
        torn = [each for each in validate_path(path).remarks if "torn" in each.text]
        kept += len(run.records)
        yield from ["unreadable line"] * (len(run.damaged) - len(torn))
        yield from ["not valid" for _ in validate_path(path).faults]
        yield from ["record of no planned case" for _ in measured(path) - whole]
        yield from ["heat kept in part"] * (len(run.records) % per_heat > 0)
    yield from ["record lost"] * (shown - kept)


def faults_at_the_end(folder: Path, before: bytes, whole: Measured) -> Iterator[str]:
    """What is wrong with a run that was resumed to its end."""
    (path,) = stored(folder)
    text = (path / "records.jsonl").read_bytes()
    lines = [json.loads(line) for line in text.splitlines()]
    if not text.startswith(before[: before.rfind(b"\n") + 1]):
        yield "earlier records changed"
    if not runs.read_run(path).ended or validate_path(path).faults:
        yield "not a whole run"
    if measured(path) != whole:
        yield "other cases than those of a run that was not killed"
    if len(lines) != len(whole):
        yield "measured twice"


def trial(backend: str, whole: Measured, length_s: float, source: random.Random) -> Counter[str]:
    """One run, killed at least once; what was counted of it."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="accelbench-kills-") as name:
        folder, arguments = Path(name), options(backend)
        while True:
            longest = length_s * SHORTER if arguments == RESUME else length_s
            killed = killed_after(begin(folder, *arguments), source.uniform(BEGUN_S, longest), source)
            if killed is None:
                break
            found += killed
            found.update(faults_after(folder, whole, cases_of_a_heat(backend)))
            begun = stored(folder)
            found["before the run had a head"] += not begun
            found["resumed"] += bool(begun)
            arguments = RESUME if begun else arguments
            if source.random() >= AGAIN:
                break
        found.update(finish(folder, arguments, whole))
    return found


def finish(folder: Path, arguments: list[str], whole: Measured) -> Iterator[str]:
    """Let it end, if it has not; then what is wrong."""
    before = b"".join((path / "records.jsonl").read_bytes() for path in stored(folder))
    open_runs = [path for path in stored(folder) if runs.progress(path) is runs.Progress.INTERRUPTED]
    if open_runs or not stored(folder):
        code = begin(folder, *arguments).wait(LONGEST_S)
        yield from ["a case failed"] * (code == FAILED) or ["not resumed"] * (code != 0)
        if code:
            print((folder / "said").read_text(), file=sys.stderr)
    said = (folder / "said").read_text()
    yield from ["traceback printed"] * ("Traceback" in said or "Exception ignored" in said)
    yield from faults_at_the_end(folder, before, whole)


def study(backend: str, kills: int, seed: int = 0) -> Counter[str]:
    """As many kills at least."""
    whole, length_s = whole_run(backend)
    source, found = random.Random(seed), Counter[str]()
    while found["kills"] < kills:
        found["runs"] += 1
        found += trial(backend, whole, length_s, source)
        print(dict(found), file=sys.stderr, flush=True)
    return found


TOLD = (
    *("kills", "workers stopped", LATE, "runs", "before the run had a head", "resumed", "a case failed"),
    "heat kept in part",  # killed while its records were stored; the rest was measured beside nobody
)
FAULTS = (
    *("record lost", "unreadable line", "not valid", "record of no planned case", "processes left"),
    *("not resumed", "earlier records changed", "not a whole run", "measured twice", "traceback printed"),
    "other cases than those of a run that was not killed",
)


def main(backend: str, kills: str) -> None:
    found = study(backend, int(kills))
    print(f"{backend}:", ", ".join(f"{found[name]} {name}" for name in TOLD))
    print("  faults:", ", ".join(f"{found[name]} {name}" for name in FAULTS))


if __name__ == "__main__":
    main(*sys.argv[1:])
