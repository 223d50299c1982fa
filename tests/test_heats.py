"""Several cases of one work at once: processes that are stopped between their turns."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise, repeat
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchbench.launch.local import LocalTransport
from benchbench.launch.process import LocalJob, LocalWorker
from benchbench.launch.transport import JobEnd, Worker
from benchbench.machine.kernel import is_stopped, process_tree
from benchbench.model.case import Status
from benchbench.model.device import Target
from benchbench.model.measurement import Window
from benchbench.model.run import Settings
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import block_size, measure_steps
from benchbench.worker.__main__ import Template
from tests.factories import a_case, a_job
from tests.program import WORKLOADS
from tests.script import Script

FAKE = Target(name="fake", backend="fake", python=sys.executable)
QUICK = POLICIES["quick"]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("ACCELBENCH_WORKLOAD_PATH", str(WORKLOADS))
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(FAKE, {})
    assert worker.ready().status == "ready"
    yield worker
    transport.close()


PRODUCT = a_case(backend="fake", mode="", params={"m": 64, "n": 64, "k": 64})


def start_job(worker: Worker) -> LocalJob:
    running = worker.begin(a_job(PRODUCT, turns=True), fork=True)
    assert isinstance(running, LocalJob)
    assert "warm" in (running.receive(30.0) or {})
    return running


def given_turn(job: LocalJob) -> None:
    job.send({"turn": 0.01})
    assert "cpu_s" in (job.receive(30.0) or {})


def test_two_jobs_of_one_worker_take_turns(worker: Worker) -> None:
    jobs = [start_job(worker) for _ in range(2)]
    for job in jobs:
        job.stop()
    for job in jobs * 2:
        assert is_stopped(job.pid)
        job.resume()
        given_turn(job)
        job.stop()
    for job in jobs:
        job.resume()
        job.send({"turn": 0})
        answer = job.result(30.0)
        assert answer.reply is not None
        assert len(answer.reply["outcome"]["turns"]) == 2


def test_a_job_killed_between_turns_has_crashed_and_its_worker_continues(worker: Worker) -> None:
    first, second = start_job(worker), start_job(worker)
    first.stop()
    os.kill(first.pid, signal.SIGKILL)
    assert first.receive(30.0) is None
    assert first.result(30.0).end is JobEnd.CRASHED
    given_turn(second)
    second.send({"turn": 0})
    assert second.result(30.0).reply


def test_a_stopped_job_ends_with_its_worker(worker: Worker) -> None:
    job = start_job(worker)
    assert process_tree(os.getpid()) > {job.pid}  # although it is in another session
    job.stop()
    worker.close()
    assert not Path(f"/proc/{job.pid}").exists()


def test_ending_a_job_without_a_turn_leaves_its_worker_alive(worker: Worker) -> None:
    job, second_job = start_job(worker), start_job(worker)
    job.stop()
    with pytest.raises(TimeoutError):
        job.receive(0.05)
    assert job.result(0.05).reply is None
    given_turn(second_job)


def test_a_template_that_cannot_fork_continues(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    channels, threads = list[socket.socket](), list[Thread]()

    def fork() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def serve(command: list[str], *, pass_fds: list[int], **options: Any) -> Any:
        """Replace the template by a thread of this process."""
        channels.append(socket.socket(fileno=os.dup(pass_fds[0])))
        threads.append(Thread(target=Template(cast(Any, SimpleNamespace()), channels[0]).serve))
        threads[0].start()
        return SimpleNamespace(
            pid=os.getpid(), poll=lambda: None, terminate=lambda: None, send_signal=lambda sign: None,
            wait=lambda seconds: 0,
        )  # fmt: skip

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(os, "killpg", lambda group, sign: None)
    monkeypatch.setattr(subprocess, "Popen", serve)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    worker = LocalWorker([], {}, tmp_path, threads=1)
    for _ in range(2):
        answer = worker.run({"kind": "call"}, 10.0, fork=True)
        assert answer.reply is not None
        assert answer.reply["outcome"]["status"] == Status.OUT_OF_MEMORY
    worker.close()
    threads[0].join()
    channels[0].close()


def test_each_turn_has_the_blocks_timed_in_it() -> None:
    class ThreeTurns:
        def take(self, block_s: float) -> Iterator[float]:
            yield from [0.03] * 3

    script, programs = Script(repeat(0.001)), iter([2, 3])
    samples = measure_steps(
        script.step, script, QUICK, lambda: next(programs), script.now, script.now, turns=ThreeTurns()
    )
    assert [turn.cycle for turn in samples.turns] == [0, 1, 2]
    first, *_, last = samples.turns
    cpu_s = sum(turn.cpu_s for turn in samples.turns)
    assert samples.window == Window(began_s=first.began_s, ended_s=last.ended_s, cpu_s=cpu_s)
    assert samples.recompiled == 1
    assert sum(turn.blocks for turn in samples.turns) == len(samples.block_s)
    for turn in samples.turns:
        assert turn.ended_s - turn.began_s == pytest.approx(0.03, rel=0.2)
    lead_ins = [after.began_s - before.ended_s for before, after in pairwise(samples.turns)]
    assert lead_ins == pytest.approx([0.0075] * 2, rel=0.3)


def test_a_step_longer_than_a_turn_is_timed_once_per_turn() -> None:
    class TwoTurns:
        def take(self, block_s: float) -> Iterator[float]:
            assert block_s == pytest.approx(0.2)
            yield from [0.03] * 2

    script = Script(repeat(0.2))
    assert block_size(script.step, script, 0.0) == (1, [0.2])
    samples = measure_steps(script.step, script, QUICK, clock=script.now, cpu=script.now, turns=TwoTurns())
    assert [turn.blocks for turn in samples.turns] == [1, 1]
    assert samples.turns[1].began_s == samples.turns[0].ended_s


def test_blocks_in_turns_have_at_most_the_allowed_steps() -> None:
    class OneTurn:
        def take(self, block_s: float) -> Iterator[float]:
            yield 0.001

    script = Script(repeat(1e-6))
    samples = measure_steps(script.step, script, QUICK, clock=script.now, turns=OneTurn(), most=4)
    assert samples.iterations == 4
