"""Workers of later rounds: imported before anything is timed, and no more than memory allows."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, Greeting, Message
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.options import Isolation
from benchbench.model.run import Settings
from tests.factories import a_case

FAKE = Target(name="fake", backend="fake", python=sys.executable)
SETTINGS = Settings(threads=1)


class Diary:
    """A transport whose workers import nothing; it notes what happens to them."""

    def __init__(self, spare: int) -> None:
        self.spare = spare
        self.entries: list[str] = []
        self.workers: list[Any] = []

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Any:
        def greet(timeout_s: float) -> Greeting:
            self.entries.append(f"greet {target.name}")
            return Greeting(status="ready")

        def post(job: Message, files: Any = None, *, fork: bool) -> None:
            self.entries.append(f"{job['kind']} {target.name} {job['kinds']}")

        def collect(timeout_s: float) -> Answer:
            return Answer({})

        def ask(job: Message, timeout_s: float, *, fork: bool) -> Answer:
            self.entries.append(f"{job['kind']} {target.name}")
            return Answer({"devices": [], "missing": {}, "missing_modes": {}})

        def close() -> None:
            self.entries.append(f"end {target.name}")

        self.entries.append(f"start {target.name}")
        asked = {"ready": greet, "post": post, "collect": collect, "ask": ask}
        self.workers.append(SimpleNamespace(alive=True, close=close, **asked))
        return self.workers[-1]

    def spare_workers(self) -> int:
        return self.spare

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def a_pool(
    diary: Diary, isolation: Isolation = Isolation.FORK, names: Sequence[str] = ("jax", "torch")
) -> Iterator[tuple[WorkerPool, list[Case]]]:
    """A pool on that transport, and a case of each backend named."""
    cases = [a_case(target=name, backend=name) for name in names]
    targets = [dataclasses.replace(FAKE, name=case.target, backend=case.backend) for case in cases]
    settings, opened = dataclasses.replace(SETTINGS, isolation=isolation), cast(Any, diary)
    with WorkerPool(targets, settings, sys.executable, transport=lambda *_: opened) as pool:
        yield pool, cases


@contextmanager
def pool_ahead(
    diary: Diary, rounds: int, isolation: Isolation = Isolation.FORK
) -> Iterator[tuple[WorkerPool, list[Case]]]:
    """A pool whose workers of `rounds` later rounds have imported; its diary begins after that."""
    with a_pool(diary, isolation) as (pool, cases):
        pool.start(cases)
        del diary.entries[:]
        pool.prefetch_workers(cases, rounds)
        pool.wait_for_workers(cases)
        yield pool, cases


def test_later_rounds_import_before_anything_is_timed_and_side_by_side() -> None:
    diary = Diary(spare=100)
    with pool_ahead(diary, 2) as (pool, cases):
        preloading = [f"preload {name} [('forward', 'eager')]" for name in ("jax", "torch")]
        assert diary.entries == [
            *["start jax", "start torch"] * 2,
            *["greet jax", "greet torch"] * 2,
            *preloading * 3,
        ]
        for _ in range(2):
            del diary.entries[:]
            pool.start(cases)
            assert sorted(diary.entries) == ["end jax", "end torch"]  # those of the round before
        pool.start(cases)  # more rounds than foreseen
        assert diary.entries[-4:] == ["start jax", "start torch", "greet jax", "greet torch"]


def test_a_worker_that_was_waited_for_is_not_waited_for_again() -> None:
    """It greets once: waiting for another greeting takes as long as an import may, and ends the worker."""
    diary = Diary(spare=100)
    with pool_ahead(diary, 2) as (pool, cases):
        del diary.entries[:]
        pool.wait_for_workers(cases)
        assert [each for each in diary.entries if not each.startswith("preload")] == []
        pool.prefetch_workers(cases, 3)
        pool.wait_for_workers(cases)
        assert [each for each in diary.entries if each.startswith("greet")] == ["greet jax", "greet torch"]


def test_what_only_the_first_round_needs_is_imported_for_that_round_alone() -> None:
    """A later one has the models that ONNX Runtime's first processes exported."""
    diary = Diary(spare=100)
    with a_pool(diary, names=("onnxruntime", "torch")) as (pool, cases):
        pool.start(cases)
        pool.prefetch_workers(cases, 2)
        pool.wait_for_workers(cases)
    preloads = [entry.split()[1] for entry in diary.entries if entry.startswith("preload")]
    assert sorted(preloads) == ["onnxruntime", "torch", "torch", "torch"]


@pytest.mark.parametrize(("spare", "started"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (100, 6)])
def test_no_more_workers_wait_than_memory_allows(spare: int, started: int) -> None:
    diary = Diary(spare)
    with pool_ahead(diary, 3):
        assert len([entry for entry in diary.entries if entry.startswith("start")]) == started


def test_a_worker_that_a_round_does_not_need_or_that_died_while_waiting_is_not_used() -> None:
    diary = Diary(spare=100)
    with pool_ahead(diary, 1) as (pool, cases):
        diary.workers[-1].alive = False  # torch's
        del diary.entries[:]
        pool.start(cases[1:])
        assert sorted(diary.entries) == ["end jax", "end jax", "end torch", "greet torch", "start torch"]


def test_fresh_processes_of_each_case_need_no_workers_ahead() -> None:
    diary = Diary(spare=100)
    with pool_ahead(diary, 2, Isolation.SPAWN):
        assert not [entry for entry in diary.entries if entry.startswith("start")]


@pytest.mark.parametrize(
    ("cores", "names", "ahead"), [(2, "a", 2), (1, "a", 1), (2, "ab", 1), (2, "abcd", 0)]
)
def test_while_devices_are_looked_for_idle_cores_import_for_later_rounds(
    monkeypatch: pytest.MonkeyPatch, cores: int, names: str, ahead: int
) -> None:
    monkeypatch.setattr("benchbench.launch.pool.usable_threads", lambda: cores)
    wanted, diary = ["jax", "onnxruntime", "tensorflow", "torch"][: len(names)], Diary(spare=100)
    with a_pool(diary, names=wanted) as (pool, cases):
        pool.probe(later_rounds=2)
        started = [f"start {name}" for name in wanted]
        assert diary.entries[: len(wanted) * (2 + ahead)] == [
            *started * (1 + ahead),
            *(f"greet {name}" for name in wanted),
        ]
        pool.prefetch_workers(cases, 2)
        assert [entry for entry in diary.entries if "start" in entry] == started * 3


def test_of_the_workers_begun_early_only_those_that_are_needed_are_kept() -> None:
    diary = Diary(spare=100)
    with a_pool(diary, names=("jax",)) as (pool, cases):
        pool.probe(later_rounds=1)
        del diary.entries[:]
        pool.prefetch_workers([dataclasses.replace(case, environment={"NAME": "1"}) for case in cases], 1)
        assert diary.entries == ["end jax", "start jax"]


def test_a_plan_alone_and_a_virtual_device_start_no_worker_early() -> None:
    for names, later_rounds in ((("jax",), 0), (("fake",), 2)):
        diary = Diary(spare=100)
        with a_pool(diary, names=names) as (pool, _):
            pool.probe(later_rounds=later_rounds)
            assert [entry for entry in diary.entries if "start" in entry] == [f"start {names[0]}"]


FIRST_STEP = """
import sys
import numpy.random
from benchbench.backends.base import Backend
from benchbench.model.case import Dtype, Phase
from benchbench.registry import load_class
from benchbench.worker.program import build
from benchbench.workloads.operations.gemm import Gemm
backend = load_class("benchbench.backends", sys.argv[1], Backend)()
backend.load()
backend.preload(Phase.FORWARD, backend.modes[0])
before = set(sys.modules)
session = backend.open("cpu", Dtype.FLOAT32, backend.modes[0], 1)
session.precision()
session.wait(build(backend, session, Gemm(m=4, n=4, k=4), Dtype.FLOAT32).step())
print(*sorted(name for name in set(sys.modules) - before if not name.startswith("benchbench")))
"""


@pytest.mark.real
@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_a_process_forked_for_a_case_has_nothing_of_its_framework_left_to_import(name: str) -> None:
    pytest.importorskip(name)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP, name], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
