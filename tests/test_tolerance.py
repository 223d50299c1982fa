"""Relative errors of elements, and the tolerance for rounding."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from benchbench.backends.fake import FakeSession
from benchbench.model.case import Dtype
from benchbench.model.placement import Placement, Strategy
from benchbench.worker.reference import drawn_tolerance, reference
from benchbench.worker.verify import (
    SAMPLES,
    Deviation,
    Reference,
    accumulation,
    dropout_change,
    median_change,
    of_rank,
    read_elements,
    relative_error,
    sample_elements,
    sample_indices,
    sampled_elements,
    tolerance,
    trained_elements,
    worst,
)
from benchbench.workloads.base import Program, sampled
from benchbench.workloads.operations.gemm import Gemm, Linear
from benchbench.workloads.operations.recurrent import Lstm, LstmBackward

SESSION = FakeSession("cpu", Dtype.FLOAT32)


@pytest.mark.real
def test_rounding_draws_are_widened_by_the_longer_sums_of_the_measured_size() -> None:
    small = LstmBackward(length=32, batch=1, inputs=3, hidden=4)
    large = replace(small, length=100, batch=64)
    small_tolerance, large_tolerance = (
        drawn_tolerance(workload, Dtype.FLOAT32, None) for workload in (small, large)
    )
    longer = accumulation(6400, Dtype.FLOAT32) - accumulation(32, Dtype.FLOAT32)
    assert {name: large_tolerance[name] - small_tolerance[name] for name in small_tolerance} == pytest.approx(
        dict.fromkeys(small_tolerance, longer)
    )


class WorseRounding(Lstm):
    draws_tolerated = 1e4


def test_a_tolerance_that_accepts_zeros_is_unverified() -> None:
    size = {"length": 4, "batch": 1, "inputs": 3, "hidden": 4}
    assert not reference(Lstm(**size), Dtype.BFLOAT16).unverified
    assert reference(WorseRounding(**size), Dtype.BFLOAT16).unverified


def test_the_added_tolerance_covers_long_float32_sums() -> None:
    terms = np.random.default_rng(0).standard_normal((6400, 256)).astype(np.float32)
    exact, in_turn = terms.sum(0, dtype=np.float64), np.cumsum(terms, 0, dtype=np.float32)[-1]
    error = np.linalg.norm(in_turn - exact) / np.linalg.norm(exact)
    assert 1e-6 < error < accumulation(6400, Dtype.FLOAT32)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [  # λ√n·uₐ + √r·u for n = 64 and r = 2, with λ = 6
        (Dtype.FLOAT32, 48 * 2**-24 + math.sqrt(2) * 2**-24),
        (Dtype.FLOAT64, 2 * (48 * 2**-53 + math.sqrt(2) * 2**-53)),
        (Dtype.TF32, 48 * 2**-24 + 2 * math.sqrt(2) * math.sqrt(2) * 2**-11),
        (Dtype.BFLOAT16, 48 * 2**-24 + math.sqrt(2) * 2**-8),
        (Dtype.FLOAT16, 48 * 2**-24 + math.sqrt(2) * 2**-11),
        (Dtype.AMP_BF16, 48 * 2**-24 + math.sqrt(2) * 2**-8),
        (Dtype.FLOAT8, 48 * 2**-14 + math.sqrt(2) * 2**-8),
        (Dtype.INT8, 2 * math.sqrt(3 * 2) * 5.5 / 127 / math.sqrt(12)),
    ],
)
def test_a_tolerance_follows_from_products_and_roundings(dtype: Dtype, expected: float) -> None:
    work = Linear(batch=2, inputs=63, outputs=3)  # 63 products and the bias; two roundings
    assert tolerance(work, dtype) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("size", "places", "outliers", "expected"),
    [
        (4, {0: 2.0}, 0, 1.0),
        (4, {0: 2.0, 1: -2.0}, 0, math.sqrt(2)),
        (256, {0: 5.0, 3: -7.0}, 2, 0.0),
        (256, {0: 5.0, 3: -7.0, 9: 1.6}, 2, 0.1),
        (512, {0: 5.0, 3: 7.0, 9: 1.0, 100: 1.0}, 2, 0.0),  # the same share of a larger tensor
        (100, {50: 4.0}, 2, 0.0),  # rounded up
        (100, {50: 4.0, 0: 1.0}, 2, 0.1),
        (64, {5: 4.0}, 2, 0.0),
        (63, {5: 4.0}, 2, 4 / math.sqrt(63)),  # in a small tensor none is ignored
        (64, {5: math.nan}, 2, math.inf),
        (4, {1: math.inf}, 0, math.inf),
    ],
)
def test_a_relative_error_ignores_the_largest_outliers(
    size: int, places: Mapping[int, float], outliers: int, expected: float
) -> None:
    measured = np.ones(size)
    for place, deviation in places.items():
        measured[place] += deviation
    assert relative_error(measured, np.ones(size), outliers) == pytest.approx(expected)


def test_an_error_relative_to_zero_is_infinite() -> None:
    assert relative_error(np.zeros(2), [0.0, 0.0]) == 0.0
    assert relative_error(np.array([0.0, 1e-9]), [0.0, 0.0]) == math.inf


def test_the_worst_tensor_has_the_largest_ratio_to_its_tolerance() -> None:
    measured = {"a": np.array([1.1]), "b": np.array([1.02]), "c": np.array([1.0])}
    expected = {"a": [1.0], "b": [1.0], "c": [1.0]}
    deviation = worst(measured, expected, {"a": 0.2, "b": 0.01, "c": 0.0})
    assert (deviation.tensor, deviation.tolerance) == ("b", 0.01)
    assert (deviation.error, deviation.ratio) == pytest.approx((0.02, 2.0))
    assert worst(measured, {"a": [1.0], "c": [1.1]}, {"a": 0.2, "c": 0.0}).ratio == math.inf
    assert Deviation("c", 0.0, 0.0).ratio == 0.0


def test_the_median_change_is_that_of_tensors_that_are_not_zero() -> None:
    tensors = {"a": np.array([3.0, 4.0]), "b": np.array([1.0]), "c": np.array([2.0]), "zero": np.zeros(3)}
    others = {"a": np.array([3.0, 5.0]), "b": np.array([2.0]), "c": np.array([2.2]), "zero": np.ones(3)}
    assert median_change(tensors, others) == pytest.approx(0.2)
    assert median_change({"zero": np.zeros(3)}, {"zero": np.ones(3)}) is None


def test_dropout_changes_the_gradients_by_other_random_numbers() -> None:
    seeds: list[int] = []
    starts: list[object] = []

    def restart(arrays: object) -> tuple[Any, ...]:
        starts.append(arrays)
        return ()

    program = Program(
        step=lambda: None,
        seed=seeds.append,
        restart=restart,
        gradients=lambda: {"weight": np.array([4.0, 3.0 * (1 + seeds[-1])])},
    )
    arrays = {"weight": np.ones(2)}
    assert dropout_change(program, arrays, lambda: None, SESSION) == pytest.approx(3 / 5)
    assert (seeds, starts) == ([0, 1], [arrays, arrays])
    still = replace(program, gradients=lambda: {"weight": np.zeros(2)})
    assert dropout_change(still, arrays, lambda: None, SESSION) == 0.0


def test_a_rank_compares_the_rows_that_are_its_own() -> None:
    whole = Gemm(2, 300, 8)
    placement = Placement(devices=2, strategy=Strategy.COLLECTIVE)
    (index,) = sample_indices(whole).values()
    values = np.arange(float(len(index)))
    reference_of_all = Reference(
        expected={"output": values.tolist()}, tolerance={"output": 1.0}, others={"output": (-values).tolist()}
    )
    for rank in (0, 1):
        work = whole.divided(placement, rank)
        is_own = index[:, 0] == rank
        assert (sample_indices(work)["output"] == index[is_own, 1:]).all()
        own = of_rank(work, reference_of_all)
        assert own.expected == {"output": values[is_own].tolist()}
        assert own.others == {"output": (-values[is_own]).tolist()}
    assert of_rank(whole, reference_of_all) is reference_of_all


def test_training_is_compared_by_losses_gradients_and_updates() -> None:
    state: list[Any] = [np.array([1.0, 2.0])]

    def step() -> float:
        state[0] = state[0] * 0.5
        return float(state[0].sum())

    program = Program(
        step=step,
        parameters=lambda weight: {"weight": weight},
        gradients=lambda weight: {"weight": 10 * weight},
        last_gradient="momentum",
    )
    elements = trained_elements(program, step, lambda: tuple(state), SESSION)
    expected = {
        "losses": [1.5, 0.75, 0.375],
        "gradient of weight": [5.0, 10.0],
        "momentum of weight": [1.25, 2.5],
        "update of weight": [-0.875, -1.75],
    }
    assert {name: list(values) for name, values in elements.items()} == expected
    without = trained_elements(replace(program, gradients=None), step, lambda: tuple(state), SESSION)
    assert without.keys() == {"losses", "update of weight"}


class Tensor:
    """An array of another framework."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape


class Reader:
    """Reads tensors, and counts the elements that it read."""

    read = 0

    def take(self, output: Any, index: Any) -> Any:
        self.read += len(index)
        return output.array[tuple(index.T)]

    def fetch(self, output: Any) -> Any:
        values = getattr(output, "array", output)
        self.read += values.size
        return values


@pytest.mark.parametrize("shape", [(3, 5), (16, 16), (257,), (40, 50, 2)])
def test_elements_of_a_tensor_are_read_at_the_places_of_its_name(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape), dtype=float).reshape(shape)
    expected = sampled_elements("weight", array)
    assert len(expected) == min(array.size, SAMPLES)
    for tensor in (array, Tensor(array)):
        reader = Reader()
        assert list(read_elements("weight", tensor, cast(Any, reader))) == list(expected)
        assert reader.read == len(expected)
    if array.size > SAMPLES:
        assert list(sampled_elements("bias", array)) != list(expected)
    else:
        assert list(expected) == list(array.ravel())


def test_each_sample_of_a_batch_is_read_at_the_same_places() -> None:
    class Rows(Gemm):
        def sample(self, source: np.random.Generator, count: int) -> Any:
            index = super().sample(source, count)
            index[:, 0] = 2
            return index

    work = Rows(4, 300, 8)
    (index,) = sample_indices(work).values()
    assert index.shape == (SAMPLES, 2)
    assert (index == sample_indices(work)["output"]).all()
    assert (index != sample_indices(work, seed=1)["output"]).any()
    output = np.arange(1200.0).reshape(4, 300)
    elements = sample_elements(work, Program(step=lambda: None), output, SESSION, 4)
    assert [list(values) for values in elements] == [list(row[index[:, 1]]) for row in output]


def test_every_sample_includes_corners_but_mostly_other_elements() -> None:
    source = np.random.default_rng(0)
    index = sampled(source, (7, 5, 3), 256)
    assert {(a, b, c) for a in (0, 6) for b in (0, 4) for c in (0, 2)} <= set(map(tuple, index.tolist()))
    assert len(index) == 256
    assert sampled(source, (9,) * 8, 256).shape == (256, 8)
