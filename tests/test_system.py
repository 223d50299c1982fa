"""Systems other than Linux: one line names the missing features, and the rest works."""

import sys
from pathlib import Path

import pytest

from benchbench.cli.program import check_system
from benchbench.errors import UnsupportedSystem
from benchbench.launch.local import LocalTransport
from benchbench.launch.transport import JobEnd
from benchbench.machine.environment import limits
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.running.measure import warn_of_system_limits
from benchbench.running.observer import RunObserver

ELSEWHERE = """
import os, runpy, sys
sys.platform = "darwin"
for name in ("waitid", "sched_getaffinity", "sched_setaffinity"):
    delattr(os, name)
sys.argv = ["worker", *sys.argv[4:]]
runpy.run_module("benchbench.worker", run_name="__main__", alter_sys=True)
"""


class Notes(RunObserver):
    """Collects messages."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


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
    observer = Notes()
    for platform in ("linux", "darwin"):
        check_system(platform)
        warn_of_system_limits(observer, platform)
    (line,) = observer.notes
    assert line == limits("darwin")
    assert line.startswith("macOS is not tested: cases are timed and verified as on Linux, but ")
    assert "\n" not in line


def test_a_worker_runs_without_linux_features(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "elsewhere.py"} "$@"\n')
    python.chmod(0o755)
    transport = LocalTransport(Settings(threads=sys.maxsize))
    worker = transport.start(Target(name="x", backend="fake", python=str(python)), {})
    assert worker.ready().status == "ready"
    for _ in range(2):
        answer = worker.run({"kind": "probe"}, 30, fork=True)
        assert answer.end is JobEnd.ANSWERED, answer
    transport.close()
    assert not worker.alive
