"""Jobs of many workers at once: none waits for another worker's job, or for a process that no signal ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from benchbench.launch.pool import WorkerPool
from benchbench.launch.process import GRACE_S, LocalWorker
from benchbench.launch.transport import Answer, Channel, Greeting, JobEnd, UnstartedWorker
from benchbench.launch.workers import BLOCKING_SHARE, Job, LostDevices
from benchbench.model.case import Case, Status
from benchbench.model.device import Target
from benchbench.model.measurement import Failure
from benchbench.model.run import Settings
from benchbench.running.verification import Verified, decode_outcome, verify_job
from benchbench.wire import MAX_MESSAGE_BYTES
from tests.factories import a_case

JOB_S = 60  # seconds of virtual time for a job


@dataclass
class Clock:
    """Virtual time that passes while this process sleeps or waits for a worker."""

    now_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic


@dataclass
class Timed(UnstartedWorker):
    """A worker whose jobs take the seconds given in their messages."""

    name: str
    clock: Clock
    diary: list[tuple[float, str]]
    alive: bool = True
    ends_s: float = 0.0
    message: dict[str, Any] = field(default_factory=dict)

    def ready(self, timeout_s: float = 0.0) -> Greeting:
        return Greeting(status="ready")

    def post(self, job: dict[str, Any], files: object = None, *, fork: bool) -> None:
        self.message, self.ends_s = job, self.clock.now_s + job["seconds"]
        self.diary.append((round(self.clock.now_s), f"{self.name} begins {job['name']}"))

    def has_ended(self) -> bool:
        return self.clock.now_s >= self.ends_s

    def collect(self, timeout_s: float) -> Answer:
        late = self.ends_s > self.clock.now_s + timeout_s
        self.clock.now_s = min(max(self.ends_s, self.clock.now_s), self.clock.now_s + timeout_s)
        self.diary.append((round(self.clock.now_s), f"{self.name} ends {self.message['name']}"))
        return Answer(None, JobEnd.TIMED_OUT, "late") if late else Answer({})

    def close(self) -> None:
        self.alive = False


@dataclass
class Timing:
    """A transport of timed workers."""

    clock: Clock
    diary: list[tuple[float, str]] = field(default_factory=list)

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Timed:
        return Timed(target.name, self.clock, self.diary)

    def close(self) -> None:
        """Nothing to close."""


def diary_of(
    jobs: Iterable[Job], monkeypatch: pytest.MonkeyPatch, started: Callable[[str], None] = lambda label: None
) -> list[tuple[float, str]]:
    """Events of a pool of two workers that runs these jobs; `started` receives the label of each job."""
    clock = Clock()
    monkeypatch.setattr("benchbench.launch.workers.time", clock)
    timing = Timing(clock)
    transport: Any = timing
    targets = [Target(name=name, backend=name, python=sys.executable) for name in ("torch", "jax")]
    settings = Settings(threads=1, timeout_s=JOB_S)
    with WorkerPool(targets, settings, sys.executable, transport=lambda *_: transport) as pool:
        pool.run_jobs(jobs, started)
    return timing.diary


def on(target: str, device: str = "cpu") -> Case:
    return a_case(target=target, backend=target, device=device)


def a_job(
    case: Case | None, name: str, seconds: float, *then: Job, answers: list[Answer] | None = None
) -> Job:
    def finish(answer: Answer) -> Iterable[Job]:
        if answers is not None:
            answers.append(answer)
        return then

    return Job(message={"name": name, "seconds": seconds}, done=finish, case=case, label=f"now {name}")


def test_a_worker_begins_its_next_job_while_another_worker_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [a_job(on("torch"), "long", 30)] + [a_job(on("jax"), f"short {number}", 10) for number in range(3)]
    labels: list[str] = []
    assert diary_of(jobs, monkeypatch, labels.append) == [
        (0, "torch begins long"),
        (0, "jax begins short 0"),
        (10, "jax ends short 0"),
        (10, "jax begins short 1"),
        (20, "jax ends short 1"),
        (20, "jax begins short 2"),
        (30, "torch ends long"),
        (30, "jax ends short 2"),
    ]
    assert labels == ["now long", "now short 0", "now short 1", "now short 2"]


def test_jobs_that_follow_an_answer_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_job(None, "reference", 5, a_job(on("torch"), "check", 5))
    diary = diary_of([first, a_job(None, "another reference", 20)], monkeypatch)
    assert (5, "torch begins check") in diary
    assert diary[-1] == (25, "reference ends another reference")


def test_an_accelerator_runs_one_job_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [a_job(on(target, "cuda:0"), f"{target}'s", 10) for target in ("torch", "jax")]
    diary = diary_of(jobs, monkeypatch)
    assert [line for _, line in diary] == [
        "torch begins torch's",
        "torch ends torch's",
        "jax begins jax's",
        "jax ends jax's",
    ]


def test_a_hung_job_times_out_without_delaying_others(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = []
    jobs = [a_job(on("torch"), "endless", 1e6, answers=answers)]
    jobs += [a_job(on("jax"), f"short {number}", 10) for number in range(3)]
    diary = diary_of(jobs, monkeypatch)
    assert [answer.end for answer in answers] == [JobEnd.TIMED_OUT]
    assert diary[-2:] == [(30, "jax ends short 2"), (JOB_S, "torch ends endless")]
    assert BLOCKING_SHARE < 0.1


@pytest.mark.parametrize(
    ("content", "closed", "come"),
    [
        (b"", False, False),
        (b'{"a": 1}\n', False, False),
        (b'{"a": 1}\n{"b"', False, False),
        (b'{"a": 1}\n{"b": 2}\n', False, True),
        (b'{"a": 1}\n', True, True),  # the rest never arrives
        (b"", True, True),
    ],
)
def test_a_channel_reports_messages_without_blocking(content: bytes, closed: bool, come: bool) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        theirs.sendall(content)
        if closed:
            theirs.shutdown(socket.SHUT_RDWR)
        assert channel.has_messages(2) == come
        assert channel.has_messages(2) == come  # inspected data are still there
        if b"\n" in content:
            assert channel.receive(1) == {"a": 1}
    channel.close()


def test_a_message_that_is_too_long_is_reported_and_refused() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        theirs.setblocking(False)
        unsent = b"x" * (MAX_MESSAGE_BYTES + 65536)
        while unsent and not channel.has_messages(1):
            unsent = unsent[theirs.send(unsent[:65536]) :]
        assert channel.has_messages(1)
        with pytest.raises(ValueError, match="more than"):
            channel.receive(1)
    channel.close()


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
def stuck_pool() -> Iterator[tuple[WorkerPool, Asked]]:
    """Results of two backends. Jobs on_device cuda:0 hang in the driver; all others are answered."""
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


def on_device(device: str, target: str = "torch", size: int = 8) -> Case:
    return a_case(target=target, backend=target, device=device, params={"m": size, "n": 8, "k": 8})


REASON = "cuda:0 was lost: {case}: no answer after 9 s, and no signal ends its process 7"


STUCK_CASES = [
    on_device("cuda:0"),
    on_device("cuda:0", size=16),
    on_device("cuda:0", "jax"),
    on_device("cuda:1"),
    on_device("cpu", "jax"),
]


def test_w5_a_stuck_device_gets_no_more_jobs(stuck_pool: tuple[WorkerPool, Asked]) -> None:
    answers = [stuck_pool[0].run_case(case, {"kind": "measure"}) for case in STUCK_CASES]
    outcomes = [decode_outcome(answer, {}) for answer, _ in answers if answer.reply is None]
    assert [outcome.status for outcome in outcomes] == [Status.TIMEOUT, Status.LOST, Status.LOST]
    assert {outcome.message for outcome in outcomes[1:]} == {REASON.format(case=STUCK_CASES[0].id)}  # type: ignore[union-attr]
    assert [name for _, name in stuck_pool[1]] == [STUCK_CASES[number].id for number in (0, 3, 4)]


def test_w5_verification_avoids_a_stuck_device(stuck_pool: tuple[WorkerPool, Asked]) -> None:
    verified: Verified = {}
    stuck_pool[0].run_jobs([verify_job(case, {}, verified) for case in STUCK_CASES], lambda label: None)
    results = [verified[case.id] for case in STUCK_CASES]
    statuses = [result.status if isinstance(result, Failure) else result for result in results]
    assert statuses == [Status.TIMEOUT, Status.LOST, Status.LOST, 0.0, 0.0]
    assert {name for _, name in stuck_pool[1]} == {STUCK_CASES[number].id for number in (0, 3, 4)}


def test_w5_a_process_stuck_on_a_cpu_affects_only_its_case() -> None:
    lost = LostDevices()
    lost.record(on_device("cpu"), Answer(None, JobEnd.STUCK, "no answer"))
    assert lost.refusal(on_device("cpu", size=16)) is None
