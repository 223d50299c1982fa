"""A training step divided among devices equals the one-device step at the same global batch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.analyse.metrics import Value
from benchbench.analyse.scaling import SHARED_CORES, RunView, Scaling, scalings
from benchbench.backends.base import Session, backend_class
from benchbench.documents.document import Sweeps
from benchbench.documents.run import RunReport, report_document
from benchbench.documents.run_table import UNSURE
from benchbench.model.case import Case, Dtype, Phase, Scalar
from benchbench.model.measurement import Failure, combined
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import ONE_DEVICE, Placement, Strategy, World
from benchbench.model.run import Record, Run
from benchbench.plan.cases import division_obstacle, supported_strategies
from benchbench.running.verification import computation_name, replicas
from benchbench.workloads._programs import torch_parallel
from benchbench.workloads.base import Draw
from benchbench.workloads.network import batch_statistics, grouped_by_device, micro_batches, part_of_batch
from benchbench.workloads.networks.decoders import Gpt2Train, TransformerTrain
from benchbench.workloads.networks.plain_cnns import ConvnetTrain
from benchbench.workloads.networks.residual_networks import Resnet50Train
from benchbench.workloads.networks.vision import DcganTrain
from benchbench.workloads.steps import STRATEGIES, TrainingStep
from tests.factories import a_case, a_cost, a_measurement, a_probe, a_record, a_run_info
from tests.test_networks import opened
from tests.tiny import EVERY
from tests.verifying import Verifier, failures

NETWORKS = {"convnet_train": {}, "resnet50_train": {"depth": 14}, "gpt2_train": {}}
ROOT = Path(__file__).parents[1]
# Under `pytest -n`, the cases of a backend share a process and its workers.
BACKENDS = [
    pytest.param(name, marks=pytest.mark.xdist_group(f"parallel {name}"))
    for name in ("torch", "tensorflow", "jax", "torch_xla")
]
TWO = Placement(devices=2, strategy=Strategy.DATA_PARALLEL)
TWICE = ConvnetTrain(accumulate=2)
TRAINED = [name for name, kind in EVERY.items() if Strategy.DATA_PARALLEL in kind.strategies("torch")]


def divided_cases(
    backend: str, dtype: Dtype, names: Sequence[str], devices: int = 2, **params: Scalar
) -> list[Case]:
    """Every strategy."""
    return [
        training_case(backend, dtype, name, Placement(devices=devices, strategy=strategy), **params)
        for name in names
        for strategy in supported_strategies(EVERY[name], backend_class(backend))
    ]


def training_case(
    backend: str, dtype: Dtype, name: str, placement: Placement = ONE_DEVICE, **params: Scalar
) -> Case:
    return a_case(
        workload=name,
        params={**EVERY[name]().params, **NETWORKS.get(name, {}), **params},
        backend=backend,
        mode=backend_class(backend).modes[0],
        dtype=dtype,
        phase=Phase.TRAIN,
        placement=placement,
    )


@pytest.mark.real
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_strategy_of_a_backend_is_verified(verifier: Verifier, backend: str) -> None:
    """Transformers only in the last two strategies, which divide layers.

    JAX has the CNN on four devices, below.
    """
    cases = [] if backend == "jax" else divided_cases(backend, Dtype.FLOAT32, ["convnet_train"])
    cases.append(training_case(backend, Dtype.AMP_BF16, "convnet_train", TWO))
    if backend != "torch_xla":  # compiling takes minutes
        cases += divided_cases(backend, Dtype.FLOAT32, ["gpt2_train"])[-2:]
    errors = verifier.errors_of(cases)
    assert len(errors) == len(cases)
    assert not failures(errors)


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("mode", ["compile", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize(
    "strategy", [Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.PIPELINE], ids=str
)
def test_every_compiled_divided_step_is_verified(verifier: Verifier, strategy: Strategy, mode: str) -> None:
    """In one micro-batch and in two."""
    pytest.importorskip("torch")
    placement = Placement(devices=2, strategy=strategy)
    cases = [
        replace(training_case("torch", Dtype.FLOAT32, name, placement, batch=8, **params), mode=mode)
        for name in NETWORKS
        for params in ({}, {"accumulate": 2})
    ]
    errors = verifier.errors_of(cases)
    assert len(errors) == len(cases)
    assert not failures(errors)


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_strategy_of_every_network_is_verified(verifier: Verifier, backend: str, name: str) -> None:
    cases = divided_cases(backend, Dtype.FLOAT32, [name])
    cases += divided_cases(backend, Dtype.FLOAT32, [name], accumulate=2)
    if "sync_batch_norm" in EVERY[name].fields():
        cases += divided_cases(backend, Dtype.FLOAT32, [name], sync_batch_norm=True)
        cases.append(training_case(backend, Dtype.FLOAT32, name, TWO, accumulate=2, sync_batch_norm=True))
    if name == "convnet_train":
        cases += divided_cases(backend, Dtype.AMP_BF16, [name])
        cases.append(training_case(backend, Dtype.AMP_BF16, name, accumulate=3))
    assert not failures(verifier.errors_of(cases))


MUTANTS = '''
from dataclasses import dataclass

from benchbench.workloads.networks.plain_cnns import ConvnetTrain


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


@dataclass(frozen=True)
class GradientsOfSummedMicroBatches(ConvnetTrain):
    """As if the gradient were the sum over micro-batches."""

    def build_torch(self, context, arrays):
        from torch import Tensor

        Tensor.__truediv__ = lambda loss, count: loss
        return super().build_torch(context, arrays)


@dataclass(frozen=True)
class GradientsOfLastMicroBatch(ConvnetTrain):
    """Gradients of the others are lost."""

    def build_torch(self, context, arrays):
        from benchbench.workloads._programs import torch_parallel

        split = torch_parallel.split_micro_batches
        torch_parallel.split_micro_batches = lambda *given: [split(*given)[-1]] * self.accumulate
        return super().build_torch(context, arrays)


@dataclass(frozen=True)
class GradientsOfPartialSums(ConvnetTrain):
    """Activations that are parts of a sum are taken for the sum."""

    def build_torch(self, context, arrays):
        from torch.distributed.tensor.parallel import RowwiseParallel

        def own_part(layouts, is_local, module, outputs, mesh):
            return outputs.to_local()

        RowwiseParallel._prepare_output_fn = staticmethod(own_part)
        return super().build_torch(context, arrays)
'''


@pytest.mark.nightly
@pytest.mark.real
def test_gradients_that_are_not_the_mean_over_ranks_and_micro_batches_are_wrong(
    fresh_verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "gradients.py").write_text(MUTANTS)
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(tmp_path))
    divided_layers = Placement(devices=2, strategy=Strategy.TENSOR_PARALLEL)
    mutants = [
        ("gradients_of_one_rank", {}, TWO),
        ("gradients_summed", {}, TWO),
        ("gradients_of_summed_micro_batches", {"accumulate": 2}, ONE_DEVICE),
        ("gradients_of_last_micro_batch", {"accumulate": 2}, ONE_DEVICE),
        ("gradients_of_partial_sums", {}, divided_layers),
    ]
    cases = [
        a_case(workload=name, params={"batch": 8, **params}, phase=Phase.TRAIN, placement=placement)
        for name, params, placement in mutants
    ]
    errors = fresh_verifier.errors_of(cases)
    assert len(errors) == len(mutants)
    assert {error.status for error in errors.values() if isinstance(error, Failure)} == {"wrong_result"}
    assert all(isinstance(error, Failure) for error in errors.values())


@pytest.mark.real
@pytest.mark.parametrize(
    "work", [ConvnetTrain(), pytest.param(Resnet50Train(depth=14), marks=pytest.mark.nightly)]
)
def test_replicas_and_micro_batches_have_the_loss_of_the_whole_batch_without_batch_norm(
    work: ConvnetTrain | Resnet50Train,
) -> None:
    in_parts = replace(work, accumulate=2).small()
    small = work.divided(TWO).small()
    for whole, parts in (
        (small, small.divided(TWO, replicas=2)),
        (replace(in_parts, accumulate=1), in_parts),
    ):
        arrays = whole.arrays(Draw(Dtype.FLOAT64))
        (full,), (split,) = whole.reference(arrays, 1), parts.reference(arrays, 1)
        assert np.allclose(full, split, rtol=1e-12) != isinstance(work, Resnet50Train)


def test_the_parts_of_a_batch_make_the_whole_batch() -> None:
    work = ConvnetTrain(batch=6)
    arrays = work.arrays(Draw(Dtype.FLOAT32))
    parts = [part_of_batch(work, arrays, part, 3) for part in range(3)]
    for name in ("images", "labels"):
        assert np.array_equal(np.concatenate([part[name] for part in parts]), arrays[name])
    assert all(part["conv1.weight"] is arrays["conv1.weight"] for part in parts)


def test_each_device_gets_its_part_of_each_micro_batch() -> None:
    work = ConvnetTrain(batch=12, accumulate=3).divided(TWO)
    arrays = work.arrays(Draw(Dtype.FLOAT32))
    grouped = grouped_by_device(work, arrays)
    for device in range(2):
        labels = part_of_batch(work, grouped, device, 2)["labels"]
        parts = [part_of_batch(work, batch, device, 2)["labels"] for batch in micro_batches(work, arrays)]
        assert np.array_equal(labels, np.concatenate(parts))
    assert grouped["conv1.weight"] is arrays["conv1.weight"]


def test_several_micro_batches_move_more_bytes_than_one() -> None:
    assert ConvnetTrain(accumulate=1).params == {"batch": 128}
    single, two, half = (work.cost(Dtype.FLOAT32) for work in (ConvnetTrain(), TWICE, ConvnetTrain(batch=64)))
    assert (two.flops, two.items) == (single.flops, single.items)
    parameters = 4 * 2_122_186
    update = ConvnetTrain().update.moves * parameters
    assert two.bytes == 2 * (half.bytes - update) + update + 3 * parameters  # gradients are added once
    assert two.bytes > single.bytes


def test_a_reference_with_synchronised_batch_norm_has_one_replica() -> None:
    separate, together = (
        a_case(workload="resnet50_train", params=params, phase=Phase.TRAIN, placement=TWO)
        for params in ({}, {"sync_batch_norm": True})
    )
    assert (replicas(separate), replicas(together)) == (2, 1)


@pytest.mark.parametrize(
    ("params", "placement", "extent"),
    [
        ({}, ONE_DEVICE, None),
        ({}, TWO, "each device's part of the batch"),
        ({"sync_batch_norm": True}, TWO, "the whole batch"),
        ({"accumulate": 2}, ONE_DEVICE, "the whole micro-batch"),
        ({"accumulate": 2}, TWO, "each device's part of the micro-batch"),
        ({"accumulate": 2, "sync_batch_norm": True}, TWO, "the whole micro-batch"),
    ],
)
def test_a_note_has_the_extent_of_batch_statistics(
    params: dict[str, Any], placement: Placement, extent: str | None
) -> None:
    notes = batch_statistics(Resnet50Train(**params).divided(placement), per_device=True)
    assert [note.data["extent"] for note in notes] == ([extent] if extent else [])
    assert not batch_statistics(ConvnetTrain(accumulate=2).divided(placement), per_device=True)


def test_each_device_gets_the_small_batch_of_one_device() -> None:
    assert ConvnetTrain().divided(TWO).small().batch == 2 * ConvnetTrain().small().batch
    assert ConvnetTrain().divided(TWO).small().placement == TWO


def test_a_batch_that_does_not_divide_is_refused_with_the_reason() -> None:
    assert ConvnetTrain(batch=3).divided(TWO).refuses(Dtype.FLOAT32) == (
        "a batch of 3 cannot be divided among 2 devices"
    )
    assert not ConvnetTrain(batch=4).divided(TWO).refuses(Dtype.FLOAT32)
    assert ConvnetTrain(batch=6, accumulate=2).divided(TWO).refuses(Dtype.FLOAT32) == (
        "a batch of 6 cannot be divided into 2 micro-batches on each of 2 devices"
    )
    assert ConvnetTrain(batch=3, accumulate=2).refuses(Dtype.FLOAT32) == (
        "a batch of 3 cannot be divided into 2 micro-batches"
    )


def test_compiled_tensor_parallel_layers_are_not_planned() -> None:
    probe, placement = a_probe(), Placement(devices=2, strategy=Strategy.TENSOR_PARALLEL)
    compiled, eager = (
        a_case(workload="gpt2_train", params={}, mode=mode, phase=Phase.TRAIN, placement=placement)
        for mode in ("compile", "eager")
    )
    obstacle = division_obstacle(compiled, EVERY["gpt2_train"], probe, probe.devices[0])
    assert obstacle is not None
    assert "torch.compile cannot trace" in obstacle[1]
    assert division_obstacle(eager, EVERY["gpt2_train"], probe, probe.devices[0]) is None


def test_dcgan_is_not_divided() -> None:
    assert ConvnetTrain.strategies("torch")
    assert not DcganTrain.strategies("torch")


def test_the_page_lists_divisible_and_indivisible_networks() -> None:
    page = (
        (ROOT / "docs/devices.md")
        .read_text()
        .partition("### Tensor-parallel in torch")[2]
        .partition("###")[0]
    )
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    divisible = {name: "unsupported" not in row[2] for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert divisible == {
        name: Strategy.TENSOR_PARALLEL in EVERY[name].strategies("torch") for name in TRAINED
    }


def test_frameworks_with_separate_batch_statistics_have_their_own_reference() -> None:
    torch, jax, one_device = (
        a_case(workload="resnet50_train", backend=backend, phase=Phase.TRAIN, placement=placement)
        for backend, placement in (("torch", TWO), ("jax", TWO), ("torch", Placement()))
    )
    assert len({computation_name(torch), computation_name(jax), computation_name(one_device)}) == 3


def rank_session(ranks: int) -> Session:
    """Session of rank 0 of several on the CPU, in float32."""
    _, session = opened("torch")
    session.world = World(devices=ranks, processes=ranks)
    return session


def local(tensor: Any) -> Any:
    """The part of a tensor on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def bytes_of_rank(work: TrainingStep, ranks: int) -> int:
    """Bytes of parameters, gradients and optimizer state of rank 0 of a fake process group after a step."""
    pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes: list[int] = []

    def count(optimizer: Any, *_: Any) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            state = [array for array in optimizer.state[p].values() if getattr(array, "shape", ()) == p.shape]
            sizes.extend(local(tensor).nbytes for tensor in (p, p.grad, *state))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    hook = register_optimizer_step_post_hook(count)
    try:
        context: Any = rank_session(ranks)
        program = work.build_torch(context, work.arrays(Draw(Dtype.FLOAT32)))
        program.step(*program.inputs)
    finally:
        hook.remove()
        dist.destroy_process_group()
    return sum(sizes)


def bytes_undivided(work: TrainingStep) -> int:
    """The same bytes on one device: parameters, gradients and optimizer state."""
    elements = sum(math.prod(weight.shape) for weight in work.weights().values() if weight.is_learnt)
    return 4 * elements * (2 + len(work.update.slots))


@pytest.mark.real
@pytest.mark.parametrize(
    ("work", "strategy", "ranks", "share"),
    [
        (ConvnetTrain(), Strategy.FULLY_SHARDED, 4, 0.26),
        (Gpt2Train(), Strategy.FULLY_SHARDED, 4, 0.3),
        (TransformerTrain(), Strategy.TENSOR_PARALLEL, 2, 0.75),
    ],
)
def test_a_torch_rank_stores_its_share_of_the_parameters(
    work: TrainingStep, strategy: Strategy, ranks: int, share: float
) -> None:
    small = work.divided(Placement(devices=ranks, strategy=strategy)).small()
    rank_bytes = bytes_of_rank(small.divided(small.placement, rank=0), ranks)
    assert 1 / ranks <= rank_bytes / bytes_undivided(small) <= share


@pytest.mark.real
@pytest.mark.parametrize("name", TRAINED)
def test_torch_gathers_the_layers_of_every_network_one_by_one(name: str) -> None:
    torch = pytest.importorskip("torch")
    work = EVERY[name]()
    assert isinstance(work, TrainingStep)
    if Strategy.FULLY_SHARDED not in work.strategies("torch"):
        pytest.skip("it is not fully sharded")
    with torch.device("meta"):
        module = work.torch()
    assert len(list(torch_parallel.gathered_layers(module))) > 1


COUNTED = '''
from dataclasses import dataclass
from pathlib import Path

from benchbench.workloads.networks.plain_cnns import ConvnetTrain


@dataclass(frozen=True)
class ConvnetCounted(ConvnetTrain):
    """Each build notes the bytes of parameters and momentum that a device has, and the compiled step."""

    def build_jax(self, context, arrays):
        import jax

        program = super().build_jax(context, arrays)
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(program.state[:2]))
        compiled = jax.jit(program.step).lower(*program.state, *program.inputs).compile()
        note = Path(__file__).with_name(str(self.placement.strategy))
        note.with_suffix(".held").write_text(str(held))
        note.with_suffix(f".{self.accumulate}").write_text(compiled.as_text())
        return program
'''


def on_four(strategy: Strategy, **params: Scalar) -> Case:
    return a_case(
        workload="convnet_counted",
        params={"batch": 8, **params},
        backend="jax",
        mode="jit",
        phase=Phase.TRAIN,
        placement=Placement(devices=4, strategy=strategy),
    )


@pytest.mark.nightly
@pytest.mark.real
def test_every_strategy_of_jax_is_verified_on_four_devices_and_divides_the_state(
    fresh_verifier: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process drives all devices; on hosts with fewer cores they take turns."""
    pytest.importorskip("jax")
    (tmp_path / "convnet_counted.py").write_text(COUNTED)
    monkeypatch.setenv("ACCELBENCH_WORKLOADS", str(tmp_path))
    strategies = STRATEGIES["jax"]
    assert set(strategies) == {Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED, Strategy.TENSOR_PARALLEL}
    cases = [on_four(strategy) for strategy in strategies]
    cases.append(on_four(Strategy.DATA_PARALLEL, accumulate=2))
    errors = fresh_verifier.errors_of(cases)
    assert len(errors) == len(cases)
    assert not failures(errors)
    state_bytes = {strategy: int((tmp_path / f"{strategy}.held").read_text()) for strategy in strategies}
    full_bytes = state_bytes[Strategy.DATA_PARALLEL]
    assert full_bytes == bytes_undivided(ConvnetTrain()) * 2 / 3  # without gradients
    assert state_bytes[Strategy.FULLY_SHARDED] < 0.3 * full_bytes
    assert state_bytes[Strategy.TENSOR_PARALLEL] < 0.3 * full_bytes
    for count in (1, 2):
        assert_reduced((tmp_path / f"{Strategy.DATA_PARALLEL}.{count}").read_text(), count)


def assert_reduced(program: str, micro_batches: int) -> None:
    """XLA puts the all-reduce of gradients into the body of the loop over micro-batches."""
    computations = [computation for computation in program.split("\n\n") if " all-reduce(" in computation]
    (reduced,) = re.findall(r"= (.*) all-reduce\(", "\n".join(computations))
    elements = [
        math.prod(map(int, filter(None, shape.split(","))))
        for shape in re.findall(r"f32\[([\d,]*)\]", reduced)
    ]
    assert sum(elements) == 2_122_186 + 1  # and the loss
    assert ("while(" in program) == (micro_batches > 1)
    in_the_step = any(computation.lstrip().startswith("ENTRY") for computation in computations)
    assert micro_batches == 1 or not in_the_step


def of_devices(
    devices: int, batch: int, step_s: Sequence[float], first_round: int = 0, **over: Any
) -> list[Record]:
    placement = Placement(devices=devices, strategy=Strategy.DATA_PARALLEL) if devices > 1 else Placement()
    case = a_case(
        workload="convnet_train",
        params={"batch": batch},
        phase=Phase.TRAIN,
        device=over.pop("device", "cuda:0"),
        placement=placement,
    )
    cost = a_cost(items=batch, item="image")
    measurements = [a_measurement(cost=cost, iterations=1, block_s=(step,) * 5, **over) for step in step_s]
    outcomes = [
        combined(cost, [(0, "cuda", measurement)] * devices) if devices > 1 else measurement
        for measurement in measurements
    ]
    return [a_record(outcome, case=case, round=at) for at, outcome in enumerate(outcomes, first_round)]


def scaled(*records: list[Record]) -> tuple[list[Scaling], RunReport]:
    plan = tuple(record[0].case for record in records)
    run = Run(
        info=a_run_info(plan=plan),
        records=tuple(record for rounds in records for record in rounds),
    )
    return scalings(RunView(run)), report_document(run)


@pytest.mark.real
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=6), st.floats(0.25, 4))
def test_a_speed_up_is_computed_from_common_rounds(drift: list[float], faster: float) -> None:
    single = of_devices(1, 8, drift)
    together = of_devices(2, 8, [seconds / faster for seconds in drift])
    (scaling,), _ = scaled(single, together)
    assert not scaling.is_weak
    assert scaling.speedup.value == pytest.approx(faster)
    assert scaling.efficiency.value == pytest.approx(faster / 2)
    assert (scaling.speedup.low or 0) <= faster * (1 + 1e-9) <= (scaling.speedup.high or 0) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("rounds", "first_round", "speedup"),
    [
        (1, 1, Value(None, reason="no round has both")),
        (1, 0, Value(4.0)),  # no interval
        (2, 1, Value(2.0)),
        (2, 0, Value(math.sqrt(8), ANY, ANY)),
    ],
)
def test_only_common_rounds_count_in_a_speed_up(rounds: int, first_round: int, speedup: Value) -> None:
    """One device takes 4 s in round 0 and 2 s in round 1; two devices take 1 s in their rounds."""
    single, together = of_devices(1, 8, [4.0, 2.0][:rounds]), of_devices(2, 8, [1.0] * rounds, first_round)
    (scaling,), _ = scaled(single, together)
    assert (scaling.speedup.low is None) == (speedup.low is None)
    assert scaling.speedup.reason == scaling.efficiency.reason == speedup.reason
    assert scaling.speedup.value == (speedup.value and pytest.approx(speedup.value))
    assert scaling.efficiency.value == (speedup.value and pytest.approx(speedup.value / 2))


def test_weak_scaling_compares_equal_work_per_device() -> None:
    weak, _ = scaled(of_devices(1, 4, [1.0, 1.0]), of_devices(2, 8, [1.25, 1.25]))
    assert [scaling.is_weak for scaling in weak] == [True]
    assert weak[0].efficiency.value == pytest.approx(0.8)


def test_devices_that_share_cores_have_no_efficiency() -> None:
    single = of_devices(1, 8, [1.0, 1.0], device="cpu")
    (scaling,), report = scaled(single, of_devices(2, 8, [0.9, 0.9], device="cpu"))
    assert scaling.speedup.value is not None
    assert (scaling.efficiency.value, scaling.efficiency.reason) == (None, SHARED_CORES)
    assert not [plot for plot in report.plots() if plot.name == "scaling"]
    crowded = (note(NoteKind.OVERSUBSCRIBED, ranks=2),)
    (scaling,), _ = scaled(of_devices(1, 8, [1.0, 1.0]), of_devices(2, 8, [0.9, 0.9], notes=crowded))
    assert (scaling.speedup.value, scaling.efficiency.value) == (None, None)
    assert scaling.speedup.reason == "fewer cores than devices"


def test_a_report_compares_several_devices_with_one_and_the_ideal() -> None:
    steps = [1.0, 1.01, 0.99]
    _, report = scaled(
        of_devices(1, 8, steps),
        of_devices(2, 8, [step / 1.8 for step in steps]),
        of_devices(4, 8, [step / 3 for step in steps]),
    )
    assert rendered(report) == snapshot("""\
strategy | devices | beside | rate | speed-up | efficiency | memory a rank | slowest rank
data-parallel | 2 | the same on one | 14.4 image/s | 1.800× [1.800, 1.800] | 90.0 % [90.0 %, 90.0 %] | \
62.0 MiB | 0, 3 of 3 rounds
data-parallel | 4 | the same on one | 24.0 image/s | 3.000× [2.999, 3.001] | 75.0 % [75.0 %, 75.0 %] | \
62.0 MiB | 0, 3 of 3 rounds\
""")
    (plot,) = [plot for plot in report.plots() if plot.name == "scaling"]
    (panel,) = plot.panels
    assert isinstance(panel, Sweeps)
    assert [(sweep.label, [point.size for point in sweep.points]) for sweep in panel.sweeps] == [
        ("data-parallel", [1, 2, 4]),
        ("ideal", [1, 2, 4]),
    ]
    assert [point.value for point in panel.sweeps[0].points] == pytest.approx([1, 1.8, 3])


@pytest.mark.parametrize("disturbed", [0, 1])
def test_a_disturbed_speed_up_is_marked_as_doubtful(disturbed: int) -> None:
    over: list[dict[str, Any]] = [{}, {}]
    over[disturbed] = {"notes": (note(NoteKind.OTHER_PROCESSES, cores=1.5),)}
    single, together = of_devices(1, 8, [8.5, 8.5], **over[0]), of_devices(2, 8, [0.1, 0.1], **over[1])
    _, report = scaled(single, together)
    assert "85.00× [84.92, 85.08] ?" in rendered(report)
    assert ("80.0 image/s contended" in rendered(report)) == bool(disturbed)
    assert UNSURE in report.notes


def rendered(report: RunReport) -> str:
    (table,) = [table for table in report.tables if table.title == "Several devices beside one"]
    lines = [[column.name for column in table.columns], *([str(cell) for cell in row] for row in table.rows)]
    return "\n".join(" | ".join(line[1:]) for line in lines)
