"""A training step divided among devices is the one-device step at the same global batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.launch.pool import WorkerPool
from benchbench.model.case import Case, Dtype, Phase
from benchbench.model.device import Target
from benchbench.model.measurement import Failure
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Settings
from benchbench.running.verification import computed, references, verified
from benchbench.workloads.base import Draw, Training
from benchbench.workloads.network import part_of_batch
from benchbench.workloads.networks.convnet import ConvnetTrain
from benchbench.workloads.networks.dcgan import DcganTrain
from benchbench.workloads.networks.resnet50 import Resnet50Train
from tests.factories import a_case
from tests.tiny import EVERY

NETWORKS = {"convnet_train": {}, "resnet50_train": {"depth": 14}, "gpt2_train": {}}
BACKENDS = ["torch", "tensorflow", "jax"]
TWO = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)


def backend_named(name: str) -> type[Backend]:
    return registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]


def divided_cases(backend: str, dtype: Dtype, names: Sequence[str]) -> list[Case]:
    kind = backend_named(backend)
    return [
        a_case(
            workload=name,
            params={**EVERY[name]().params, **NETWORKS[name]},
            backend=backend,
            mode=kind.modes[0],
            dtype=dtype,
            phase=Phase.TRAIN,
            placement=Placement(devices=2, strategy=strategy),
        )
        for name in names
        for strategy in EVERY[name].strategies(kind.framework)
    ]


def errors_of(cases: Sequence[Case]) -> dict[str, float | Failure | None]:
    """Case → relative error of its first steps against float64, or its failure."""
    names = dict.fromkeys(case.target for case in cases)
    targets = [Target(name=name, backend=name, python=sys.executable) for name in names]
    with WorkerPool(targets, Settings(threads=2), sys.executable) as pool:
        pool.probe()
        told = references(pool, cases, lambda text: None)
        assert not {name: text for name, text in told.items() if isinstance(text, str)}
        return verified(pool, cases, (), (told, {}), lambda: None)


@pytest.mark.real
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_strategy_of_a_backend_is_verified(backend: str) -> None:
    pytest.importorskip(backend)
    cases = divided_cases(backend, Dtype.FLOAT32, list(NETWORKS))
    errors = errors_of([*cases, *divided_cases(backend, Dtype.AMP_BF16, ["convnet_train"])])
    assert errors
    assert not {name: error for name, error in errors.items() if not isinstance(error, float)}


MUTANTS = '''
from dataclasses import dataclass

from benchbench.workloads.networks.convnet import ConvnetTrain


@dataclass(frozen=True)
class GradientsOfOneRank(ConvnetTrain):
    """No rank tells the others what it would change."""

    def build_torch(self, context, arrays):
        from torch.nn import parallel

        parallel.DistributedDataParallel = lambda module: module
        return super().build_torch(context, arrays)


@dataclass(frozen=True)
class GradientsSummed(ConvnetTrain):
    """As if the loss were the sum over ranks."""

    def build_torch(self, context, arrays):
        import torch.distributed as dist
        from torch.nn import parallel

        class Summing(parallel.DistributedDataParallel):
            def __init__(self, module):
                super().__init__(module)
                self.register_comm_hook(None, summed)

        def summed(_, bucket):
            work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return work.then(lambda done: done.value()[0])

        parallel.DistributedDataParallel = Summing
        return super().build_torch(context, arrays)
'''


@pytest.mark.real
def test_gradients_that_are_not_the_mean_over_ranks_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "gradients.py").write_text(MUTANTS)
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(tmp_path))
    cases = [
        a_case(workload=name, params={"batch": 8}, phase=Phase.TRAIN, placement=TWO)
        for name in ("gradients_of_one_rank", "gradients_summed")
    ]
    errors = errors_of(cases)
    assert len(errors) == 2
    assert {error.status for error in errors.values() if isinstance(error, Failure)} == {"wrong_result"}
    assert all(isinstance(error, Failure) for error in errors.values())


@pytest.mark.parametrize("work", [ConvnetTrain(), Resnet50Train(depth=14)])
def test_a_reference_in_replicas_has_the_loss_of_the_whole_batch_where_samples_do_not_meet(
    work: Training,
) -> None:
    small = work.divided(TWO).small()
    arrays = small.arrays(Draw(Dtype.FLOAT64))
    (whole,) = small.reference(arrays, 1)
    (apart,) = small.divided(TWO, replicas=2).reference(arrays, 1)
    normalised = isinstance(work, Resnet50Train)
    assert np.allclose(whole, apart, rtol=1e-12) != normalised


def test_the_parts_of_a_batch_are_the_whole() -> None:
    work = ConvnetTrain(batch=6)
    arrays = work.arrays(Draw(Dtype.FLOAT32))
    parts = [part_of_batch(work, arrays, part, 3) for part in range(3)]
    for name in ("images", "labels"):
        assert np.array_equal(np.concatenate([part[name] for part in parts]), arrays[name])
    assert all(part["conv1.weight"] is arrays["conv1.weight"] for part in parts)


def test_a_device_has_as_many_samples_of_the_small_size_as_one_alone() -> None:
    assert ConvnetTrain().divided(TWO).small().batch == 2 * ConvnetTrain().small().batch
    assert ConvnetTrain().divided(TWO).small().placement == TWO


def test_a_batch_that_does_not_divide_is_refused_with_the_reason() -> None:
    assert ConvnetTrain(batch=3).divided(TWO).refuses(Dtype.FLOAT32) == (
        "a batch of 3 cannot be divided among 2 devices"
    )
    assert not ConvnetTrain(batch=4).divided(TWO).refuses(Dtype.FLOAT32)


def test_two_updates_of_one_module_are_not_divided() -> None:
    assert ConvnetTrain.strategies("torch")
    assert not DcganTrain.strategies("torch")


def test_frameworks_that_keep_statistics_apart_have_a_reference_of_their_own() -> None:
    torch, jax, one = (
        a_case(workload="resnet50_train", backend=backend, phase=Phase.TRAIN, placement=placement)
        for backend, placement in (("torch", TWO), ("jax", TWO), ("torch", Placement()))
    )
    assert len({computed(torch), computed(jax), computed(one)}) == 3
