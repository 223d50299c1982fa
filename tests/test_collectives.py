"""Collectives: measurement, verification of each rank's part, cost and barriers."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import benchbench
from benchbench import registry
from benchbench.analyse.rows import rows
from benchbench.backends.base import backend_class
from benchbench.documents.devices import link_tables
from benchbench.documents.document import Document
from benchbench.errors import UsageError
from benchbench.exporters.terminal import render
from benchbench.model.case import Dtype
from benchbench.model.device import Probe
from benchbench.model.measurement import Measurement
from benchbench.model.placement import Placement, Spread, Strategy, World
from benchbench.model.run import Record, Run
from benchbench.timing.policy import POLICIES
from benchbench.worker import verify
from benchbench.worker.ranks import run_ranks
from benchbench.worker.reference import reference
from benchbench.workloads._collective import BetweenRanks, Collective
from benchbench.workloads.base import Draw
from benchbench.workloads.transfers.exchanges import MOST_LATE, SendRecv, counted, gone_early
from tests.brief import time_briefly
from tests.factories import a_case, a_measurement, a_record, a_run
from tests.tiny import COLLECTIVES, EVERY

BACKENDS = {name: backend_class(name) for name in registry.entry_names("benchbench.backends")}
SPREAD = [name for name, kind in BACKENDS.items() if kind.spread is not Spread.NONE and not kind.virtual]
WORLDS = [2, 3]
# Frameworks that other tests imported in this process warn of forks; these ranks use none.
FORKS = pytest.mark.filterwarnings("ignore:os.fork")
UNSUPPORTED = {  # collectives that a builder refuses
    ("tensorflow", "bfloat16"): ["all_gather"],
    ("torch_xla", "float32"): ["barrier"],
    ("torch_xla", "bfloat16"): ["barrier"],
}


OF_ARRAYS = [name for name in COLLECTIVES if issubclass(EVERY[name], Collective)]


def collective(name: str, world: int, rank: int | None = None) -> BetweenRanks:
    placement = Placement(devices=world, strategy=Strategy.COLLECTIVE)
    work = EVERY[name]().tiny().divided(placement, rank)
    assert isinstance(work, BetweenRanks)
    return work


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "quick", POLICIES["quick"])  # restored afterwards
    time_briefly()


def run_once(results: Path, **options: Any) -> Run:
    return benchbench.run(**options, preset="quick", rounds=1, results=results)


@pytest.mark.real
def test_every_collective_of_jax_is_verified_on_four_devices(tmp_path: Path) -> None:
    names = [name for name in COLLECTIVES if "jax" in EVERY[name].frameworks()]
    skip_unless_ready("jax")
    run = run_once(tmp_path, workloads=names, worlds="cpu+cpu+cpu+cpu", backends="jax", params={"n": 1021})
    outcomes = {record.case.workload: record.outcome for record in run.records}
    assert {name: outcome.status for name, outcome in outcomes.items()} == dict.fromkeys(names, "ok")
    crowded = len(os.sched_getaffinity(0)) < 4
    assert {row.is_unranked for row in rows(run)} == {crowded}


@pytest.mark.real
@pytest.mark.parametrize("backend", SPREAD)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.nightly)])
def test_every_collective_of_a_backend_is_verified(backend: str, dtype: str, tmp_path: Path) -> None:
    skip_unless_ready(backend)
    names = [name for name in COLLECTIVES if BACKENDS[backend].framework in EVERY[name].frameworks()]
    choice = {"workloads": names, "backends": backend, "dtypes": dtype, "devices": "cpu"}
    run = run_once(tmp_path, **choice, worlds=2, params={"n": 1021})
    outcomes = {record.case.workload: record.outcome for record in run.records}
    unsupported = UNSUPPORTED.get((backend, dtype), [])
    expected = {name: "unsupported" if name in unsupported else "ok" for name in names}
    statuses: dict[str, str] = {left.case.workload: left.status for left in run.info.left_out}
    statuses |= {name: outcome.status for name, outcome in outcomes.items()}
    assert statuses == expected
    for outcome in outcomes.values():
        if isinstance(outcome, Measurement):
            assert outcome.relative_error is not None
            assert len(outcome.ranks) == (2 if BACKENDS[backend].spread is Spread.PROCESSES else 0)


@cache
def probe_of(backend: str) -> Probe:
    """The backend's probe, cached because a process imports the framework."""
    (probe,) = benchbench.devices(backends=backend)
    return probe


def skip_unless_ready(backend: str) -> None:
    if probe_of(backend).status != "ready":
        pytest.skip(probe_of(backend).reason)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world", WORLDS)
def test_the_parts_of_all_ranks_are_the_whole(name: str, world: int) -> None:
    """The ranks together verify the same elements as one process."""
    undivided = collective(name, world)
    exact = reference(undivided, Dtype.FLOAT32)
    parts = [verify.of_rank(collective(name, world, rank), exact) for rank in range(world)]
    for output, index in verify.sample_indices(undivided).items():
        all_parts = np.concatenate([part.expected[output] for part in parts])
        order = np.argsort(index[:, 0], kind="stable")
        assert all_parts.tolist() == np.asarray(exact.expected[output])[order].tolist()


@pytest.mark.parametrize("name", OF_ARRAYS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_rank_draws_its_part_of_all_arrays(name: str, world: int) -> None:
    every = collective(name, world).arrays(Draw(Dtype.FLOAT32))
    for rank in range(world):
        arrays = collective(name, world, rank).arrays(Draw(Dtype.FLOAT32))
        assert list(arrays) == [f"rank{rank}"]
        np.testing.assert_array_equal(arrays[f"rank{rank}"], every[f"rank{rank}"])
    firsts = {array[0] for array in every.values()}
    assert len(firsts) == world


# (size, ranks) → bytes on a link for each byte of the size: nccl-tests, doc/PERFORMANCE.md.
FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "send_recv": lambda n: 1,
}


@pytest.mark.parametrize("name", OF_ARRAYS)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_bandwidths_agree_with_nccl_tests(name: str, world: int) -> None:
    work = collective(name, world)
    assert isinstance(work, Collective)
    cost = work.cost(Dtype.FLOAT32)
    assert cost.items == 4 * work.size
    assert cost.link_bytes == pytest.approx(FACTORS[name](world) * cost.items, rel=1e-3)
    assert cost.link_bytes <= cost.bytes


def job(tmp_path: Path) -> dict[str, Any]:
    case = {"placement": {"devices": 2}, "device": "cpu"}
    return {"case": case, "folder": str(tmp_path), "threads": 1, "timeout_s": 20.0}


def ahead_of_another(tmp_path: Path, run: Callable[[World], int]) -> list[int]:
    def reply(_: dict[str, Any], world: World) -> dict[str, Any]:
        return {"outcome": {"status": "ok"}, "ahead": run(world)}

    return [answer["ahead"] for answer in run_ranks(job(tmp_path), reply)["ranks"]]


@FORKS
def test_no_rank_passes_a_working_barrier_early(tmp_path: Path) -> None:
    def run(world: World) -> int:
        assert world.shared
        wait = counted(world.shared, world.rank, lambda: world.gather(None))
        return sum(wait() for _ in range(20))

    assert ahead_of_another(tmp_path, run) == [0, 0]


@FORKS
def test_a_broken_barrier_is_detected(tmp_path: Path) -> None:
    def run(world: World) -> int:
        assert world.shared
        wait = counted(world.shared, world.rank, lambda: None)
        if world.rank == 1:
            world.gather(None)
        ahead = sum(wait() for _ in range(20))
        if world.rank == 0:
            world.gather(None)
        return ahead

    assert ahead_of_another(tmp_path, run) == [20, 0]


@pytest.mark.parametrize(("processes", "times"), [(2, 2), (8, 8), (9, 5), (64, 8)])
def test_without_shared_memory_a_barrier_is_tested_with_each_rank_late(processes: int, times: int) -> None:
    now, met, moment = 0.0, 0, 2.0**-30

    def gather(value: object) -> list[object]:
        nonlocal met
        met += 1
        return [value] * processes

    def holds() -> None:
        nonlocal now
        now += moment

    world = World(rank=processes - 1, devices=processes, processes=processes, gather=gather)
    is_own_turn = processes - 1 in range(0, processes, -(-processes // MOST_LATE))
    assert gone_early(world, lambda: None, moment, lambda: now) == times - is_own_turn
    assert met == times
    assert gone_early(world, holds, moment, lambda: now) == 0


@FORKS
def test_ranks_that_wait_at_a_barrier_are_never_early(tmp_path: Path) -> None:
    def run(world: World) -> int:
        return gone_early(world, lambda: world.gather(None), 0.01)

    assert ahead_of_another(tmp_path, run) == [0, 0]


def test_send_recv_patterns_are_rings_or_pairs() -> None:
    def sources(pattern: str, world: int) -> list[int]:
        placement = Placement(devices=world, strategy=Strategy.COLLECTIVE)
        return SendRecv(pattern=pattern).divided(placement).sources

    assert sources("ring", 4) == [3, 0, 1, 2]
    assert sources("pair", 4) == [1, 0, 3, 2]
    assert sources("pair", 3) == [1, 0, 2]
    assert sources("0+2", 4) == [2, 1, 0, 3]


@pytest.mark.parametrize("pattern", ["star", "1+0", "2+2", "0+1+2", ""])
def test_an_unknown_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="No pattern named"):
        SendRecv(pattern=pattern)


def test_a_pattern_with_a_missing_rank_is_refused() -> None:
    placement = Placement(devices=2, strategy=Strategy.COLLECTIVE)
    assert "none is rank 2" in SendRecv(pattern="0+2").divided(placement).refuses(Dtype.FLOAT32)
    assert not SendRecv(pattern="0+1").divided(placement).refuses(Dtype.FLOAT32)


def test_a_slow_link_stands_out_in_a_matrix() -> None:
    placement = Placement(devices=3, strategy=Strategy.COLLECTIVE)

    def record(pattern: str, seconds: float) -> Record:
        work = SendRecv(n=250_000, pattern=pattern).divided(placement)
        cost = work.cost(Dtype.FLOAT32)
        case = a_case(workload="send_recv", params=work.params, placement=placement)
        return a_record(a_measurement(cost=cost, iterations=1, block_s=(seconds,) * 5), case=case)

    run = a_run([record("0+1", 1e-4), record("0+2", 1e-4), record("1+2", 4e-3)])
    (table,) = link_tables(rows(run))
    assert render(Document(name="report", title="Run", tables=(table,)), 120) == snapshot("""\
Links: send_recv n=250000 · float32 · torch eager · cpu
RANK  0                 1                 2
0                       10.0 GB/s 100 µs  10.0 GB/s 100 µs
1     10.0 GB/s 100 µs                    250 MB/s 4.00 ms
2     10.0 GB/s 100 µs  250 MB/s 4.00 ms
""")
