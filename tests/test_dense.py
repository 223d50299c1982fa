"""Products and convolutions: detection of mistakes, and the meaning of parameters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchbench import registry
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.workloads.backward import UPSTREAM
from benchbench.workloads.base import Draw, Operation
from benchbench.workloads.operations.convolution import Conv2d, Conv2dBackwardData
from benchbench.workloads.operations.gemm import Gemm
from tests.tiny import error_ratio

Arrays = dict[str, Any]


def tiny(name: str, **sizes: Any) -> Operation:
    kind: Any = registry.load_class("benchbench.workloads", name, Operation)
    work: Operation = replace(kind().tiny(), **sizes)
    return work


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


def flipped(filters: Any) -> Any:
    return np.flip(filters, axis=tuple(range(2, filters.ndim)))


# Mistakes of a program, each as a change of the arrays given to a correct program
MUTANTS: dict[str, tuple[Operation, Callable[[Arrays], Arrays]]] = {
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
@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16])
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_exceeds_the_tolerance_and_rounding_does_not(name: str, dtype: Dtype) -> None:
    work, change = MUTANTS[name]
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
