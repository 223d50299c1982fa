"""A fault at every write of a run, a baseline, a plot and a pytest session: nothing is lost in silence."""

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

Tell = Callable[[Any], None]


def after_each_fault(
    make: Callable[[], Callable[[Tell], None]], check: Callable[[int, str, Outcome], None]
) -> list[Outcome]:
    """It succeeded in spite of the fault, reported it as an expected one, or was ended; then `check`."""
    outcomes = list[Outcome]()
    for number, (act, _, outcome) in enumerate(every_fault(make), start=1):
        outcomes.append(outcome)
        assert outcome.code in ((0, 6) if act == "error" else (0, ENDED)), outcome
        check(number, act, outcome)
    return outcomes


def stored(folder: Path) -> set[int]:
    """Rounds of the records that can be read; none where the run itself cannot."""
    try:
        return {each.round for each in runs.read_run(folder).records}
    except UnreadableInput:
        return set()


def faults_of_a_run(tmp_path: Path) -> list[Outcome]:
    numbers = count()

    def make() -> Callable[[Tell], None]:
        info = a_run_info(id=f"run-{next(numbers)}")

        def work(tell: Tell) -> None:
            with runs.create_run(tmp_path, info) as writer:
                for number in range(3):
                    writer.append(a_record(round=number))
                    tell(number)
            tell("end")

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        folder = tmp_path / f"runs/run-{number}"
        promised = {each for each in outcome.promises if each != "end"}
        assert promised <= stored(folder), (act, outcome)
        if "end" in outcome.promises:
            run = runs.read_run(folder)
            assert (run.ended, run.damaged, len(run.records)) == (True, (), 3)

    return after_each_fault(make, check)


def faults_of_a_baseline(tmp_path: Path, replaced: bool = False) -> list[Outcome]:
    numbers = count()
    sessions = [
        digest(a_run(some_rounds(1e-3, 1.1e-3), id=f"s{n}", started=f"2026-01-0{n + 1}")) for n in range(3)
    ]

    def make() -> Callable[[Tell], None]:
        root = tmp_path / str(next(numbers))
        for each in sessions[:2]:
            baselines.add_session(root, "main", each)

        def work(tell: Tell) -> None:
            baselines.add_session(root, "main", sessions[2], replace=replaced)
            tell("set")

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        unread: list[str] = []
        (kept,) = baselines.read_baseline(tmp_path / str(number), "main", unread.append).values()
        names = {each.id for each in kept}
        assert not unread
        assert {"s2"} <= names or {"s0", "s1"} <= names, (act, outcome)
        assert "set" not in outcome.promises or names == ({"s2"} if replaced else {"s0", "s1", "s2"})

    return after_each_fault(make, check)


def faults_of_a_plot(tmp_path: Path) -> list[Outcome]:
    numbers = count()

    def make() -> Callable[[Tell], None]:
        root = tmp_path / str(next(numbers))
        disk.save_below(root, root / "plots/x.png", b"old" * 1000)

        def work(tell: Tell) -> None:
            disk.save_below(root, root / "plots/x.png", b"new" * 1000)
            disk.save(root / "report.md", b"text")
            tell("saved")

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        root = tmp_path / str(number)
        assert (root / "plots/x.png").read_bytes() in (b"old" * 1000, b"new" * 1000)
        assert not (root / "report.md").exists() or (root / "report.md").read_bytes() == b"text"
        assert "saved" not in outcome.promises or (root / "report.md").exists()
        left = [path.name for path in root.rglob(".*.tmp")]
        assert act == "end" or outcome.code == 0 or len(left) <= 1

    return after_each_fault(make, check)


def faults_of_a_session(tmp_path: Path) -> list[Outcome]:
    numbers = count()
    before = a_run(some_rounds(1e-3), machine=machine())

    def make() -> Callable[[Tell], None]:
        root = tmp_path / str(next(numbers))
        runs.store_run(root, replace(before, info=replace(before.info, id="main")))

        def work(tell: Tell) -> None:
            writer = SessionWriter(root, "main", POLICIES["quick"])
            info = writer.run.info
            for number in range(2):
                made = record(f"test_{number}", None, CPU, a_measurement(), (1, number))
                info = replace(info, plan=(*info.plan, made.case))
                writer.append(info, made)
                tell(made.case.workload)
            writer.end()

        return work

    def check(number: int, act: str, outcome: Outcome) -> None:
        run = runs.read_run(tmp_path / str(number) / "runs/main")
        found = {each.case.workload for each in run.records}
        assert {"gemm", *outcome.promises} <= found, (act, outcome)

    return after_each_fault(make, check)


def faults_of_a_replaced_baseline(tmp_path: Path) -> list[Outcome]:
    return faults_of_a_baseline(tmp_path, replaced=True)


def faults_of(work: str) -> int:
    """How many were tried, in a fresh process: a fork of this one would have what other tests imported."""
    command = [sys.executable, "-m", "studies.injected_faults", work]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d+) faults: ", done.stdout)
    assert found, done.stdout
    return int(found[1])


@pytest.mark.real
def test_s2_w8_a_fault_at_any_write_of_a_run_loses_no_record_that_was_promised() -> None:
    assert faults_of("run") > 20


@pytest.mark.real
@pytest.mark.parametrize("work", ["baseline set", "baseline set --replace"])
def test_s11_a_fault_at_any_write_of_a_baseline_loses_no_session(work: str) -> None:
    assert faults_of(work) > 5


@pytest.mark.real
def test_s10_a_fault_at_any_write_of_a_plot_leaves_the_old_one_or_the_new() -> None:
    assert faults_of("plot") > 5


@pytest.mark.real
def test_a_fault_at_any_write_of_a_pytest_session_loses_no_test_that_was_measured() -> None:
    assert faults_of("pytest session") > 20
