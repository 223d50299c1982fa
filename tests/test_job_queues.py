"""Jobs of many workers at once: no job waits for another worker's job."""

import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, Channel, Greeting, JobEnd, UnstartedWorker
from benchbench.launch.workers import BLOCKING_SHARE, Job
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.run import Settings
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
