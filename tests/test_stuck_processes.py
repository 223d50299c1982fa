"""W5: a process that no signal ends, as where a driver hangs, costs a bounded wait and its device."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.launch.pool import WorkerPool
from benchbench.launch.process import GRACE_S, LocalWorker
from benchbench.launch.transport import Answer, JobEnd
from benchbench.launch.workers import LostDevices
from benchbench.model.case import Case, Status
from benchbench.model.device import Target
from benchbench.model.measurement import Failure
from benchbench.model.run import Settings
from benchbench.running.verification import Verified, decode_outcome, verify_job
from tests.factories import a_case

SHORT_S = 0.05  # of a job


class Endless:
    """A handle of a process that no signal ends. Its job, if it has one, is the process `job`."""

    def __init__(self, job: int) -> None:
        self.pid, self.job = os.getpid(), job
        self.waited_s = 0.0
        self.signals: list[tuple[int, int]] = []

    def __call__(self, command: list[str], *, pass_fds: list[int], **options: Any) -> Endless:
        with socket.socket(fileno=os.dup(pass_fds[0])) as end:
            self._channel = socket.socket(fileno=os.dup(end.fileno()))
        self._channel.sendall(b'{"status": "ready", "version": "1"}\n')
        Thread(target=self._begin_job, daemon=True).start()
        return self

    def _begin_job(self) -> None:
        _, (end, log), *_ = socket.recv_fds(self._channel, 2**16, 2)
        os.write(end, json.dumps({"pid": self.job}).encode() + b"\n")
        os.close(log)

    def close(self) -> None:
        """The process's end of the channel."""
        self._channel.close()

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, sign: int) -> None:
        self.signals.append((self.pid, sign))

    def poll(self) -> None:
        """It never ends."""

    def wait(self, timeout: float) -> None:
        self.waited_s += timeout
        raise subprocess.TimeoutExpired("worker", timeout)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endless]:
    """Start stuck processes instead of real ones; signals to groups have no effect."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as job:
        handle = Endless(job.pid)
        monkeypatch.setattr(subprocess, "Popen", handle)
        monkeypatch.setattr(os, "killpg", lambda *arguments: handle.signals.append(arguments))
        yield handle
        handle.close()
        job.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="whether a process is alive is told by /proc")
def test_w5_a_process_that_no_signal_ends_is_waited_for_within_bounds(
    tmp_path: Path, endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchbench.launch.process.KILL_TIMEOUT_S", SHORT_S)
    worker = LocalWorker(["python"], {}, tmp_path, threads=1)
    assert worker.ready().status == "ready"
    answer = worker.run({"kind": "measure"}, SHORT_S, fork=True)
    assert (answer.reply, answer.end, answer.status) == (None, JobEnd.STUCK, Status.TIMEOUT)
    assert answer.message == f"no answer after 0 s, and no signal ends its process {endless.job}"
    assert [number for group, number in endless.signals if group == endless.job] == [
        signal.SIGTERM,
        signal.SIGCONT,  # for the case that it was stopped
        signal.SIGKILL,
    ]
    assert (endless.pid, signal.SIGKILL) in endless.signals
    assert endless.waited_s <= 3 * GRACE_S
    assert not worker.alive
    worker.close()  # a second time, without effect
    assert endless.waited_s <= 3 * GRACE_S


Asked = list[tuple[str, str]]  # kind of job, id of case


@pytest.fixture
def pool() -> Iterator[tuple[WorkerPool, Asked]]:
    """Results of two backends. Jobs on cuda:0 hang in the driver; all others are answered."""
    jobs_asked: Asked = []

    def start(target: Target, environment: Mapping[str, str], threads: int = 0) -> Any:
        def post(job: dict[str, Any], files: Any = None, *, fork: bool) -> None:
            jobs_asked.append((job["kind"], job["case_id"]))

        def collect(timeout_s: float) -> Answer:
            if jobs_asked[-1][1].endswith("cuda:0"):
                return Answer(None, JobEnd.STUCK, "no answer after 9 s, and no signal ends its process 7")
            return Answer({"verified": 0.0})

        def run(job: dict[str, Any], timeout_s: float, files: Any = None, *, fork: bool) -> Answer:
            post(job, files, fork=fork)
            return collect(timeout_s)

        ready = SimpleNamespace(status="ready", reason="")
        return SimpleNamespace(
            post=post, collect=collect, has_ended=lambda: True, run=run, ready=lambda *_: ready,
            close=lambda: None, alive=True,
        )  # fmt: skip

    transport: Any = SimpleNamespace(start=start, close=lambda: None)
    targets = [Target(name=name, backend=name, python=sys.executable) for name in ("torch", "jax")]
    with WorkerPool(targets, Settings(threads=1), sys.executable, transport=lambda *_: transport) as opened:
        yield opened, jobs_asked


def on(device: str, target: str = "torch", size: int = 8) -> Case:
    return a_case(target=target, backend=target, device=device, params={"m": size, "n": 8, "k": 8})


REASON = "cuda:0 was lost: {case}: no answer after 9 s, and no signal ends its process 7"


def test_w5_a_stuck_device_gets_no_more_jobs(pool: tuple[WorkerPool, Asked]) -> None:
    stuck = on("cuda:0")
    cases = [stuck, on("cuda:0", size=16), on("cuda:0", "jax"), on("cuda:1"), on("cpu")]
    answers = [pool[0].run_case(case, {"kind": "measure"}) for case in cases]
    outcomes = [decode_outcome(answer, {}) for answer, _ in answers if answer.reply is None]
    assert [outcome.status for outcome in outcomes] == [Status.TIMEOUT, Status.LOST, Status.LOST]
    assert {outcome.message for outcome in outcomes[1:]} == {REASON.format(case=stuck.id)}  # type: ignore[union-attr]
    assert [name for _, name in pool[1]] == [stuck.id, cases[3].id, cases[4].id]


def test_w5_verification_avoids_a_stuck_device(pool: tuple[WorkerPool, Asked]) -> None:
    cases = [on("cuda:0"), on("cuda:0", size=16), on("cuda:0", "jax"), on("cpu", "jax")]
    verified: Verified = {}
    pool[0].run_jobs([verify_job(case, {}, verified) for case in cases], lambda label: None)
    results = [verified[case.id] for case in cases]
    statuses = [result.status if isinstance(result, Failure) else result for result in results]
    assert statuses == [Status.TIMEOUT, Status.LOST, Status.LOST, 0.0]
    assert {name for _, name in pool[1]} == {cases[0].id, cases[3].id}


def test_w5_a_process_stuck_on_a_cpu_affects_only_its_case() -> None:
    lost = LostDevices()
    lost.record(on("cpu"), Answer(None, JobEnd.STUCK, "no answer"))
    assert lost.refusal(on("cpu", size=16)) is None
