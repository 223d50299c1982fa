"""A fault at every write of a run, a baseline, a plot and a pytest session loses nothing silently."""

import re
import subprocess
import sys

import pytest

from tests.test_architecture import ROOT


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
