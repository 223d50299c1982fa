"""Workers of later rounds import before anything is timed, as many as memory allows."""

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

        def run(job: Message, timeout_s: float, *, fork: bool) -> Answer:
            self.entries.append(f"{job['kind']} {target.name}")
            return Answer({"devices": [], "missing": {}, "missing_modes": {}})

        def close() -> None:
            self.entries.append(f"end {target.name}")

        self.entries.append(f"start {target.name}")
        methods = {"ready": greet, "post": post, "collect": collect, "run": run}
        self.workers.append(SimpleNamespace(alive=True, close=close, **methods))
        return self.workers[-1]

    def spare_workers(self) -> int:
        return self.spare

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def a_pool(
    diary: Diary, isolation: Isolation = Isolation.FORK, names: Sequence[str] = ("jax", "torch")
) -> Iterator[tuple[WorkerPool, list[Case]]]:
    """A pool on that transport, and a case of each backend."""
    cases = [a_case(target=name, backend=name) for name in names]
    targets = [dataclasses.replace(FAKE, name=case.target, backend=case.backend) for case in cases]
    settings, transport = dataclasses.replace(SETTINGS, isolation=isolation), cast(Any, diary)
    with WorkerPool(targets, settings, sys.executable, transport=lambda *_: transport) as pool:
        yield pool, cases


@contextmanager
def pool_ahead(
    diary: Diary, rounds: int, isolation: Isolation = Isolation.FORK
) -> Iterator[tuple[WorkerPool, list[Case]]]:
    """A pool whose workers of `rounds` later rounds have imported; the diary begins with them."""
    with a_pool(diary, isolation) as (pool, cases):
        pool.start(cases)
        del diary.entries[:]
        pool.prefetch_workers(cases, rounds)
        pool.wait_for_workers(cases)
        yield pool, cases


def test_each_round_has_fresh_workers_unless_their_time_is_virtual() -> None:
    diary = Diary(spare=0)
    with a_pool(diary, names=("fake", "torch")) as (pool, cases):

        def changes(cases: list[Case]) -> list[str]:
            del diary.entries[:]
            pool.start(cases)
            return [entry for entry in diary.entries if not entry.startswith("greet")]

        assert changes(cases) == ["start fake", "start torch"]
        assert changes(cases) == ["end torch", "start torch"]
        assert changes(cases[1:]) == ["end fake", "end torch", "start torch"]  # fake has no jobs
        changes(cases)
        diary.workers[-2].alive = False  # fake's
        assert sorted(changes(cases)) == ["end fake", "end torch", "start fake", "start torch"]


def test_workers_of_later_rounds_import_concurrently_before_timing() -> None:
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
            assert sorted(diary.entries) == ["end jax", "end torch"]  # workers of the previous round
        pool.start(cases)  # more rounds than prefetched
        assert diary.entries[-4:] == ["start jax", "start torch", "greet jax", "greet torch"]


def test_a_worker_that_was_waited_for_is_not_waited_for_again() -> None:
    """A worker greets once; waiting for a second greeting would time out and end the worker."""
    diary = Diary(spare=100)
    with pool_ahead(diary, 2) as (pool, cases):
        del diary.entries[:]
        pool.wait_for_workers(cases)
        assert [entry for entry in diary.entries if not entry.startswith("preload")] == []
        pool.prefetch_workers(cases, 3)
        pool.wait_for_workers(cases)
        assert [entry for entry in diary.entries if entry.startswith("greet")] == ["greet jax", "greet torch"]


def test_exporters_are_imported_for_the_first_round_only() -> None:
    """Later rounds reuse the models that the first processes of ONNX Runtime exported."""
    diary = Diary(spare=100)
    with a_pool(diary, names=("onnxruntime", "torch")) as (pool, cases):
        pool.start(cases)
        pool.prefetch_workers(cases, 2)
        pool.wait_for_workers(cases)
    preloads = [entry.split()[1] for entry in diary.entries if entry.startswith("preload")]
    assert sorted(preloads) == ["onnxruntime", "torch", "torch", "torch"]


PREFETCHED = [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (100, 6)]


@pytest.mark.parametrize(
    ("isolation", "spare", "started"),
    [*((Isolation.FORK, *numbers) for numbers in PREFETCHED), (Isolation.SPAWN, 100, 0)],
)
def test_prefetched_workers_are_limited_by_memory(isolation: Isolation, spare: int, started: int) -> None:
    diary = Diary(spare)
    with pool_ahead(diary, 3, isolation):
        assert len([entry for entry in diary.entries if entry.startswith("start")]) == started


def test_unneeded_and_dead_workers_are_not_used() -> None:
    diary = Diary(spare=100)
    with pool_ahead(diary, 1) as (pool, cases):
        diary.workers[-1].alive = False  # torch's
        del diary.entries[:]
        pool.start(cases[1:])
        assert sorted(diary.entries) == ["end jax", "end jax", "end torch", "greet torch", "start torch"]


@pytest.mark.parametrize(
    ("cores", "names", "ahead"), [(2, "a", 2), (1, "a", 1), (2, "ab", 1), (2, "abcd", 0)]
)
def test_idle_cores_import_for_later_rounds_while_probing(
    monkeypatch: pytest.MonkeyPatch, cores: int, names: str, ahead: int
) -> None:
    monkeypatch.setattr("benchbench.launch.pool.usable_threads", lambda: cores)
    backends, diary = ["jax", "onnxruntime", "tensorflow", "torch"][: len(names)], Diary(spare=100)
    with a_pool(diary, names=backends) as (pool, cases):
        pool.probe(later_rounds=2)
        starts = [f"start {name}" for name in backends]
        assert diary.entries[: len(backends) * (2 + ahead)] == [
            *starts * (1 + ahead),
            *(f"greet {name}" for name in backends),
        ]
        pool.prefetch_workers(cases, 2)
        assert [entry for entry in diary.entries if "start" in entry] == starts * 3


def test_workers_started_early_but_unneeded_are_ended() -> None:
    diary = Diary(spare=100)
    with a_pool(diary, names=("jax",)) as (pool, cases):
        pool.probe(later_rounds=1)
        del diary.entries[:]
        pool.prefetch_workers([dataclasses.replace(case, environment={"NAME": "1"}) for case in cases], 1)
        assert diary.entries == ["end jax", "start jax"]


def test_neither_a_plan_nor_a_virtual_device_starts_workers_early() -> None:
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
def test_a_process_forked_for_a_case_imports_nothing_more_of_its_framework(name: str) -> None:
    pytest.importorskip(name)
    command = [sys.executable, "-c", FIRST_STEP, name]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == []
