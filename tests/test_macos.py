"""Runs as on macOS, simulated on Linux by `macos.py`: without /proc, forks and further functions."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchbench.cli.program import check_system
from benchbench.errors import UnsupportedSystem
from benchbench.launch.local import LocalTransport
from benchbench.launch.transport import JobEnd
from benchbench.machine import environment
from benchbench.machine.environment import limits
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.running.measure import warn_of_system_limits
from tests.factories import NotingObserver
from tests.program import environment as variables
from tests.program import rows
from tests.test_architecture import PACKAGE
from tests.test_heats import given_turn, start_job

SCRIPT = Path(__file__).parent / "macos.py"
SERVICES = re.compile(r"""["'(]/proc|prctl\(|sched_(get|set)affinity|pidfd_|os\.waitid""")
KERNEL = ("machine/kernel.py", "worker/children.py", "worker/__main__.py")  # waitid, if the system is Linux


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A program that runs Python as on macOS, and starts further processes by itself."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {SCRIPT} {program} "$@"\n')
    program.chmod(0o755)
    return program


def accelbench(python: Path, *arguments: str) -> str:
    command = [str(python), "-m", "benchbench.cli", *arguments]
    folder, path = python.parent, os.pathsep.join(filter(None, sys.path))
    env = variables(PYTHONPATH=path, ACCELBENCH_WORKLOADS="")
    process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.mark.real
def test_runs_functions_and_reports_need_no_services_of_linux(python: Path) -> None:
    backends = ["torch", "fake"] if find_spec("torch") else ["fake"]
    size = ("-p", "m=n=k=64", "--mode", "eager")
    accelbench(python, "run", "-b", ",".join(backends), "-w", "gemm", "-d", "cpu", "--heats", "1", *size)
    measured = rows(python.parent)
    assert [row["status"] for row in measured] == ["ok"] * len(backends)
    assert all(row["relative_error"] < 1e-4 for row in measured if row["backend"] == "torch")
    (python.parent / "function.py").write_text("def step(): return sum(range(1000))\n")
    accelbench(python, "time", "function.py:step", "--heats", "1")
    assert "function.py:step" in accelbench(python, "report", "latest")
    assert json.loads(accelbench(python, "doctor", "--format", "json"))


def test_a_case_on_macos_has_a_fresh_process_that_takes_turns(python: Path) -> None:
    transport = LocalTransport(Settings(threads=sys.maxsize))
    worker = transport.start(Target(name="fake", backend="fake", python=str(python)), {})
    assert worker.ready().status == "ready"
    job = start_job(worker)
    assert Path(f"/proc/{job.pid}/cmdline").read_text().endswith("\0benchbench.worker\0fake\0")
    job.stop()
    job.resume()
    given_turn(job)
    job.send({"turn": 0})
    answer = job.result(30.0)
    assert answer.reply is not None
    assert len(answer.reply["outcome"]["turns"]) == 1
    answer = worker.run({"kind": "probe"}, 30, fork=True)
    assert answer.end is JobEnd.ANSWERED, answer
    transport.close()
    assert not worker.alive


def test_only_one_module_uses_services_of_linux() -> None:
    users = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if SERVICES.search(re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL))
    }
    assert users <= {*KERNEL}


def test_the_cpu_of_a_mac_is_named_by_sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sysctl"
    program.write_text('#!/bin/sh\n[ "$*" = "-n machdep.cpu.brand_string" ] && echo Apple M3 Max\n')
    program.chmod(0o755)
    import_module("psutil")  # before the platform changes: its parts depend on it
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert environment.machine(tmp_path).cpu == "Apple M3 Max"
    program.unlink()
    assert environment.machine(tmp_path).cpu


def test_linux_without_proc_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSystem, match="needs /proc"):
        check_system("linux", tmp_path)
    check_system("darwin", tmp_path)
    check_system(sys.platform)


@pytest.mark.parametrize("platform", ["win32", "cygwin", "emscripten"])
def test_a_system_that_cannot_fork_is_refused_in_one_line(platform: str) -> None:
    with pytest.raises(UnsupportedSystem, match=platform) as refusal:
        check_system(platform)
    assert "\n" not in str(refusal.value)
    assert refusal.value.hint


def test_missing_features_of_macos_are_reported() -> None:
    observer = NotingObserver()
    for platform in ("linux", "darwin"):
        check_system(platform)
        warn_of_system_limits(observer, platform)
    (line,) = observer.notes
    assert line == limits("darwin")
    assert line.startswith("macOS is not tested: cases are timed and verified as on Linux, but ")
    assert "\n" not in line
