"""Operations: detection of mistakes, their cost, and the meaning of their parameters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.reference import reference
from benchbench.worker.verify import relative_error, sample_indices
from benchbench.workloads._reference.ops import EPSILON, Ops
from benchbench.workloads.backward import UPSTREAM
from benchbench.workloads.base import OUTPUT, Draw, Operation
from benchbench.workloads.operations.attention import Attention, AttentionBackward, AttentionDecode
from benchbench.workloads.operations.convolution import Conv2d, Conv2dBackwardData
from benchbench.workloads.operations.elementwise import COUNTED, SHARE, Dropout
from benchbench.workloads.operations.gemm import Gemm
from benchbench.workloads.operations.moe import CHOSEN, EXPERTS, Moe, MoeBackward
from tests.test_networks import FRAMEWORKS, started
from tests.tiny import error_ratio, reference_of, tiny

Arrays = dict[str, Any]


DTYPES = [Dtype.FLOAT64, Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16]


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


def flipped(filters: Any) -> Any:
    return np.flip(filters, axis=tuple(range(2, filters.ndim)))


# Mistakes of a program, each as a change of the arrays given to a correct program
CHANGES: dict[str, tuple[Operation, Callable[[Arrays], Arrays]]] = {
    "gemm: A not transposed": (tiny("gemm", m=65, transpose_a=True), changed("a", np.transpose)),
    "gemm: B not transposed": (tiny("gemm", n=65, transpose_b=True), changed("b", np.transpose)),
    "gemm: the last product left out": (tiny("gemm"), changed("a", lambda a: a * (np.arange(65) < 64))),
    "batched_gemm: B of the next product": (tiny("batched_gemm"), changed("b", lambda b: np.roll(b, 1, 0))),
    "linear: no bias": (tiny("linear"), changed("bias", np.zeros_like)),
    "linear_backward: half the batch": (
        tiny("linear_backward"),
        changed(UPSTREAM, lambda dy: dy * (np.arange(13) < 6)[:, None]),
    ),
    "conv2d: shifted padding": (tiny("conv2d"), changed("images", lambda x: np.roll(x, 1, 3))),
    "conv2d: sides of the kernel exchanged": (
        tiny("conv2d", kernel_h=3, kernel_w=3),
        changed("filters", lambda w: w.swapaxes(2, 3)),
    ),
    "conv2d_backward: filters flipped": (tiny("conv2d_backward"), changed("filters", flipped)),
    "conv2d_backward_data: filters flipped": (tiny("conv2d_backward_data"), changed("filters", flipped)),
    "conv2d_backward_weights: half the batch": (
        tiny("conv2d_backward_weights"),
        changed(UPSTREAM, lambda dy: dy * (np.arange(2) < 1)[:, None, None, None]),
    ),
    "depthwise_conv2d: the next channel's filter": (
        tiny("depthwise_conv2d"),
        changed("filters", lambda w: np.roll(w, 1, 0)),
    ),
    "depthwise_conv2d_backward: the next channel's filter": (
        tiny("depthwise_conv2d_backward"),
        changed("filters", lambda w: np.roll(w, 1, 0)),
    ),
    "conv3d: frames in reverse": (tiny("conv3d"), changed("filters", lambda w: np.flip(w, 2))),
    "conv3d_backward: frames in reverse": (
        tiny("conv3d_backward"),
        changed("filters", lambda w: np.flip(w, 2)),
    ),
    "conv_transpose2d: filters flipped": (tiny("conv_transpose2d"), changed("filters", flipped)),
    "conv_transpose2d_backward: filters flipped": (
        tiny("conv_transpose2d_backward"),
        changed("filters", flipped),
    ),
}


@pytest.mark.real
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", CHANGES)
def test_a_mistake_exceeds_the_tolerance_and_rounding_does_not(name: str, dtype: Dtype) -> None:
    work, change = CHANGES[name]
    assert error_ratio(work, dtype) < 0.7
    assert error_ratio(work, dtype, arrays=change(work.arrays(Draw(dtype)))) > 1.5


@pytest.mark.parametrize(
    "work",
    [
        tiny("conv2d", stride=2, kernel_h=1, kernel_w=4, pad_h=0, pad_w=3),
        tiny("conv2d_backward_data", stride=3, kernel_w=2, pad_w=0),
        tiny("conv2d_backward_weights", stride=2, kernel_h=5, pad_h=2),
        tiny("conv2d_backward", stride=2, kernel_h=1, kernel_w=4, pad_h=0, pad_w=3),
        tiny("depthwise_conv2d", stride=2, padding=0),
        tiny("depthwise_conv2d_backward", stride=2, padding=0),
        tiny("conv3d", stride=2, padding=0),
        tiny("conv3d_backward", stride=2, padding=0),
        tiny("conv_transpose2d", stride=3, padding=0),
        tiny("conv_transpose2d_backward", stride=3, padding=0),
        tiny("conv_transpose2d", stride=1, padding=3),
    ],
    ids=str,
)
def test_sampled_elements_agree_with_the_whole_result(work: Operation) -> None:
    assert error_ratio(work, Dtype.FLOAT64) < 0.7


def test_each_side_of_a_convolution_can_have_its_own_kernel_and_padding() -> None:
    assert "kernel_h" not in Conv2d().params
    assert Conv2d(kernel=5, kernel_w=20, pad_w=3).filter_shape == (64, 64, 5, 20)
    assert Conv2d(kernel=5, kernel_w=20, pad_w=3).edges == (1, 3)
    assert Conv2d(pad_h=0).edges == (0, 1)
    assert Conv2d(height=24, kernel=5, kernel_w=20, padding=0, stride=2).output_shape == (8, 64, 10, 5)
    assert list(Gemm(transpose_b=True).params) == ["m", "n", "k", "transpose_b"]
    with pytest.raises(UsageError, match="pad_w=-2 must be at least -1"):
        Conv2d(pad_w=-2)


def test_each_gradient_of_a_convolution_costs_as_much_as_the_convolution() -> None:
    cost = Conv2d(stride=2).cost(Dtype.FLOAT32)
    assert Conv2dBackwardData(stride=2).cost(Dtype.FLOAT32) == cost


GROUPED = Attention(kv_heads=2, causal=True).tiny()
GROUPED_BACKWARD = AttentionBackward(kv_heads=2, causal=True).tiny()
DECODE = AttentionDecode().tiny()


class Unscaled(Ops):
    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        return super().attention(q * q.shape[-1] ** 0.5, k, v, **options)


class Unmasked(Ops):
    def attention(self, q: Any, k: Any, v: Any, **_options: Any) -> Any:
        return super().attention(q, k, v)


class HeadsInTurn(Ops):
    """Keys and values assigned to heads as by `np.tile` instead of `np.repeat`."""

    def attention(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        turns = self.np.arange(q.shape[2]) % k.shape[2]
        return super().attention(q, k[:, :, turns], v[:, :, turns], **options)


class SoftmaxAcrossQueries(Ops):
    def softmax(self, x: Any, axis: int = -1) -> Any:
        return super().softmax(x, axis=-2)


WRONG_ATTENTION = [
    (GROUPED, [Unmasked, Unscaled, HeadsInTurn, SoftmaxAcrossQueries]),
    (GROUPED_BACKWARD, [Unmasked, Unscaled, HeadsInTurn]),
    (DECODE, [Unscaled, HeadsInTurn, SoftmaxAcrossQueries]),
]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16])
@pytest.mark.parametrize(("work", "mutants"), WRONG_ATTENTION)
def test_a_mistake_in_attention_exceeds_the_tolerance(
    work: Operation, mutants: list[type[Ops]], dtype: Dtype
) -> None:
    for wrong in mutants:
        assert error_ratio(work, dtype, wrong) > 1.5, wrong


@pytest.mark.parametrize("work", [Attention().tiny(), GROUPED, DECODE])
def test_batched_attention_equals_attention_row_by_row(work: Operation) -> None:
    arrays, indices = work.arrays(Draw(Dtype.FLOAT32)), sample_indices(work)
    separate, batched = (work.references(arrays, indices, ops)["output"] for ops in (None, Ops()))
    np.testing.assert_allclose(separate, batched, rtol=1e-12)


@pytest.mark.real
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("work", [GROUPED, replace(GROUPED, causal=False), GROUPED_BACKWARD])
def test_every_framework_groups_heads_alike(framework: str, work: Operation) -> None:
    session, runner = started(framework, work)
    outputs = runner.step()
    exact = reference(work, Dtype.FLOAT32)
    indices = sample_indices(work)
    outputs = outputs if len(indices) > 1 else (outputs,)
    for (name, index), output in zip(indices.items(), outputs, strict=True):
        values = session.take(output, runner.program.index_of(name, index))
        assert relative_error(values, exact.expected[name]) < exact.tolerance[name]


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_sharing_keys_saves_bytes_and_no_flops(length: int, kv: int, groups: int, causal: bool) -> None:
    full = Attention(length=length, heads=kv * groups, causal=causal)
    shared = replace(full, kv_heads=kv)
    full_cost, shared_cost = full.cost(Dtype.FLOAT32), shared.cost(Dtype.FLOAT32)
    assert full_cost.flops == shared_cost.flops
    assert full_cost.bytes * (1 + 1 / groups) == pytest.approx(2 * shared_cost.bytes)


def test_decoding_is_the_last_row_of_attention() -> None:
    full = Attention(batch=3, heads=4, kv_heads=2, length=9, dim=8, causal=True)
    last = AttentionDecode(batch=3, heads=4, kv_heads=2, length=9, dim=8)
    arrays: Any = full.arrays(Draw(Dtype.FLOAT32))
    rows = full.forward(Ops(), arrays)[:, :, -1:]
    np.testing.assert_allclose(last.forward(Ops(), {**arrays, "q": arrays["q"][:, :, -1:]}), rows)
    assert full.cost(Dtype.FLOAT32).flops == sum(
        replace(last, length=length).cost(Dtype.FLOAT32).flops for length in range(1, 10)
    )


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "mutant"), CASES)
def test_a_wrong_small_operation_is_detected(name: str, mutant: type[Ops], dtype: Dtype) -> None:
    assert error_ratio(tiny(name), dtype) < 0.7
    assert error_ratio(tiny(name), dtype, mutant) > 1.5


def dropped(rate: float, scale: float, dtype: Dtype, seed: int = 0) -> float:
    """Error of a dropout output, as a multiple of the tolerance, with this rate and scale."""
    work = tiny("dropout")
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
    work = tiny("dropout_backward")
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
    index = sample_indices(tiny("dropout"))[OUTPUT]
    assert len(np.unique(index)) == len(index) == COUNTED


def test_bytes_of_a_small_operation_are_counted_once() -> None:
    vector = 4 * 1021
    assert tiny("relu").cost(Dtype.FLOAT32).bytes == 2 * vector
    assert tiny("relu_backward").cost(Dtype.FLOAT32).bytes == 3 * vector
    assert tiny("mse").cost(Dtype.FLOAT32).bytes == 2 * vector + 4
    assert tiny("mse_backward").cost(Dtype.FLOAT32).bytes == 3 * vector + 4
    rows, table = 4 * 2 * 13 * 7, 4 * 31 * 7
    assert tiny("embedding").cost(Dtype.FLOAT32).bytes == 2 * rows
    assert tiny("embedding_backward").cost(Dtype.FLOAT32).bytes == rows + table


def sorted_logits(work: Moe, dtype: Dtype) -> Any:
    arrays = work.arrays(Draw(dtype))
    return np.sort(arrays["x"].astype(float) @ arrays["router"].astype(float).T, axis=1)


@given(st.integers(1, 60), st.integers(EXPERTS, 64), st.sampled_from(DTYPES[1:]))
def test_every_expert_is_chosen_equally_often(tokens: int, width: int, dtype: Dtype) -> None:
    work = Moe(tokens=EXPERTS * tokens, width=width, hidden=3)
    arrays = work.arrays(Draw(dtype))
    logits = arrays["x"].astype(float) @ arrays["router"].astype(float).T
    experts = np.argsort(logits, axis=1)[:, -CHOSEN:]
    assert np.bincount(experts.reshape(-1), minlength=EXPERTS).tolist() == [CHOSEN * tokens] * EXPERTS


@pytest.mark.parametrize("dtype", DTYPES[1:])
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


@pytest.mark.parametrize("dtype", DTYPES[1:])
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
    arrays, index = work.arrays(Draw(Dtype.FLOAT32)), sample_indices(work)
    full = work.references(arrays, index, Ops())["output"]
    assert work.reference(arrays, index["output"]) == pytest.approx(full, rel=1e-12)
