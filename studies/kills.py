"""Kill runs at random moments and check that no stored record is lost and that every run resumes.

    python -m studies.kills BACKEND KILLS      # such as `fake 150` or `torch 50`

Each trial starts a run and ends it by SIGKILL, SIGINT or SIGTERM. In a quarter of the kills the workers are
stopped (SIGSTOP) before. The run is then resumed, and with a probability of 0.8 killed again. The last
resumption runs to its end. The program prints counts of events and of faults, as in studies/output/kills.txt.
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
ROUNDS = {"fake": 5}  # the fake backend needs little time for a round; other backends get two
CASES_PER_HEAT = 2  # real backends: the same work with 1 and with 2 threads
RESUME = ["--resume"]
RUN_TIMEOUT_S = 600.0
EXIT_TIMEOUT_S = 30.0  # every process of a killed run has to end within it
KILL_AGAIN = 0.8  # probability that a resumed run is killed too
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
LATE = "ended once they were continued, since they had been stopped while they started"
STOP_WORKERS = 0.25  # probability that the workers are stopped before the kill
EARLIEST_KILL_S = 0.1  # before, Python itself is starting and handles signals differently
RESUMED_SHARE = 0.7  # a resumed run is killed within this share of an uninterrupted run's time
CASES_FAILED = 4  # exit code of a run in which a case failed


CaseRounds = set[tuple[str, int]]  # case and round


def options(backend: str) -> list[str]:
    """Command-line options of the runs."""
    threads = [] if backend == "fake" else ["--threads", "1,2"]
    return [
        *("-b", backend, "-d", "cpu", *WORK, *threads, "--seed", "1"),
        *("--rounds", str(ROUNDS.get(backend, 2))),
    ]


def cases_per_heat(backend: str) -> int:
    """Cases that one heat measures together; the fake backend has no threads to vary."""
    return 1 if backend == "fake" else CASES_PER_HEAT


def stderr_path(folder: Path) -> Path:
    return folder / "stderr.txt"


def start_command(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the command in the background; its stderr is appended to a file."""
    with stderr_path(folder).open("ab") as stderr:
        return subprocess.Popen(
            [*COMMAND, *arguments, "--results", str(folder / "results")],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def uninterrupted_run(backend: str) -> tuple[CaseRounds, float]:
    """Cases and rounds that a run measures if it is not killed, and its seconds."""
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        process = start_command(Path(name), *options(backend))
        assert process.wait(RUN_TIMEOUT_S) == 0
        (path,) = run_folders(Path(name))
        return measured_rounds(path), time.monotonic() - start


def run_folders(folder: Path) -> list[Path]:
    """Folders of the runs whose run.json exists."""
    return sorted(path.parent for path in folder.glob("results/runs/*/run.json"))


def measured_rounds(run: Path) -> CaseRounds:
    return {(record.case.id, record.round) for record in runs.read_run(run).records}


def kill_after(
    process: subprocess.Popen[bytes], seconds: float, source: random.Random
) -> Counter[str] | None:
    """Kill the run after so many seconds; return counts of what happened, or None if it had ended before."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return None
    children: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
    stopped = source.random() < STOP_WORKERS
    for worker in children if stopped else ():
        with suppress(psutil.NoSuchProcess):
            worker.suspend()
    process.send_signal(source.choice(SIGNALS))
    process.wait(EXIT_TIMEOUT_S)
    _, alive = psutil.wait_procs(children, timeout=EXIT_TIMEOUT_S)
    for worker in alive:  # stopped before it had asked the kernel to end with its parent
        with suppress(psutil.NoSuchProcess):
            worker.resume()
    _, survivors = psutil.wait_procs(alive, timeout=EXIT_TIMEOUT_S)
    late = len(alive) - len(survivors)
    return Counter({"kills": 1, "workers stopped": stopped, LATE: late, "processes left": len(survivors)})


def faults_after(folder: Path, planned: CaseRounds, heat_size: int) -> Iterator[str]:
    """Faults of the store after a kill, and records of completed heats that are missing."""
    heats = sum(line.startswith(b"heat ") for line in stderr_path(folder).read_bytes().splitlines())
    announced, record_count = heat_size * heats, 0
    for path in run_folders(folder):
        run = runs.read_run(path)
        torn = [remark for remark in validate_path(path).remarks if "torn" in remark.text]
        record_count += len(run.records)
        yield from ["unreadable line"] * (len(run.damaged) - len(torn))
        yield from ["not valid" for _ in validate_path(path).faults]
        yield from ["record of no planned case" for _ in measured_rounds(path) - planned]
        yield from ["heat kept in part"] * (len(run.records) % heat_size > 0)
    yield from ["record lost"] * (announced - record_count)


def faults_at_the_end(folder: Path, before: bytes, planned: CaseRounds) -> Iterator[str]:
    """Faults of a run that was resumed to its end."""
    (path,) = run_folders(folder)
    text = (path / "records.jsonl").read_bytes()
    lines = [json.loads(line) for line in text.splitlines()]
    if not text.startswith(before[: before.rfind(b"\n") + 1]):
        yield "earlier records changed"
    if not runs.read_run(path).ended or validate_path(path).faults:
        yield "not a whole run"
    if measured_rounds(path) != planned:
        yield "other cases than those of a run that was not killed"
    if len(lines) != len(planned):
        yield "measured twice"


def trial(backend: str, planned: CaseRounds, run_s: float, source: random.Random) -> Counter[str]:
    """Counts of events and faults of one run that is killed and resumed."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="accelbench-kills-") as name:
        folder, arguments = Path(name), options(backend)
        while True:
            latest_s = run_s * RESUMED_SHARE if arguments == RESUME else run_s
            events = kill_after(
                start_command(folder, *arguments), source.uniform(EARLIEST_KILL_S, latest_s), source
            )
            if events is None:
                break
            counts += events
            counts.update(faults_after(folder, planned, cases_per_heat(backend)))
            folders = run_folders(folder)
            counts["before the run had a head"] += not folders
            counts["resumed"] += bool(folders)
            arguments = RESUME if folders else arguments
            if source.random() >= KILL_AGAIN:
                break
        counts.update(finish(folder, arguments, planned))
    return counts


def finish(folder: Path, arguments: list[str], planned: CaseRounds) -> Iterator[str]:
    """Resume the run to its end if it has not ended; yield its faults."""
    before = b"".join((path / "records.jsonl").read_bytes() for path in run_folders(folder))
    open_runs = [path for path in run_folders(folder) if runs.progress(path) is runs.Progress.INTERRUPTED]
    if open_runs or not run_folders(folder):
        code = start_command(folder, *arguments).wait(RUN_TIMEOUT_S)
        yield from ["a case failed"] * (code == CASES_FAILED) or ["not resumed"] * (code != 0)
        if code:
            print(stderr_path(folder).read_text(), file=sys.stderr)
    errors = stderr_path(folder).read_text()
    yield from ["traceback printed"] * ("Traceback" in errors or "Exception ignored" in errors)
    yield from faults_at_the_end(folder, before, planned)


def study(backend: str, kills: int, seed: int = 0) -> Counter[str]:
    """Counts of events and faults over trials with at least so many kills."""
    planned, run_s = uninterrupted_run(backend)
    source, counts = random.Random(seed), Counter[str]()
    while counts["kills"] < kills:
        counts["runs"] += 1
        counts += trial(backend, planned, run_s, source)
        print(dict(counts), file=sys.stderr, flush=True)
    return counts


EVENTS = (
    *("kills", "workers stopped", LATE, "runs", "before the run had a head", "resumed", "a case failed"),
    "heat kept in part",  # killed while its records were stored; the remaining cases ran without rivals
)
FAULTS = (
    *("record lost", "unreadable line", "not valid", "record of no planned case", "processes left"),
    *("not resumed", "earlier records changed", "not a whole run", "measured twice", "traceback printed"),
    "other cases than those of a run that was not killed",
)


def main(backend: str, kills: str) -> None:
    counts = study(backend, int(kills))
    print(f"{backend}:", ", ".join(f"{counts[name]} {name}" for name in EVENTS))
    print("  faults:", ", ".join(f"{counts[name]} {name}" for name in FAULTS))


if __name__ == "__main__":
    main(*sys.argv[1:])
