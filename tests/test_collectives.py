"""What passes between devices, measured as users measure it: each rank's part is verified by element."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import benchbench
from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.model.case import Dtype
from benchbench.model.measurement import Measurement
from benchbench.model.placement import Placement, Strategy
from benchbench.model.world import Spread
from benchbench.worker import verify
from benchbench.worker.reference import reference
from benchbench.workloads._collective import Collective
from benchbench.workloads.base import Draw
from tests.tiny import COLLECTIVES, EVERY

BACKENDS = {
    name: registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
    for name in registry.entry_names("benchbench.backends")
}
SPREAD = [name for name, kind in BACKENDS.items() if kind.spread is not Spread.NONE and not kind.virtual]
WORLDS = [2, 3]


def collective(name: str, world: int, rank: int | None = None) -> Collective:
    placement = Placement(devices=world, strategy=Strategy.COLLECTIVE)
    work = EVERY[name]().tiny().divided(placement, rank)
    assert isinstance(work, Collective)
    return work


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", SPREAD)
def test_every_collective_of_a_backend_is_verified(backend: str, dtype: str, tmp_path: Path) -> None:
    names = [name for name in COLLECTIVES if BACKENDS[backend].framework in EVERY[name].frameworks()]
    run = benchbench.run(
        workloads=names,
        worlds=2,
        backends=backend,
        dtypes=dtype,
        devices="cpu",
        params={"n": 1021},
        preset="quick",
        rounds=1,
        results=tmp_path,
    )
    if run.info.probes[0].status != "ready":
        pytest.skip(run.info.probes[0].reason)
    told = {record.case.workload: record.outcome for record in run.records}
    assert {name: outcome.status for name, outcome in told.items()} == dict.fromkeys(names, "ok")
    for outcome in told.values():
        assert isinstance(outcome, Measurement)
        assert outcome.relative_error is not None
        assert len(outcome.ranks) == (2 if BACKENDS[backend].spread is Spread.PROCESSES else 0)


def test_ranks_that_are_simulated_are_stored_each_and_told_together(tmp_path: Path) -> None:
    run = benchbench.run(
        workloads=["all_reduce"],
        worlds=[2, 3],
        backends="fake",
        devices="cpu",
        preset="quick",
        rounds=1,
        results=tmp_path,
    )
    assert {record.case.id.rpartition(":")[2] for record in run.records} == {
        "cpu[devices=2,strategy=collective]",
        "cpu[devices=3,strategy=collective]",
    }
    for record in run.records:
        assert isinstance(record.outcome, Measurement)
        assert len(record.outcome.ranks) == record.case.placement.devices
        assert record.outcome.window


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world", WORLDS)
def test_the_ranks_parts_are_the_whole(name: str, world: int) -> None:
    """What each rank verifies is together what one process would, in the same order."""
    whole = collective(name, world)
    told = reference(whole, Dtype.FLOAT32)
    parts = [verify.of_rank(collective(name, world, rank), told) for rank in range(world)]
    for output, index in verify.sample_indices(whole).items():
        joined = np.concatenate([part.expected[output] for part in parts])
        order = np.argsort(index[:, 0], kind="stable")
        assert joined.tolist() == np.asarray(told.expected[output])[order].tolist()


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world", WORLDS)
def test_what_a_rank_draws_is_what_all_see_of_it(name: str, world: int) -> None:
    every = collective(name, world).arrays(Draw(Dtype.FLOAT32))
    for rank in range(world):
        own = collective(name, world, rank).arrays(Draw(Dtype.FLOAT32))
        assert {key: array.tolist() for key, array in own.items()} == {
            f"rank{rank}": every[f"rank{rank}"].tolist()
        }
    firsts = {array[0] for array in every.values()}
    assert len(firsts) == world


# (size, ranks) → bytes on a link for each byte of the size: nccl-tests, doc/PERFORMANCE.md.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_bandwidths_are_those_of_nccl_tests(name: str, world: int) -> None:
    work = collective(name, world)
    cost = work.cost(Dtype.FLOAT32)
    assert cost.items == 4 * work.size
    assert cost.link_bytes == pytest.approx(FACTORS[name](world) * cost.items, rel=1e-3)
    assert cost.link_bytes <= cost.bytes
