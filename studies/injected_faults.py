"""Faults injected at every write of a run, a baseline, a plot and a pytest session.

    python -m studies.injected_faults [WORK …] > studies/output/injected_faults.txt

In each trial, the k-th write raises an error or ends the process like SIGKILL. A write is any write, flush,
fsync, truncate, rename, link, unlink, mkdir or open for writing. Prints the number of faults and their
outcomes: `reported` with exit code 6, `survived`, or `ended` with the process. After each fault, everything
that was reported as stored must be readable; otherwise the study fails.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchbench.analyse.digest import digest
from benchbench.errors import AccelbenchError, UnreadableInput
from benchbench.gate import baselines
from benchbench.machine.environment import machine
from benchbench.pytest_plugin.session import SessionWriter, record
from benchbench.store import disk, runs
from benchbench.timing.policy import POLICIES
from tests.factories import CPU, a_measurement, a_record, a_run, a_run_info, some_rounds

NAMES = ("write", "fsync", "ftruncate", "replace", "rename", "link", "symlink", "unlink", "rmdir", "mkdir")
ENDED = 9  # exit code of a child that ended at its write
Act = Callable[[], None]
Report = Callable[[Any], None]  # reports a promise
Work = Callable[[Report], None]


def error() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def end() -> None:
    os._exit(ENDED)


ACTS: dict[str, Act] = {"error": error, "end": end}


@dataclass(frozen=True)
class Outcome:
    """Outcome of a trial in a child process."""

    code: int
    promises: list[Any]  # values that it reported as stored
    failure: str  # error message, empty if it succeeded
    operations: int  # number of writes


class _File:
    """An open file that counts its writes."""

    def __init__(self, file: Any, count: Callable[[], None]) -> None:
        self._file, self._count = file, count

    def write(self, content: Any) -> int:
        self._count()
        return int(self._file.write(content))

    def flush(self) -> None:
        self._count()
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class Injector:
    """Counter of operations that acts at operation `at`, counted from 0."""

    def __init__(self, at: int, act: Act) -> None:
        self._at, self._act = at, act
        self.count = 0

    def install(self) -> None:
        for name in NAMES:
            setattr(os, name, self._counting(getattr(os, name)))
        io_open, os_open = io.open, os.open

        def open_file(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            handle = io_open(file, mode, *more, **options)
            return _File(handle, self._tick) if set(mode) & set("wxa+") else handle

        def open_descriptor(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self._tick()
            return os_open(path, flags, *more, **options)

        io.open, os.open = open_file, open_descriptor

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_count(*arguments: Any, **options: Any) -> Any:
            self._tick()
            return function(*arguments, **options)

        return call_and_count

    def _tick(self) -> None:
        self.count += 1
        if self.count - 1 == self._at:
            self._act()


def run_in_child(work: Work, at: int, act: Act) -> Outcome:
    """Run `work` in a fork with a fault at operation `at`; `work` gets a function that reports a promise."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forks with threads: the child only writes
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(work, writer, Injector(at, act))
    os.close(writer)
    with os.fdopen(reader) as lines:
        messages = [json.loads(line) for line in lines]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    promises = [value for kind, value in messages if kind == "promise"]
    failure = next((value for kind, value in messages if kind == "failure"), "")
    operations = next((value for kind, value in messages if kind == "operations"), 0)
    return Outcome(code, promises, failure, operations)


def _child(work: Work, writer: int, injector: Injector) -> None:
    write = os.write

    def send(kind: str, value: Any) -> None:
        write(writer, json.dumps([kind, value]).encode() + b"\n")

    code = 1
    try:
        injector.install()
        work(lambda value: send("promise", value))
        code = 0
    except AccelbenchError as error:
        send("failure", str(error))
        code = error.exit_code
    except BaseException as error:  # noqa: BLE001 - a fault of the product, which the parent reports
        send("failure", f"{type(error).__name__}: {error}")
        code = 70
    finally:
        send("operations", injector.count)
        os._exit(code)


def every_fault(make: Callable[[], Work]) -> Iterator[tuple[str, int, Outcome]]:
    """(act, index, outcome) for a fault at each operation in turn; `make` prepares fresh work each time."""
    operations = run_in_child(make(), -1, error).operations
    for name, act in ACTS.items():
        for at in range(operations):
            yield name, at, run_in_child(make(), at, act)


def after_each_fault(make: Callable[[], Work], check: Callable[[int, str, Outcome], None]) -> list[Outcome]:
    """Check each outcome: success in spite of the fault, an expected error, or the end; then call `check`."""
    outcomes = list[Outcome]()
    for number, (act, _, outcome) in enumerate(every_fault(make), start=1):
        outcomes.append(outcome)
        assert outcome.code in ((0, 6) if act == "error" else (0, ENDED)), outcome
        check(number, act, outcome)
    return outcomes


def readable_rounds(folder: Path) -> set[int]:
    try:
        return {record.round for record in runs.read_run(folder).records}
    except UnreadableInput:
        return set()


def faults_of_a_run(tmp_path: Path) -> list[Outcome]:
    numbers = count()

    def make() -> Work:
        info = a_run_info(id=f"run-{next(numbers)}")

        def work(report: Report) -> None:
            with runs.create_run(tmp_path, info) as writer:
                for number in range(3):
                    writer.append(a_record(round=number))
                    report(number)
            report("end")

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        folder = tmp_path / f"runs/run-{number}"
        promised = {value for value in outcome.promises if value != "end"}
        assert promised <= readable_rounds(folder), (act, outcome)
        if "end" in outcome.promises:
            run = runs.read_run(folder)
            assert (run.ended, run.damaged, len(run.records)) == (True, (), 3)

    return after_each_fault(make, check)


def faults_of_a_baseline(tmp_path: Path, replaced: bool = False) -> list[Outcome]:
    numbers = count()
    sessions = [
        digest(a_run(some_rounds(1e-3, 1.1e-3), id=f"s{n}", started=f"2026-01-0{n + 1}")) for n in range(3)
    ]

    def make() -> Work:
        root = tmp_path / str(next(numbers))
        for session in sessions[:2]:
            baselines.add_session(root, "main", session)

        def work(report: Report) -> None:
            baselines.add_session(root, "main", sessions[2], replace=replaced)
            report("set")

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        unread: list[str] = []
        (stored_sessions,) = baselines.read_baseline(tmp_path / str(number), "main", unread.append).values()
        names = {session.id for session in stored_sessions}
        assert not unread
        assert {"s2"} <= names or {"s0", "s1"} <= names, (act, outcome)
        assert "set" not in outcome.promises or names == ({"s2"} if replaced else {"s0", "s1", "s2"})

    return after_each_fault(make, check)


def faults_of_a_plot(tmp_path: Path) -> list[Outcome]:
    numbers = count()

    def make() -> Work:
        root = tmp_path / str(next(numbers))
        disk.save_below(root, root / "plots/x.png", b"old" * 1000)

        def work(report: Report) -> None:
            disk.save_below(root, root / "plots/x.png", b"new" * 1000)
            disk.save(root / "report.md", b"text")
            report("saved")

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        root = tmp_path / str(number)
        assert (root / "plots/x.png").read_bytes() in (b"old" * 1000, b"new" * 1000)
        assert not (root / "report.md").exists() or (root / "report.md").read_bytes() == b"text"
        assert "saved" not in outcome.promises or (root / "report.md").exists()
        temporary_files = [path.name for path in root.rglob(".*.tmp")]
        assert act == "end" or outcome.code == 0 or len(temporary_files) <= 1

    return after_each_fault(make, check)


def faults_of_a_session(tmp_path: Path) -> list[Outcome]:
    numbers = count()
    before = a_run(some_rounds(1e-3), machine=machine())

    def make() -> Work:
        root = tmp_path / str(next(numbers))
        runs.store_run(root, replace(before, info=replace(before.info, id="main")))

        def work(report: Report) -> None:
            writer = SessionWriter(root, "main", POLICIES["quick"])
            info = writer.run.info
            for number in range(2):
                test_record = record(f"test_{number}", None, CPU, a_measurement(), (1, number))
                info = replace(info, plan=(*info.plan, test_record.case))
                writer.append(info, test_record)
                report(test_record.case.workload)
            writer.end()

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        run = runs.read_run(tmp_path / str(number) / "runs/main")
        workloads = {value.case.workload for value in run.records}
        assert {"gemm", *outcome.promises} <= workloads, (act, outcome)

    return after_each_fault(make, check)


ENDINGS = {0: "survived", 6: "reported", ENDED: "ended"}
WORK: dict[str, Callable[[Path], list[Outcome]]] = {
    "run": faults_of_a_run,
    "baseline set": faults_of_a_baseline,
    "baseline set --replace": partial(faults_of_a_baseline, replaced=True),
    "plot": faults_of_a_plot,
    "pytest session": faults_of_a_session,
}


def summary(outcomes: list[Outcome]) -> str:
    """Return a summary such as `44 faults: 21 reported, 1 survived, 22 ended`."""
    counts = Counter(ENDINGS[outcome.code] for outcome in outcomes)
    return f"{len(outcomes)} faults: {', '.join(f'{count} {name}' for name, count in counts.items())}"


def main() -> None:
    """Print a line for each kind of work, or for the named kinds."""
    for name in sys.argv[1:] or WORK:
        faults = WORK[name]
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:<24}{summary(faults(Path(folder)))}")


if __name__ == "__main__":
    main()
