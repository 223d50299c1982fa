"""Small operations and mixtures of experts: right ones differ from wrong ones in every dtype."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.model.case import Dtype
from benchbench.registry import load_class
from benchbench.worker import verify
from benchbench.workloads._reference.ops import EPSILON, Ops
from benchbench.workloads.base import OUTPUT, Draw, Operation, Workload
from benchbench.workloads.operations.elementwise import COUNTED, SHARE, Dropout
from benchbench.workloads.operations.moe import CHOSEN, EXPERTS, Moe, MoeBackward
from tests.tiny import error_ratio, reference_of

DTYPES = [Dtype.FLOAT64, Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16]


class LeakyRelu(Ops):
    def relu(self, x: Any) -> Any:
        return self.np.where(x > 0, x, 0.02 * x)


class SigmoidGelu(Ops):
    def gelu(self, x: Any) -> Any:
        return self.rounding.result(x * 0.5 * (self.np.tanh(0.851 * x) + 1))


class ColumnSoftmax(Ops):
    def softmax(self, x: Any, axis: int = -1) -> Any:
        return super().softmax(x, axis=0)


class UnbiasedLayerNorm(Ops):
    def layer_norm(self, x: Any, weight: Any, bias: Any, epsilon: float = EPSILON) -> Any:
        width = x.shape[-1]
        return super().layer_norm(x, weight * (1 - 1 / width) ** 0.5, bias, epsilon)


class CentredRmsNorm(Ops):
    def rms_norm(self, x: Any, weight: Any, epsilon: float = EPSILON) -> Any:
        return self.layer_norm(x, weight, 0.0, epsilon)


class AnotherEpsilon(Ops):
    def batch_norm(
        self, x: Any, weight: Any, bias: Any, running: Any = None, epsilon: float = EPSILON
    ) -> Any:
        return super().batch_norm(x, weight, bias, running, 1e-3)


class ZeroPadding(Ops):
    """Padding with zeros where every value is negative."""

    def max_pool2d(self, x: Any, kernel: Any, *, padding: Any = 0, **options: Any) -> Any:
        edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        return super().max_pool2d(self.np.pad(x, edges, "constant"), kernel, **options)


class LargerWindow(Ops):
    """Divide by one element too many."""

    def avg_pool2d(self, x: Any, kernel: Any, **options: Any) -> Any:
        return super().avg_pool2d(x * kernel**2 / (kernel**2 + 1), kernel, **options)


class NextRow(Ops):
    def embedding(self, table: Any, index: Any) -> Any:
        return super().embedding(table, (index + 1) % len(table))


class NextLabel(Ops):
    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return super().cross_entropy(logits, (labels + 1) % logits.shape[-1])


class HalfMse(Ops):
    def mse(self, x: Any, targets: Any) -> Any:
        return 0.5 * super().mse(x, targets)


MUTANTS: dict[str, type[Ops]] = {
    "relu": LeakyRelu,
    "gelu": SigmoidGelu,
    "softmax": ColumnSoftmax,
    "layer_norm": UnbiasedLayerNorm,
    "rms_norm": CentredRmsNorm,
    "batch_norm": AnotherEpsilon,
    "max_pool2d": ZeroPadding,
    "avg_pool2d": LargerWindow,
    "embedding": NextRow,
    "cross_entropy": NextLabel,
    "mse": HalfMse,
}
CASES = [(name + suffix, mutant) for name, mutant in MUTANTS.items() for suffix in ("", "_backward")]


def load(name: str) -> Operation:
    """The workload at its smallest size."""
    work = load_class("benchbench.workloads", name, Workload)().tiny()  # type: ignore[type-abstract]
    assert isinstance(work, Operation)
    return work


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "mutant"), CASES)
def test_a_wrong_small_operation_is_detected(name: str, mutant: type[Ops], dtype: Dtype) -> None:
    assert error_ratio(load(name), dtype) < 0.7
    assert error_ratio(load(name), dtype, mutant) > 1.5


def dropped(rate: float, scale: float, dtype: Dtype, seed: int = 0) -> float:
    """Error of a dropout output, as a multiple of the tolerance, with this rate and scale."""
    work = load("dropout")
    reference = reference_of(work, dtype)
    scaled = np.asarray(reference.expected[OUTPUT]) * (1 - 0.1) * scale
    output = np.where(np.random.default_rng(seed).random(COUNTED) < rate, 0.0, scaled)
    return verify.output_deviation(work, {OUTPUT: output}, reference.expected, reference.tolerance).ratio


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_with_another_rate_or_scale_is_detected(dtype: Dtype) -> None:
    assert max(dropped(0.1, 1 / 0.9, dtype, seed) for seed in range(20)) < 1
    mutants = {
        "not scaled": (0.1, 1.0),
        "scaled down": (0.1, 0.9),
        "scaled for another rate": (0.1, 1 / 0.85),
        "nothing dropped": (0.0, 1 / 0.9),
        "half the rate": (0.05, 1 / 0.9),
        "a larger rate": (0.16, 1 / 0.9),
        "the others dropped": (0.9, 1 / 0.9),
        "all dropped": (1.0, 1 / 0.9),
    }
    for name, (rate, scale) in mutants.items():
        assert dropped(rate, scale, dtype) > 1.5, name


def passed_back(mask: str, scale: float, dtype: Dtype) -> float:
    """Error of a dropout gradient, as a multiple of the tolerance, with this mask and scale."""
    work = load("dropout_backward")
    reference = reference_of(work, dtype)
    mask_of_output, other_mask = (np.random.default_rng(seed).random(COUNTED) >= 0.1 for seed in (0, 1))
    masks: dict[str, Any] = {
        "that of the output": mask_of_output,
        "another": other_mask,
        "none": 1,
        "its opposite": ~mask_of_output,
    }
    output, gradient = (np.asarray(reference.expected[name]) for name in (OUTPUT, "x"))
    outputs = {OUTPUT: output * mask_of_output, "x": gradient * (1 - 0.1) * scale * masks[mask]}
    return verify.output_deviation(work, outputs, reference.expected, reference.tolerance).ratio


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dropout_gradient_with_another_mask_or_scale_is_detected(dtype: Dtype) -> None:
    assert passed_back("that of the output", 1 / 0.9, dtype) < 1
    for mask in ("another", "none", "its opposite"):
        assert passed_back(mask, 1 / 0.9, dtype) > 1.5, mask
    assert passed_back("that of the output", 1.0, dtype) > 1.5


def test_the_bound_of_dropouts_zeros_is_six_standard_deviations_of_their_share() -> None:
    expectation, bound = Dropout(n=100, rate=0.2).chance[SHARE]
    assert expectation == 0.2
    assert bound == pytest.approx(6 * (0.2 * 0.8 / 100) ** 0.5 / 0.2)


def test_zeros_are_counted_of_distinct_elements() -> None:
    index = verify.sample_indices(load("dropout"))[OUTPUT]
    assert len(np.unique(index)) == len(index) == COUNTED


def test_bytes_of_a_small_operation_are_counted_once() -> None:
    vector = 4 * 1021
    assert load("relu").cost(Dtype.FLOAT32).bytes == 2 * vector
    assert load("relu_backward").cost(Dtype.FLOAT32).bytes == 3 * vector
    assert load("mse").cost(Dtype.FLOAT32).bytes == 2 * vector + 4
    assert load("mse_backward").cost(Dtype.FLOAT32).bytes == 3 * vector + 4
    rows, table = 4 * 2 * 13 * 7, 4 * 31 * 7
    assert load("embedding").cost(Dtype.FLOAT32).bytes == 2 * rows
    assert load("embedding_backward").cost(Dtype.FLOAT32).bytes == rows + table


NARROW = [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16]


def sorted_logits(work: Moe, dtype: Dtype) -> Any:
    arrays = work.arrays(Draw(dtype))
    return np.sort(arrays["x"].astype(float) @ arrays["router"].astype(float).T, axis=1)


@given(st.integers(1, 60), st.integers(EXPERTS, 64), st.sampled_from(NARROW))
def test_every_expert_is_chosen_equally_often(tokens: int, width: int, dtype: Dtype) -> None:
    work = Moe(tokens=EXPERTS * tokens, width=width, hidden=3)
    arrays = work.arrays(Draw(dtype))
    logits = arrays["x"].astype(float) @ arrays["router"].astype(float).T
    experts = np.argsort(logits, axis=1)[:, -CHOSEN:]
    assert np.bincount(experts.reshape(-1), minlength=EXPERTS).tolist() == [CHOSEN * tokens] * EXPERTS


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("work", [Moe(), Moe(tokens=8192, width=64, hidden=1), Moe().tiny()], ids=repr)
def test_no_token_is_near_a_tie(work: Moe, dtype: Dtype) -> None:
    logits = sorted_logits(work, dtype)
    lead = logits[:, -CHOSEN] - logits[:, -CHOSEN - 1]
    # Rounding a logit to bfloat16 moves it by 1/512; the rounding of its products averages out.
    assert lead.min() > np.abs(logits).max() / 16


def test_weights_of_the_two_experts_of_a_token_differ() -> None:
    logits = sorted_logits(Moe(), Dtype.FLOAT32)
    assert (logits[:, -1] - logits[:, -2]).std() > 0.3


class AllExperts(Ops):
    """Softmax over the logits of all experts, so that the weights of the chosen ones sum to less than one."""

    def softmax(self, x: Any, axis: int = -1) -> Any:
        return 0.99 * super().softmax(x, axis)


class EqualWeights(Ops):
    def softmax(self, x: Any, axis: int = -1) -> Any:
        return super().softmax(0 * x, axis)


class StraightGate(Ops):
    def sigmoid(self, x: Any) -> Any:
        return 1 + 0 * x


class MoeOfNeighbours(Moe):
    """Each expert's tokens get the weights of the next expert."""

    def forward(self, ops: Any, arrays: Any) -> Any:
        return super().forward(ops, {**arrays, "down": ops.np.roll(arrays["down"], 1, axis=0)})


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", [Moe, MoeBackward])
def test_a_wrong_layer_is_detected(kind: type[Moe], dtype: Dtype) -> None:
    work = kind().tiny()
    assert error_ratio(work, dtype) < 0.5
    for wrong in (EqualWeights, StraightGate):
        assert error_ratio(work, dtype, wrong) > 1.5, wrong
    if dtype is Dtype.FLOAT32:
        assert error_ratio(work, dtype, AllExperts) > 1.5


def test_an_expert_with_the_weights_of_another_is_detected() -> None:
    work = Moe().tiny()
    wrong = MoeOfNeighbours(tokens=work.tokens, width=work.width, hidden=work.hidden)
    assert error_ratio(work, Dtype.BFLOAT16, computed_by=wrong) > 1.5


def test_the_sampled_reference_equals_the_full_one() -> None:
    work = Moe().tiny()
    arrays, index = work.arrays(Draw(Dtype.FLOAT32)), verify.sample_indices(work)
    full = work.references(arrays, index, Ops())["output"]
    assert work.reference(arrays, index["output"]) == pytest.approx(full, rel=1e-12)
