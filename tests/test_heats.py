"""Heats: processes that are stopped between their turns, and faults that cost only their own case."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from random import Random
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import message_of_call
from benchbench.launch.process import LocalJob, LocalWorker
from benchbench.launch.transport import Answer, JobEnd, Worker
from benchbench.machine.kernel import is_stopped, process_tree
from benchbench.machine.sampler import Sources, TurnSampler
from benchbench.model.case import Case, Status
from benchbench.model.device import Target
from benchbench.model.function import FUNCTIONS, PYTHON, Call, FunctionLocation
from benchbench.model.measurement import Window
from benchbench.model.run import Settings
from benchbench.running.heat import LiveCase, run_heat
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import block_size, measure_steps
from benchbench.worker.__main__ import Template
from tests.factories import a_case, a_job
from tests.program import WORKLOADS, accelbench, processes_mentioning, records, start_accelbench, wait_for
from tests.script import Script

REAL = pytest.mark.real
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are stopped by their tree on Linux only"
)
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


class FixedTurns:
    """Turns of these seconds. Stores the length of a warm block."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds
        self.block_s = 0.0

    def take(self, block_s: float) -> Iterator[float]:
        self.block_s = block_s
        yield from self._seconds


def test_each_turn_has_the_blocks_timed_in_it() -> None:
    script, programs = Script(repeat(0.001)), iter([2, 3])
    samples = measure_steps(
        script.step,
        script,
        QUICK,
        lambda: next(programs),
        script.now,
        script.now,
        turns=FixedTurns(0.03, 0.03, 0.03),
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
    script, turns = Script(repeat(0.2)), FixedTurns(0.03, 0.03)
    assert block_size(script.step, script, 0.0) == (1, [0.2])
    samples = measure_steps(script.step, script, QUICK, clock=script.now, cpu=script.now, turns=turns)
    assert turns.block_s == pytest.approx(0.2)
    assert [turn.blocks for turn in samples.turns] == [1, 1]
    assert samples.turns[1].began_s == samples.turns[0].ended_s


def test_blocks_in_turns_have_at_most_the_allowed_steps() -> None:
    script = Script(repeat(1e-6))
    samples = measure_steps(script.step, script, QUICK, clock=script.now, turns=FixedTurns(0.001), most=4)
    assert samples.iterations == 4


POLICY = dataclasses.replace(POLICIES["brief"], cycles=8, warmup_min_s=0.05)
TIMEOUT_S = 1.5
FUNCTIONS_FILE = """
import itertools, os, signal, subprocess, time

calls = itertools.count()

def good():
    time.sleep(0.001)

def ending_by(act):
    def function():
        time.sleep(0.001)
        if next(calls) == CALLS:
            act()
    return function

hanging = ending_by(lambda: time.sleep(1000))
exiting = ending_by(lambda: os._exit(3))
killed = ending_by(lambda: os.kill(os.getpid(), signal.SIGKILL))
failing = ending_by(lambda: [][0])

def parenting():
    if next(calls) == 0:
        for more in ({}, {"start_new_session": True}):
            subprocess.Popen(["sleep", SECONDS], **more)
        subprocess.Popen(["sh", "-c", f"setsid sleep {SECONDS} & exit"]).wait()  # an orphan
    time.sleep(0.001)

def deadlocked_in_a_fork():
    if os.getpgrp() == os.getpid():
        time.sleep(1000)
    time.sleep(0.001)
"""
CALLS = 200  # until one is in a turn: warming up takes about 100 ms, 8 turns about 240


@pytest.fixture
def sleep(tmp_path: Path) -> str:
    """The command line of processes started by a job; the functions are in functions.py."""
    seconds = f"71.{os.getpid()}{int.from_bytes(os.urandom(3))}"
    constants = f"CALLS, SECONDS = {CALLS}, {seconds!r}\n"
    (tmp_path / "functions.py").write_text(constants + FUNCTIONS_FILE)
    return f"sleep {seconds}"


@pytest.fixture
def begin(tmp_path: Path, sleep: str) -> Iterator[Callable[[str], LocalJob]]:
    """Begin a job that measures the function of that name; all jobs have one worker."""
    transport = LocalTransport(Settings(threads=1))
    worker = transport.start(Target(name=PYTHON, backend=PYTHON, python=sys.executable), {})
    assert worker.ready().status == "ready"

    def begin(name: str) -> LocalJob:
        job = worker.begin(job_of(tmp_path, name), fork=True)
        assert isinstance(job, LocalJob)
        return job

    yield begin
    transport.close()
    assert not processes_mentioning(sleep)


def job_of(folder: Path, name: str) -> dict[str, object]:
    call = Call(
        function=FunctionLocation(name=name, path=str(folder / "functions.py"), qualname=name),
        folder=str(folder),
    )
    case = Case.of_call(FUNCTIONS, name, PYTHON, "cpu")
    return {
        "kind": "call", "call": message_of_call(call), "case": dataclasses.asdict(case), "case_id": case.id,
        "policy": dataclasses.asdict(POLICY), "turns": True, "warm": False, "timeout_s": TIMEOUT_S,
    }  # fmt: skip


def heat_of(begin: Callable[[str], LocalJob], *names: str) -> dict[str, Answer]:
    """Answers of a heat of these functions, in that order."""
    cases = [
        LiveCase(name, partial(begin, name), TurnSampler(Sources(root=Path("/"), cpus=())), TIMEOUT_S)
        for name in names
    ]
    run_heat(cases, POLICY, Random(0), lambda case, state: None)
    return {case.name: case.answer for case in cases if case.answer is not None}


def turns_in(answer: Answer) -> int:
    assert answer.reply is not None
    return len(answer.reply["outcome"]["turns"])


@REAL
@LINUX
@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("hanging", {JobEnd.HUNG, JobEnd.TIMED_OUT}),
        ("exiting", {JobEnd.CRASHED}),
        ("killed", {JobEnd.CRASHED}),
        ("failing", {JobEnd.ANSWERED}),
        ("parenting", {JobEnd.ANSWERED}),
    ],
)
def test_a_process_that_fails_in_a_turn_fails_only_its_case(
    begin: Callable[[str], LocalJob], name: str, ends: set[JobEnd]
) -> None:
    answers = heat_of(begin, "good", name, "good")
    assert answers[name].end in ends
    if name not in ("parenting", "failing"):
        assert answers[name].reply is None
    assert turns_in(answers["good"]) >= POLICY.cycles


def states_of(command: str) -> set[str]:
    return {
        process.info["status"]
        for process in psutil.process_iter(["cmdline", "status"])  # skip processes that end meanwhile
        if " ".join(process.info["cmdline"] or []) == command
    }


@REAL
@LINUX
def test_child_processes_are_stopped_and_ended_with_it(begin: Callable[[str], LocalJob], sleep: str) -> None:
    job, second_job = begin("parenting"), begin("good")
    assert "warm" in (job.receive(30.0) or {})
    assert "warm" in (second_job.receive(30.0) or {})
    job.stop()
    assert len(processes_mentioning(sleep)) == 3
    assert states_of(sleep) == {psutil.STATUS_STOPPED}
    job.resume()
    wait_for(lambda: psutil.STATUS_STOPPED not in states_of(sleep), 5)
    second_job.send({"turn": 0})
    assert second_job.result(30.0).reply
    assert len(processes_mentioning(sleep)) == 3  # the end of another job does not affect them
    job.send({"turn": 0})
    assert job.result(30.0).reply
    wait_for(lambda: not processes_mentioning(sleep), 5)


@REAL
@LINUX
def test_a_job_that_no_signal_ends_does_not_block_its_worker(
    begin: Callable[[str], LocalJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchbench.launch.process.KILL_TIMEOUT_S", 0.1)
    stuck, second_job = begin("good"), begin("good")
    assert "warm" in (stuck.receive(30.0) or {})
    assert "warm" in (second_job.receive(30.0) or {})
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda group, sign: None)
        assert stuck.result(0.0).end is JobEnd.STUCK
    second_job.send({"turn": 0})
    assert second_job.result(30.0).reply
    os.killpg(stuck.pid, signal.SIGKILL)


@REAL
@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=str)
def test_no_process_is_left_after_the_program_ends(
    tmp_path: Path, sleep: str, number: signal.Signals
) -> None:
    functions = [f"functions.py:{name}" for name in ("parenting", "good")]
    process = start_accelbench("time", *functions, "--rigorous", cwd=tmp_path)
    wait_for(lambda: psutil.STATUS_STOPPED in states_of(sleep))
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=30)
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive
    assert not processes_mentioning(sleep)


@REAL
@LINUX
def test_an_interrupted_heat_is_measured_again_as_a_whole(tmp_path: Path) -> None:
    size = ("-p", "m=64", "-p", "n=64", "-p", "k=64")
    # JAX needs half of torch's CPU time to be imported, and the default preset has long heats: on a busy
    # machine the program must not reach a time limit, and the second heat must not end unseen.
    options = ("-b", "jax", "-d", "cpu", "-w", "gemm", *size, "--threads", "1,2", "--heats", "2")
    process = start_accelbench("run", *options, cwd=tmp_path)
    wait_for(lambda: len(records(tmp_path)) >= 2, 100)
    wait_for(lambda: has_stopped_case(process.pid), 100)
    process.send_signal(signal.SIGSTOP)  # before the records are counted, so that it adds none meanwhile
    assert len(records(tmp_path)) == 2
    process.terminate()
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=60)
    assert len(records(tmp_path)) == 2
    accelbench("run", "--resume", cwd=tmp_path)
    stored_records = [json.loads(line) for line in records(tmp_path)]
    assert sorted((record["case"]["threads"], record["round"]) for record in stored_records) == [
        (1, 0), (1, 1), (2, 0), (2, 1)
    ]  # fmt: skip
    assert [record["part"] for record in stored_records] == [0, 0, 1, 1]
    first, second = (
        {turn["cycle"] for turn in record["outcome"]["turns"]} for record in stored_records if record["part"]
    )
    assert first == second


def has_stopped_case(program: int) -> bool:
    """Whether the process of a case waits for its turn. Other processes of the program may end meanwhile."""
    for pid in process_tree(program):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                return True
    return False


@REAL
@LINUX
def test_a_hung_fork_is_measured_alone_in_a_fresh_process(tmp_path: Path, sleep: str) -> None:
    functions = [f"functions.py:{name}" for name in ("deadlocked_in_a_fork", "good")]
    accelbench("time", *functions, "--timeout", "2", "--brief", "--heats", "1", cwd=tmp_path)
    hung, good = sorted(map(json.loads, records(tmp_path)), key=lambda record: record["case"]["workload"])
    assert hung["isolation"] == "spawn (its fork hung)"
    assert "measured_alone" in [note["kind"] for note in hung["outcome"]["notes"]]
    assert good["isolation"] == "fork"
    assert "measured_alone" not in [note["kind"] for note in good["outcome"]["notes"]]
