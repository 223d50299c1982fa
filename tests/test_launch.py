"""One worker, asked directly: what it answers, and how its ends are told apart."""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from benchbench.launch.process import Worker
from benchbench.launch.scratch import RunScratch
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.model.status import Status
from benchbench.timing.policy import POLICIES
from tests.factories import a_case
from tests.program import WORKLOADS

FAKE = Target(name="fake", backend="fake", python=sys.executable)


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunScratch]:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(WORKLOADS))
    found = RunScratch()
    yield found
    found.close()
    assert not found.path.exists()


def test_a_run_removes_what_killed_runs_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running, kept = RunScratch(), tmp_path / "kept"
    kept.mkdir()
    for name in ("accelbench-run-killed", "accelbench-other", "accelbench-run-young"):
        (tmp_path / name / "drawn").mkdir(parents=True)
    (tmp_path / "accelbench-run-link").symlink_to(kept)
    for path in tmp_path.iterdir():
        if "young" not in path.name:
            os.utime(path, (0, 0))
    RunScratch().close()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        running.path.name,
        "kept",
        "accelbench-other",
        "accelbench-run-young",
        "accelbench-run-link",
    }
    running.close()
    assert not running.path.exists()


def job(workload: str, **params: Any) -> dict[str, Any]:
    case = a_case(workload=workload, params=params, backend="fake", target="fake")
    policy = dataclasses.asdict(POLICIES["quick"])
    return {
        "kind": "measure",
        "case": dataclasses.asdict(case),
        "policy": policy,
        "warm": False,
        "reference": [],
    }


def worker(scratch: RunScratch, target: Target = FAKE, count: Callable[[], int] = lambda: 0) -> Worker:
    return Worker(target, Settings(threads=1), scratch, count)


def test_a_worker_says_its_version_and_then_answers_one_job_after_the_other(scratch: RunScratch) -> None:
    found = worker(scratch)
    assert found.ready()["status"] == "ready"
    for _ in range(2):
        answer = found.ask(job("gemm", m=64, n=64, k=64), 30, fork=True)
        assert answer.reply is not None
        assert answer.reply["outcome"]["status"] == "ok"
    found.close()
    assert not found.alive


@pytest.mark.parametrize(
    ("kills", "status"), [(repeat(3), Status.CRASHED), (chain([3], repeat(4)), Status.OUT_OF_MEMORY)]
)
def test_a_killed_job_ran_out_of_memory_if_the_kernel_counts_one_more(
    scratch: RunScratch, kills: Iterator[int], status: Status
) -> None:
    found = worker(scratch, count=lambda: next(kills))
    found.ready()
    answer = found.ask(job("killed", size=8), 30, fork=True)
    assert (answer.reply, answer.status) == (None, status)
    found.close()


def test_a_job_without_a_process_of_its_own_takes_its_worker_with_it(scratch: RunScratch) -> None:
    found = worker(scratch)
    found.ready()
    assert found.ask(job("crashing", size=8), 30, fork=False).status is Status.CRASHED
    assert not found.alive
    assert found.ask(job("gemm", m=8, n=8, k=8), 30, fork=True).status is Status.CRASHED
    found.close()


def test_a_failure_carries_the_end_of_what_the_worker_printed(scratch: RunScratch) -> None:
    found = worker(scratch)
    found.ready()
    answer = found.ask(job("shouting", size=8), 30, fork=True)
    assert answer.status is Status.CRASHED
    assert answer.log.endswith("the last word\n")
    assert len(answer.log) <= 4096
    found.close()


def test_a_hung_job_is_ended_in_time_and_the_worker_stays_usable(scratch: RunScratch) -> None:
    found = worker(scratch)
    found.ready()
    answer = found.ask(job("hanging", size=8), 1, fork=True)
    assert answer.status is Status.TIMEOUT
    assert "hung without computing" in answer.message
    assert found.alive
    again = found.ask(job("gemm", m=8, n=8, k=8), 30, fork=True)
    assert again.reply is not None
    found.close()


def test_an_interpreter_that_does_not_start_a_worker_is_broken(scratch: RunScratch) -> None:
    found = worker(scratch, Target(name="x", backend="fake", python="/bin/false"))
    message = found.ready(10)
    assert message["status"] == "broken"
    assert "exit code 1" in message["reason"]
    found.close()


def test_an_import_that_takes_too_long_is_broken(scratch: RunScratch, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    found = worker(scratch, Target(name="x", backend="fake", python=str(slow)))
    assert found.ready(0.2) == {"status": "broken", "reason": "importing it took more than 0 s"}
    assert not found.alive


def test_a_worker_sees_only_what_is_allowed_of_the_environment(
    scratch: RunScratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary")
    environment = scratch.environment(FAKE, Settings(threads=3))
    assert "canary" not in environment.values()
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["PYTHONPATH"].startswith(str(scratch.path))


def test_a_foreign_interpreter_does_not_see_this_ones_packages(
    scratch: RunScratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    foreign = Target(name="fake@other", backend="fake", python="/other/python")
    assert "/somewhere" in scratch.environment(FAKE, Settings(threads=1))["PYTHONPATH"]
    assert "/somewhere" not in scratch.environment(foreign, Settings(threads=1))["PYTHONPATH"]
