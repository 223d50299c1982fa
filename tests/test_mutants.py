"""Tolerances separate wrong programs from right ones, for each mutant in each dtype.

`python -m studies.mutants` prints how far each is beyond its tolerance.
"""

import dataclasses
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchbench.backends.base import backend_class
from benchbench.backends.torch import Torch
from benchbench.model.case import Dtype
from benchbench.registry import DRAWN
from benchbench.worker import verify
from benchbench.worker.jobs import largest_deviation, verify_in_float32
from benchbench.worker.program import WrongResult, build
from benchbench.worker.reference import reference_elements
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv, Dense
from benchbench.workloads._optimizers import Momentum, Optimizer
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads._reference.rounding import (
    BFLOAT16,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    PRECISIONS,
    TF32,
    Floating,
    Precision,
    Rounded,
    rounding_to,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Network
from benchbench.workloads.operations.gemm import Gemm
from benchbench.workloads.operations.recurrent import Recurrent
from benchbench.workloads.steps import Inference, TrainingStep
from tests.brief import BRIEFLY
from tests.factories import a_case
from tests.program import accelbench, rows
from tests.tiny import EVERY, error_ratio, reference_of, tiny

OF_PRODUCTS = {Dtype.INT8, Dtype.FLOAT8}  # no network trains in them; tests/test_float8.py has their mutants
DTYPES = [dtype for dtype in PRECISIONS if dtype not in OF_PRODUCTS]


@dataclass(frozen=True)
class Small(Network):
    """A network with every part that a mutant may break: convolutions, residual, pooling, biases, dense."""

    batch: int = 8

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, 10

    def layers(self) -> Any:
        return (
            Conv(name="conv1", inputs=3, outputs=8, kernel=3, size=8, bias=True),
            Conv(name="conv2", inputs=8, outputs=8, kernel=3, size=8, bias=True),
            Dense(name="dense1", inputs=128, outputs=32),
            Dense(name="dense2", inputs=32, outputs=10),
        )

    def inputs(self, draw: Draw) -> Any:
        return {"images": draw.normal("images", self.batch, 3, 8, 8)}

    def tiny(self) -> Any:
        return self

    def apply(self, nn: FunctionalForward, images: Any) -> Any:
        conv1, conv2, *_ = self.layers()
        x = nn.relu(nn.conv(images, conv1))
        x = nn.max_pool(nn.add(nn.relu(nn.conv(x, conv2)), x), 2)
        x = nn.relu(nn.dense(nn.reshape(x, (len(x), -1)), "dense1"))
        return nn.dense(x, "dense2")

    def torch(self) -> Any: ...


@dataclass(frozen=True)
class SmallTrain(TrainingStep, Small):
    summary = "a step of training"


@dataclass(frozen=True)
class SmallInfer(Inference, Small):
    summary = "the logits of a batch"


@dataclass(frozen=True)
class UpdatedBy(SmallTrain):
    rule: Any = None

    @property
    def update(self) -> Optimizer:
        rule: Optimizer = self.rule
        return rule


class LeakyRelu(Ops):
    def relu(self, x: Any) -> Any:
        return self.rounding.result(self.np.where(x > 0, x, 0.01 * x))


class Gelu(Ops):
    def relu(self, x: Any) -> Any:
        return self.gelu(x)


class DroppedBranch(Ops):
    def add(self, a: Any, b: Any) -> Any:
        return b if a.shape == b.shape else super().add(a, b)


class MinPool(Ops):
    def max_pool2d(self, x: Any, kernel: Any, **options: Any) -> Any:
        return -super().max_pool2d(-x, kernel, **options)


class AveragePool(Ops):
    def max_pool2d(self, x: Any, kernel: Any, **options: Any) -> Any:
        return self.avg_pool2d(x, kernel, **options)


class ShiftedPadding(Ops):
    """Pad both zeros on one side, as SAME does under a stride."""

    def conv2d(self, x: Any, weight: Any, *, padding: Any = 0, **options: Any) -> Any:
        edges = ((0, 0), (0, 0), *((0, 2 * edge) for edge in padding))
        return super().conv2d(self.np.pad(x, edges, "constant"), weight, **options)


class MissingBias(Ops):
    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return super().linear(x, weight, None if bias is None else 0.0 * bias)


class SumForMean(Ops):
    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return len(labels) * super().cross_entropy(logits, labels)


class HalfTheBatch(Ops):
    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        half = len(labels) // 2
        return super().cross_entropy(logits[:half], labels[:half])


STRUCTURE = {
    "leaky ReLU": LeakyRelu,
    "GELU for ReLU": Gelu,
    "dropped branch": DroppedBranch,
    "min- for max-pool": MinPool,
    "average for max-pool": AveragePool,
    "shifted padding": ShiftedPadding,
    "missing bias": MissingBias,
    "sum for mean": SumForMean,
    "half the batch": HalfTheBatch,
}


@dataclass(frozen=True)
class Stale(Momentum):
    """Ignore the momentum of the step before."""

    def rule(self, xp: Any, t: Any, p: Any, g: Any, slots: Any) -> Any:
        return p - self.learning_rate * g, {"v": g}


RULES: dict[str, Optimizer] = {"stale momentum": Stale(), "another rate": Momentum(learning_rate=0.00105)}


def lower(dtype: Dtype) -> dict[str, Precision]:
    """Precisions below the dtype."""
    precision = PRECISIONS[dtype]

    def multiplied(grid: Floating) -> Precision:
        return dataclasses.replace(precision, multiply=grid)

    bf16, fp16, fp8, tf32 = BFLOAT16, FLOAT16, FLOAT8, TF32
    if dtype is Dtype.FLOAT64:
        f32 = FLOAT32
        return {
            "float32": multiplied(f32),
            "float32 accumulation": dataclasses.replace(precision, accumulate=f32),
        }
    lowered = {"bfloat16 accumulation": dataclasses.replace(precision, accumulate=bf16)}
    if dtype is Dtype.FLOAT32:
        lowered |= {"TF32": multiplied(tf32)}
    if dtype in (Dtype.FLOAT32, Dtype.TF32, Dtype.FLOAT16, Dtype.AMP_FP16):
        lowered |= {
            "bfloat16": multiplied(bf16),
            "float16 accumulation": dataclasses.replace(precision, accumulate=fp16),
        }
    return lowered | {"float8": multiplied(fp8)}


UNDETECTED = {  # the sums of this small network are short; products of 1024 terms show the difference below
    (Dtype.TF32, "float16 accumulation"),
    (Dtype.BFLOAT16, "bfloat16 accumulation"),
    (Dtype.AMP_BF16, "bfloat16 accumulation"),
    (Dtype.FLOAT16, "float16 accumulation"),
    (Dtype.AMP_FP16, "float16 accumulation"),
}


def nearest(dtype: Dtype, precision: Precision | None = None) -> Rounded:
    """Round to nearest, as a framework computes."""
    right = rounding_to(dtype, np.random.default_rng(7), nearest=True)
    return dataclasses.replace(right, precision=precision or right.precision)


def ratio(
    dtype: Dtype, ops: Ops, rule: Optimizer | None = None, *, precision_of: Dtype | None = None
) -> float:
    """Error of the training step as a multiple of the tolerance, by default that of `dtype`."""
    work = UpdatedBy(rule=rule or Momentum())
    elements = reference_elements(work, work.arrays(Draw(dtype)), ops)
    reference = reference_of(SmallTrain(), precision_of or dtype)
    return verify.worst(elements, reference.expected, reference.tolerance, reference.outliers).ratio


@cache
def structural(dtype: Dtype) -> dict[str, float]:
    """Mutant → its error as a multiple of the tolerance of the dtype."""
    wrong = {name: ratio(dtype, ops(nearest(dtype))) for name, ops in STRUCTURE.items()}
    return wrong | {name: ratio(dtype, Ops(nearest(dtype)), rule) for name, rule in RULES.items()}


@pytest.mark.real
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_training_step_passes_in_every_dtype(dtype: Dtype) -> None:
    assert ratio(dtype, Ops(nearest(dtype))) < 1


@pytest.mark.real
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_training_step_is_wrong_in_every_dtype(dtype: Dtype) -> None:
    for name, of_dtype in structural(dtype).items():  # dtypes below float32 are verified in float32, too
        caught = of_dtype if dtype is Dtype.FLOAT64 else max(of_dtype, structural(Dtype.FLOAT32)[name])
        assert caught > 1.5, f"{name} in {dtype}"


FORWARD = {name: ops for name, ops in STRUCTURE.items() if "cross_entropy" not in vars(ops)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_inference_is_wrong_in_every_dtype(dtype: Dtype) -> None:
    assert error_ratio(SmallInfer(), dtype) < 1
    for name, ops in FORWARD.items():  # dtypes below float32 are verified in float32, too
        caught = error_ratio(SmallInfer(), dtype, ops)
        if dtype.is_narrow:
            caught = max(caught, error_ratio(SmallInfer(), Dtype.FLOAT32, ops))
        assert caught > 1.5, f"{name} in {dtype}"


@pytest.mark.real
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_lower_precision_is_wrong(dtype: Dtype) -> None:
    for name, precision in lower(dtype).items():
        if (dtype, name) not in UNDETECTED:
            assert ratio(dtype, Ops(nearest(dtype, precision))) > 1.5, f"{name} for {dtype}"


def product(dtype: Dtype, multiply: Floating, result: Floating, k: int = 1024) -> float:
    """Error of a product as a multiple of the tolerance, with operands rounded to `multiply` first."""
    work = Gemm(m=64, n=64, k=k)
    arrays = work.arrays(Draw(dtype))
    a, b = (multiply.nearest(arrays[name].astype(float)) for name in ("a", "b"))
    return product_ratio(work, dtype, result.nearest(a @ b))


def product_ratio(work: Gemm, dtype: Dtype, output: Any) -> float:
    reference = reference_of(work, dtype)
    index = verify.sample_indices(work)["output"]
    return verify.worst({"output": output[tuple(index.T)]}, reference.expected, reference.tolerance).ratio


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.compute is dtype])
def test_a_right_product_passes_and_one_in_a_lower_precision_is_wrong(dtype: Dtype) -> None:
    right = PRECISIONS[dtype]
    assert isinstance(right.multiply, Floating)
    assert isinstance(right.result, Floating)
    assert product(dtype, right.multiply, right.result) < 0.7
    for name, precision in lower(dtype).items():
        if precision.multiply is not right.multiply:
            assert isinstance(precision.multiply, Floating)
            assert product(dtype, precision.multiply, right.result) > 1.5, f"{name} for {dtype}"


@pytest.mark.parametrize(
    ("dtype", "grid"), [(Dtype.BFLOAT16, BFLOAT16), (Dtype.FLOAT16, FLOAT16), (Dtype.TF32, FLOAT16)]
)
def test_a_product_accumulated_in_16_bits_is_wrong(dtype: Dtype, grid: Floating) -> None:
    work = Gemm(m=64, n=64, k=1024)
    arrays = work.arrays(Draw(dtype))
    total = np.zeros((64, 64))
    for a, b in zip(arrays["a"].T.astype(float), arrays["b"].astype(float), strict=True):
        total = grid.nearest(total + np.outer(a, b))
    assert product_ratio(work, dtype, total) > 1.5


# Recurrent layers with gates, whose tolerance is drawn like that of a network.

SMOOTH = [Dtype.FLOAT64, Dtype.FLOAT32, Dtype.TF32, Dtype.BFLOAT16, Dtype.FLOAT16]


class StraightTanh(Ops):
    def tanh(self, x: Any) -> Any:
        return x


class HardSigmoid(Ops):
    def sigmoid(self, x: Any) -> Any:
        return self.rounding.result(self.np.clip(0.2 * x + 0.5, 0, 1))


class ReluForTanh(Ops):
    def tanh(self, x: Any) -> Any:
        return self.relu(x)


class NoState(Ops):
    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return super().linear(x, weight, bias) if bias is not None else 0.0 * super().linear(x, weight)


@pytest.mark.real
@pytest.mark.parametrize("dtype", SMOOTH)
@pytest.mark.parametrize("name", [name for name, kind in EVERY.items() if issubclass(kind, Recurrent)])
def test_a_right_recurrent_layer_passes_and_a_wrong_one_is_wrong(name: str, dtype: Dtype) -> None:
    work = tiny(name)
    assert isinstance(work, Recurrent)
    has_gates = work.gates > 1
    assert error_ratio(work, dtype) < (0.5 if has_gates else 0.7)
    wrong = (StraightTanh, HardSigmoid) if has_gates else (ReluForTanh, NoState)
    for mutant in (MissingBias, *wrong):
        assert error_ratio(work, dtype, mutant) > 1.5, mutant
    if has_gates:
        much_lower = FLOAT8 if dtype.compute.itemsize == 2 or dtype is Dtype.TF32 else TF32
        precision = dataclasses.replace(PRECISIONS[dtype], multiply=much_lower)
        assert error_ratio(work, dtype, rounded_to(precision)) > 1.5


def rounded_to(precision: Precision) -> type[Ops]:
    """Operations of this precision, whatever the dtype."""

    class Lowered(Ops):
        def __init__(self, rounding: Rounded) -> None:
            super().__init__(dataclasses.replace(rounding, precision=precision))

    return Lowered


# Programs of a framework: the right one, and one with another activation.


def torch_module(activation: str) -> Any:
    import torch.nn.functional as F
    from torch import nn

    activate = getattr(F, activation)

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.dense1, self.dense2 = nn.Linear(128, 32), nn.Linear(32, 10)

        def forward(self, images: Any) -> Any:
            x = activate(self.conv1(images))
            x = F.max_pool2d(activate(self.conv2(x)) + x, 2).flatten(1)
            return self.dense2(activate(self.dense1(x)))

    return Net()


@dataclass(frozen=True)
class TorchTraining(SmallTrain):
    activation: str = "relu"

    def torch(self) -> Any:
        return torch_module(self.activation)


@dataclass(frozen=True)
class TorchInference(SmallInfer):
    activation: str = "relu"

    def torch(self) -> Any:
        return torch_module(self.activation)


def torch_ratio(work: TorchTraining, dtype: Dtype) -> float:
    backend = backend_class("torch")()
    session, reference = backend.open("cpu", dtype, "eager", 1), reference_of(SmallTrain(), dtype)
    return largest_deviation(work, build(backend, session, work, dtype), session, reference).ratio


class CountingTorch(Torch):
    opened = 0

    def open(self, *arguments: Any, **options: Any) -> Any:
        self.opened += 1
        return super().open(*arguments, **options)


@pytest.mark.real
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.AMP_BF16])
def test_a_right_step_passes_in_torch_and_a_wrong_one_does_not(dtype: Dtype) -> None:
    pytest.importorskip("torch")
    assert torch_ratio(TorchTraining(), dtype) < 1
    assert torch_ratio(TorchTraining(activation="gelu"), Dtype.FLOAT32) > 1.5


@pytest.mark.real
def test_a_training_step_is_verified_in_float32_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv(DRAWN, str(tmp_path))
    backend, work = CountingTorch(), TorchTraining(activation="gelu")
    for dtype in (Dtype.BFLOAT16, Dtype.AMP_BF16):
        job = {"case": dataclasses.asdict(a_case(dtype=dtype)), "threads": 1}
        with pytest.raises(WrongResult, match="in float32 against float64"):
            verify_in_float32(backend, job, work, reference_of(SmallTrain(), Dtype.FLOAT32))
    assert backend.opened == 1


@pytest.mark.real
def test_inference_in_bfloat16_is_verified_in_float32() -> None:
    pytest.importorskip("torch")
    job = {"case": dataclasses.asdict(a_case(dtype=Dtype.BFLOAT16)), "threads": 1}
    reference = reference_of(SmallInfer(), Dtype.FLOAT32)
    assert verify_in_float32(Torch(), job, TorchInference(), reference).error < reference.tolerance["output"]
    with pytest.raises(WrongResult, match="of the output in float32 against float64"):
        verify_in_float32(Torch(), job, TorchInference(activation="gelu"), reference)


@pytest.mark.real
def test_a_fault_that_the_first_output_hides_is_a_wrong_result_in_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    names = "wrong_output,wrong_input,wrong_precision"
    accelbench(
        *("run", "-w", f"{names},gemm", "-p", "m=64", "-p", "n=64", "-p", "k=256"),
        *("-b", "torch", "-d", "cpu", "--quick", "--rounds", "1"),
        cwd=tmp_path,
        code=4,
        **BRIEFLY,
    )
    assert {row["workload"]: row["status"] for row in rows(tmp_path)} == {
        **dict.fromkeys(names.split(","), "wrong_result"),
        "gemm": "ok",
    }
