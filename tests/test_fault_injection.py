"""A fault at every write of a run, a baseline, a plot and a pytest session loses nothing silently."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchbench.analyse.digest import digest
from benchbench.errors import UnreadableInput
from benchbench.gate import baselines
from benchbench.machine.environment import machine
from benchbench.pytest_plugin.session import SessionWriter, record
from benchbench.store import disk, runs
from benchbench.timing.policy import POLICIES
from tests.factories import CPU, a_measurement, a_record, a_run, a_run_info, some_rounds
from tests.injection import ENDED, Outcome, every_fault
from tests.test_architecture import ROOT

Report = Callable[[Any], None]


def after_each_fault(
    make: Callable[[], Callable[[Report], None]], check: Callable[[int, str, Outcome], None]
) -> list[Outcome]:
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

    def make() -> Callable[[Report], None]:
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

    def make() -> Callable[[Report], None]:
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

    def make() -> Callable[[Report], None]:
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

    def make() -> Callable[[Report], None]:
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


def faults_of_a_replaced_baseline(tmp_path: Path) -> list[Outcome]:
    return faults_of_a_baseline(tmp_path, replaced=True)


def faults_of(work: str) -> int:
    """The number of faults tried, in a fresh process without the imports of other tests."""
    command = [sys.executable, "-m", "studies.injected_faults", work]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    match = re.search(r"(\d+) faults: ", process.stdout)
    assert match, process.stdout
    return int(match[1])


@pytest.mark.real
def test_s2_w8_a_fault_at_any_write_of_a_run_loses_no_promised_record() -> None:
    assert faults_of("run") > 20


@pytest.mark.real
@pytest.mark.parametrize("work", ["baseline set", "baseline set --replace"])
def test_s11_a_fault_at_any_write_of_a_baseline_loses_no_session(work: str) -> None:
    assert faults_of(work) > 5


@pytest.mark.real
def test_s10_a_fault_at_any_write_of_a_plot_leaves_the_old_or_the_new_plot() -> None:
    assert faults_of("plot") > 5


@pytest.mark.real
def test_a_fault_at_any_write_of_a_pytest_session_loses_no_measured_test() -> None:
    assert faults_of("pytest session") > 20
