"""One worker on its own: its answers, and the kinds of its end."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from benchbench.launch.local import LocalTransport, RunScratch
from benchbench.launch.transport import Greeting, JobEnd, Worker
from benchbench.model.case import Status
from benchbench.model.device import Target
from benchbench.model.run import Settings
from tests.factories import a_case, a_job
from tests.program import WORKLOADS

FAKE = Target(name="fake", backend="fake", python=sys.executable)
SETTINGS = Settings(threads=1)


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTransport]:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(WORKLOADS))
    local_transport = LocalTransport(SETTINGS, count_oom_kills=lambda: 0)
    yield local_transport
    local_transport.close()
    assert not local_transport.scratch.path.exists()


def test_a_run_removes_only_folders_of_killed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running, killed, results = RunScratch(), RunScratch(), tmp_path / "kept"
    os.close(killed._lock)  # like the end of its process
    (results / "drawn").mkdir(parents=True)
    (tmp_path / "accelbench-run-link").symlink_to(results)
    named_alike, copied = (tmp_path / f"accelbench-run-{name}" for name in ("nightly", "copied"))
    (named_alike / "runs").mkdir(parents=True)
    shutil.copytree(running.path, copied, symlinks=True)
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    RunScratch().close()
    assert {*tmp_path.iterdir()} == {
        *(running.path, results, tmp_path / "accelbench-run-link", named_alike, copied)
    }
    running.close()
    assert not running.path.exists()


@pytest.mark.real
def test_a_removed_scratch_folder_is_created_again(transport: LocalTransport) -> None:
    before = worker(transport)
    before.ready()
    shutil.rmtree(transport.scratch.path)
    assert not before.alive
    after = worker(transport)
    assert after.ready().status == "ready"
    assert after.run(job("gemm", **PRODUCT), 30, fork=True).reply
    after.close()


def test_a_scratch_folder_is_private_to_its_user() -> None:
    scratch = RunScratch()
    assert scratch.path.stat().st_mode & 0o777 == 0o700
    scratch.close()


def job(workload: str, **params: Any) -> dict[str, Any]:
    case = a_case(workload=workload, params=params, backend="fake", target="fake")
    return a_job(case, reference=[])


def worker(transport: LocalTransport, target: Target = FAKE) -> Worker:
    return transport.start(target, {})


@pytest.fixture
def ready(transport: LocalTransport) -> Iterator[Worker]:
    """A worker that has started."""
    started = worker(transport)
    assert started.ready().status == "ready"
    yield started
    started.close()
    assert not started.alive


PRODUCT = {"m": 256, "n": 256, "k": 256}


@pytest.mark.parametrize(
    ("kills", "status"), [(repeat(3), Status.CRASHED), (chain([3], repeat(4)), Status.OUT_OF_MEMORY)]
)
def test_a_killed_job_is_out_of_memory_if_the_kernel_counted_it(
    monkeypatch: pytest.MonkeyPatch, kills: Iterator[int], status: Status
) -> None:
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(WORKLOADS))
    transport = LocalTransport(SETTINGS, count_oom_kills=lambda: next(kills))
    process = worker(transport)
    process.ready()
    answer = process.run(job("killed", size=8), 30, fork=True)
    assert (answer.reply, answer.status) == (None, status)
    transport.close()


def test_a_killed_job_without_a_process_of_its_own_ends_its_worker(ready: Worker) -> None:
    assert ready.run(job("crashing", size=8), 30, fork=False).status is Status.CRASHED
    assert not ready.alive
    assert ready.run(job("gemm", **PRODUCT), 30, fork=True).status is Status.CRASHED


def test_a_failure_stores_only_the_end_of_much_output(ready: Worker, transport: LocalTransport) -> None:
    answer = ready.run(job("shouting", size=8), 60, fork=True)
    assert answer.status is Status.CRASHED
    assert answer.log.endswith("the last word\n")
    assert len(answer.log) <= 4096
    files = [path.stat().st_size for path in transport.scratch.path.rglob("*") if path.is_file()]
    assert sum(files) < 2**20


@pytest.mark.real  # waits for a time-out
def test_a_hung_job_is_ended_and_its_worker_stays_usable(ready: Worker) -> None:
    answer = ready.run(job("hanging", size=8), 1, fork=True)
    assert (answer.end, answer.status) == (JobEnd.HUNG, Status.TIMEOUT)
    assert "hung without computing" in answer.message
    assert ready.alive
    assert ready.run(job("gemm", **PRODUCT), 30, fork=True).reply is not None


@pytest.mark.real  # waits for a time-out
def test_a_stopped_job_is_ended_in_time(ready: Worker) -> None:
    answer = ready.run(job("hanging", size=8, stops=True), 1, fork=True)
    assert (answer.end, answer.status) == (JobEnd.TIMED_OUT, Status.TIMEOUT)
    assert "SIGSTOP" in answer.message


def test_an_interpreter_without_a_worker_is_broken(transport: LocalTransport) -> None:
    process = worker(transport, Target(name="x", backend="fake", python="/bin/false"))
    message = process.ready(10)
    assert message.status == "broken"
    assert "exit code 1" in message.reason
    process.close()


def test_an_import_that_takes_too_long_is_broken(transport: LocalTransport, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    process = worker(transport, Target(name="x", backend="fake", python=str(slow)))
    assert process.ready(0.2) == Greeting(status="broken", reason="importing it took more than 0 s")
    assert not process.alive


def test_another_interpreter_does_not_inherit_pythonpath(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    foreign = Target(name="fake@other", backend="fake", python="/other/python")
    assert "/somewhere" in transport.scratch.environment(FAKE, Settings(threads=1))["PYTHONPATH"]
    assert "/somewhere" not in transport.scratch.environment(foreign, Settings(threads=1))["PYTHONPATH"]
