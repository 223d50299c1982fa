"""The operations of the references, their derivatives, and rounding in between."""

import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd import grad
from autograd.test_util import check_grads
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchbench.model.case import Dtype
from benchbench.workloads._reference import primitives, rounding
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
)

OPS = Ops()
LABELS = np.array([2, 0, 1])
RUNNING = np.array([0.5, -1.5])

Operation = tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]


def like_torch(name: str, *shapes: tuple[int, ...], **options: Any) -> Operation:
    """An operation that has torch's name and options."""
    return (
        lambda *arguments: getattr(OPS, name)(*arguments, **options),
        lambda f, *arguments: getattr(f, name)(*arguments, **options),
        list(shapes),
    )


OPERATIONS: dict[str, Operation] = {
    # name: (ours, torch's, given torch.nn.functional, and the shapes of the arguments)
    "conv2d": like_torch("conv2d", (2, 3, 7, 8), (4, 3, 3, 3), stride=2, padding=1),
    "conv2d 1 × 1": like_torch("conv2d", (2, 3, 6, 6), (4, 3, 1, 1), stride=2),
    "conv2d, no square": like_torch("conv2d", (2, 3, 6, 6), (4, 3, 1, 7), stride=(1, 2), padding=(0, 3)),
    "conv2d in groups": like_torch("conv2d", (2, 6, 5, 5), (9, 2, 3, 3), padding=1, groups=3),
    "conv3d": like_torch("conv3d", (2, 3, 4, 5, 4), (2, 3, 2, 3, 3), stride=(1, 2, 2), padding=(0, 1, 2)),
    "conv_transpose2d": like_torch("conv_transpose2d", (2, 3, 4, 3), (3, 2, 4, 4), stride=2, padding=1),
    "conv_transpose2d, no square": like_torch(
        "conv_transpose2d", (2, 3, 4, 3), (3, 2, 3, 2), stride=(1, 3), padding=(2, 0)
    ),
    "linear": like_torch("linear", (2, 3, 4), (5, 4), (5,)),
    "matmul": (OPS.matmul, lambda f, a, b: a @ b, [(2, 3, 4), (2, 4, 5)]),
    "add_bias": (OPS.add_bias, lambda f, x, b: x + b[:, None, None], [(2, 3, 4, 4), (3,)]),
    "add": (OPS.add, lambda f, a, b: a + b, [(2, 3), (2, 3)]),
    "multiply": (OPS.multiply, lambda f, a, b: a * b, [(2, 3), (2, 3)]),
    "relu": like_torch("relu", (3, 4)),
    "gelu": like_torch("gelu", (3, 4)),
    "tanh": (OPS.tanh, lambda f, x: x.tanh(), [(3, 4)]),
    "sigmoid": (OPS.sigmoid, lambda f, x: x.sigmoid(), [(3, 4)]),
    "softmax": (lambda x: OPS.softmax(x, axis=1), lambda f, x: f.softmax(x, 1), [(2, 3, 4)]),
    "batch_norm": (
        OPS.batch_norm,
        lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        [(3, 2, 4, 5), (2,), (2,)],
    ),
    "batch_norm in inference": (
        lambda x, w, b: OPS.batch_norm(x, w, b, (RUNNING, RUNNING**2)),
        lambda f, x, w, b: f.batch_norm(x, *x.new_tensor(np.stack([RUNNING, RUNNING**2])), w, b),
        [(3, 2, 4, 5), (2,), (2,)],
    ),
    "layer_norm": (OPS.layer_norm, lambda f, x, w, b: f.layer_norm(x, (4,), w, b), [(2, 3, 4), (4,), (4,)]),
    "max_pool2d 2 × 2": (lambda x: OPS.max_pool2d(x, 2), lambda f, x: f.max_pool2d(x, 2), [(2, 3, 6, 6)]),
    "max_pool2d 3 × 3": (
        lambda x: OPS.max_pool2d(x, 3, stride=2, padding=1),
        lambda f, x: f.max_pool2d(x, 3, 2, 1),
        [(2, 3, 8, 6)],
    ),
    "avg_pool2d": (
        lambda x: OPS.avg_pool2d(x, 3, stride=2, padding=1),
        lambda f, x: f.avg_pool2d(x, 3, 2, 1),
        [(2, 3, 7, 6)],
    ),
    "mean": (lambda x: OPS.mean(x, (2, 3)), lambda f, x: x.mean((2, 3)), [(2, 3, 4, 5)]),
    "embedding": (
        lambda t: OPS.embedding(t, LABELS),
        lambda f, t: f.embedding(t.new_tensor(LABELS).long(), t),
        [(4, 3)],
    ),
    "cross_entropy": (
        lambda x: OPS.cross_entropy(x, LABELS),
        lambda f, x: f.cross_entropy(x, x.new_tensor(LABELS).long()),
        [(3, 4)],
    ),
}


def random_arrays(shapes: list[tuple[int, ...]]) -> list[Any]:
    source = np.random.default_rng(1)
    return [source.standard_normal(shape) for shape in shapes]


@pytest.mark.real
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_their_gradients_equal_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs, shapes = OPERATIONS[name]
    values = random_arrays(shapes)
    tensors = [torch.tensor(array, requires_grad=True) for array in values]
    expected = theirs(torch.nn.functional, *tensors)
    upstream = np.random.default_rng(2).standard_normal(tuple(expected.shape))
    expected.backward(torch.tensor(upstream))

    np.testing.assert_allclose(ours(*values), expected.detach().numpy(), rtol=1e-9, atol=1e-12)
    for at, tensor in enumerate(tensors):
        gradient = grad(lambda *arguments: (ours(*arguments) * upstream).sum(), at)(*values)
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "conv" in name or "pool" in name])
def test_derivatives_of_primitives_match_difference_quotients(name: str) -> None:
    ours, _, shapes = OPERATIONS[name]
    check_grads(ours, modes=["rev"], order=1)(*random_arrays(shapes))


GRIDS = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float8_e4m3": FLOAT8}
NUMBERS = arrays(np.float64, 20, elements=st.floats(-400, 400))


def rounded(grid: Floating, values: Any, *, nearest: bool = False, seed: int = 0) -> Any:
    precision = Precision(grid, FLOAT32, grid, grid)
    return Rounded(precision=precision, source=np.random.default_rng(seed), nearest=nearest)._round(
        grid, values
    )


@given(NUMBERS)
@pytest.mark.parametrize("name", GRIDS)
def test_rounding_to_nearest_equals_that_of_hardware(name: str, values: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.float16 if name == "float16" else getattr(ml_dtypes, name.replace("m3", "m3fn"))
    np.testing.assert_array_equal(
        rounded(GRIDS[name], values, nearest=True), values.astype(dtype).astype(float)
    )


NORMAL = st.floats(2**-6, 400) | st.floats(-400, -(2**-6))
TIES = st.integers(-(2**12), 2**12).map(lambda n: (n + 0.5) / 2**4)


@pytest.mark.real
@given(arrays(np.float64, 20, elements=NORMAL | TIES))
@pytest.mark.parametrize("grid", [*GRIDS.values(), TF32, FLOAT32])
def test_rounding_by_bits_equals_rounding_by_spacing(grid: Floating, values: Any) -> None:
    spacing = grid.spacing(values)
    np.testing.assert_array_equal(grid.nearest(values), np.rint(values / spacing) * spacing)


@given(NUMBERS, st.integers(0, 100))
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_stochastic_rounding_gives_a_neighbour(grid: Floating, values: Any, seed: int) -> None:
    once = rounded(grid, values, seed=seed)
    assert np.all(np.abs(once - values) < grid.spacing(values))
    np.testing.assert_array_equal(
        rounded(grid, once, seed=seed + 1), once
    )  # representable values do not change


def test_stochastic_rounding_is_right_on_average() -> None:
    values = np.full(100_000, 1 + 2**-9)  # a quarter of the way from 1 to bfloat16's next number
    once = rounded(BFLOAT16, values)
    assert set(once) == {1, 1 + 2**-7}
    assert once.mean() == pytest.approx(values[0], abs=2**-7 * 5 / np.sqrt(len(values)))


def test_rounding_reaches_the_gradient_too() -> None:
    ops = Ops(Rounded(precision=PRECISIONS[Dtype.BFLOAT16], source=np.random.default_rng(0), nearest=True))
    x, w = random_arrays([(3, 4), (5, 4)])
    gradient = grad(lambda x: (ops.linear(x, w) * np.pi).sum())(x)
    np.testing.assert_array_equal(gradient, rounded(BFLOAT16, gradient, nearest=True))


def test_mixed_precision_rounds_operands_and_not_the_parameter() -> None:
    ops = Ops(Rounded(precision=PRECISIONS[Dtype.AMP_BF16], source=np.random.default_rng(0), nearest=True))
    (weight,) = random_arrays([(4, 4)])
    np.testing.assert_array_equal(ops.rounding.parameter(weight), weight)
    product = ops.matmul(np.eye(4), weight)
    np.testing.assert_array_equal(product, rounded(BFLOAT16, weight, nearest=True))


@pytest.mark.real
def test_accumulation_errs_as_a_sum_in_turn_does() -> None:
    """Sequential float32 sums of 4,096 terms, compared with the error that is drawn."""
    a, b = np.random.default_rng(3).standard_normal((2, 2000, 4096))
    terms = (a * b).astype(np.float32)
    summed = np.cumsum(terms, axis=1, dtype=np.float32)[:, -1].astype(float)
    exact = terms.astype(float).sum(axis=1)
    rounding = Rounded(precision=PRECISIONS[Dtype.FLOAT32], source=np.random.default_rng(4))
    assert np.std(rounding.product(exact, 4096) - exact) == pytest.approx(np.std(summed - exact), rel=0.2)


@pytest.mark.parametrize(("grid", "near"), [(BFLOAT16, rounding.NEAR), (FLOAT32, rounding.NEAR_IN_SUMS)])
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.floats(1e-8, 1))
def test_a_flipped_relu_passes_the_inputs_nearest_to_zero_on_the_other_side(
    grid: Floating, near: float, seed: int, count: int, least: float
) -> None:
    values = np.random.default_rng(seed).standard_normal(count)
    values[0] = least
    unit = grid.unit_roundoff
    flipping = rounding.Flipping(storage=FLOAT32, unit_roundoff=unit)
    turned = flipping.positive(values) != (values > 0)
    limit = near * unit * np.sqrt(np.mean(values**2))
    assert turned.sum() == min((np.abs(values) <= limit).sum(), 1 + np.ceil(unit * count))
    assert np.abs(values)[turned].max(initial=0) <= np.abs(values)[~turned].min(initial=np.inf)


@pytest.mark.parametrize(("least", "noted"), [(1e-6, 1), (1e-5, 0)])
def test_relu_inputs_near_zero_are_noted_without_effect(least: float, noted: int) -> None:
    flipping = rounding.Flipping(storage=FLOAT32, unit_roundoff=FLOAT32.unit_roundoff)
    watching = rounding.Watching(storage=FLOAT32, flipping=flipping)
    x = np.array([1.0, -1.0, least, 2.0])
    assert list(grad(lambda x: Ops(watching).relu(x).sum())(x)) == [1, 0, 1, 1]
    assert watching.noted == [noted]


def test_a_flipped_relu_has_the_gradient_of_the_other_side() -> None:
    flipping = rounding.Flipping(storage=FLOAT32, unit_roundoff=BFLOAT16.unit_roundoff)
    x = np.array([1.0, -1.0, 1e-3, 2.0])
    assert list(grad(lambda x: Ops(flipping).relu(x).sum())(x)) == [1, 0, 0, 1]
    assert list(grad(lambda x: Ops().relu(x).sum())(x)) == [1, 0, 1, 1]
    assert list(grad(lambda x: Ops(flipping).leaky_relu(x, 0.2).sum())(x)) == [1, 0.2, 0.2, 1]
    assert list(grad(lambda x: Ops().leaky_relu(x, 0.2).sum())(x)) == [1, 0.2, 1, 1]


def test_a_max_gradient_goes_to_the_first_of_equals() -> None:
    x = np.zeros((1, 1, 2, 2))
    gradient = grad(lambda x: primitives.max_pool2d(x, (2, 2), (2, 2), (0, 0)).sum())(x)
    np.testing.assert_array_equal(gradient, [[[[1, 0], [0, 0]]]])


FAULTS = """
import resource
import numpy as np
from benchbench.worker.reference import keep_freed_memory
keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    np.ones((4, 2**20))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_pages_of_temporary_arrays_are_cleared_once() -> None:
    """Allocate 8192 pages each, or larger pages."""
    process = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    assert int(process.stdout) < 2 * 8192
