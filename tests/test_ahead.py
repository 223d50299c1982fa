"""Workers of later rounds: imported before anything is timed, and no more than memory allows."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
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

    def start(self, target: Target, environment: Mapping[str, str]) -> Any:
        def greet(timeout_s: float) -> Greeting:
            self.entries.append(f"greet {target.name}")
            return Greeting(status="ready")

        def post(job: Message, files: Any = None, *, fork: bool) -> None:
            self.entries.append(f"{job['kind']} {target.name} {job['kinds']}")

        def collect(timeout_s: float) -> Answer:
            return Answer({})

        def close() -> None:
            self.entries.append(f"end {target.name}")

        self.entries.append(f"start {target.name}")
        self.workers.append(SimpleNamespace(alive=True, ready=greet, post=post, collect=collect, close=close))
        return self.workers[-1]

    def spare_workers(self) -> int:
        return self.spare

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def pool_ahead(
    diary: Diary, rounds: int, isolation: Isolation = Isolation.FORK
) -> Iterator[tuple[WorkerPool, list[Case]]]:
    """A pool whose workers of `rounds` later rounds have imported; its diary begins after that."""
    cases = [a_case(target=name, backend=name) for name in ("jax", "torch")]
    targets = [dataclasses.replace(FAKE, name=case.target, backend=case.backend) for case in cases]
    settings, opened = dataclasses.replace(SETTINGS, isolation=isolation), cast(Any, diary)
    with WorkerPool(targets, settings, sys.executable, transport=lambda *_: opened) as pool:
        pool.start(cases)
        del diary.entries[:]
        pool.start_ahead(cases, rounds)
        pool.await_ahead(cases)
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
