"""Operations that move data and compute little: wrong ones are told from right ones, in each dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchbench import registry
from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.tolerance import tolerance
from benchbench.workloads._vectors import SCALAR
from benchbench.workloads.base import OUTPUT, Draw, Operation

Index = NDArray[np.int64]
Wrong = Callable[[Any, Any, Index], Any]  # operation, arrays in float64, index → what a wrong program gives


def smallest(work: Any, arrays: Any, index: Index) -> Any:
    return np.sort(arrays["x"], axis=1)[tuple(index.T)]


def one_place_off(work: Any, arrays: Any, index: Index) -> Any:
    return work.reference(arrays, np.stack([index[:, 0], (index[:, 1] + 1) % work.output_shape[1]], axis=1))


def unsorted_rows(work: Any, arrays: Any, index: Index) -> Any:
    return arrays["x"][tuple(index.T)]


def next_row(work: Any, arrays: Any, index: Index) -> Any:
    return work.reference({**arrays, "index": (arrays["index"] + 1) % work.rows}, index)


def overwritten(work: Any, arrays: Any, index: Index) -> Any:
    table = np.zeros(work.output_shape)
    table[arrays["index"]] = arrays["x"]
    return table[tuple(index.T)]


def scaled_by(number: float) -> Wrong:
    return lambda work, arrays, index: number * work.reference(arrays, index)


def without_the_last(work: Any, arrays: Any, index: Index) -> Any:
    kept = np.moveaxis(arrays["x"], work.axis, 0)[:-1].sum(axis=0)
    return kept[index[:, 0]]


MUTANTS: list[tuple[str, dict[str, Any], str, Wrong]] = [
    ("add", {}, "difference", lambda _, arrays, index: (arrays["x"] - arrays["y"])[index[:, 0]]),
    ("copy", {}, "scaled", scaled_by(1.01)),
    ("scale", {}, "another number", scaled_by(1.01)),
    ("triad", {}, "scaled b", lambda _, arrays, index: (SCALAR * arrays["b"] + arrays["c"])[index[:, 0]]),
    ("reduction", {"axis": 0}, "one less", without_the_last),
    ("reduction", {"axis": 1}, "one less", without_the_last),
    ("reduction", {}, "mean", lambda work, arrays, index: work.reference(arrays, index) / work.columns),
    ("sort", {}, "unsorted", unsorted_rows),
    ("sort", {}, "one place off", one_place_off),
    ("top_k", {}, "the smallest", smallest),
    ("top_k", {}, "one place off", one_place_off),
    ("gather", {}, "the next row", next_row),
    ("scatter", {}, "the next row", next_row),
    ("scatter", {}, "overwritten", overwritten),
]


def tiny(name: str, **params: Any) -> Operation:
    work = registry.load_class("benchbench.workloads", name, Operation)().tiny()  # type: ignore[type-abstract]
    return replace(work, **params)  # type: ignore[type-var]


@pytest.mark.parametrize("dtype", [Dtype.FLOAT64, Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16])
@pytest.mark.parametrize(
    ("name", "params", "wrong"),
    [pytest.param(*each[:2], each[3], id=f"{each[0]}: {each[2]}") for each in MUTANTS],
)
def test_a_wrong_program_is_beyond_half_again_its_tolerance(
    name: str, params: dict[str, Any], wrong: Wrong, dtype: Dtype
) -> None:
    work = tiny(name, **params)
    arrays = work.arrays(Draw(dtype))
    index = verify.sample_indices(work)[OUTPUT]
    wide = {name: array.astype(float) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    exact = work.reference(arrays, index)
    assert verify.relative_error(work.reference(wide, index), exact) == 0
    assert verify.relative_error(wrong(work, wide, index), exact) > 1.5 * tolerance(work, dtype)


@pytest.mark.parametrize("name", sorted({name for name, *_ in MUTANTS}))
@pytest.mark.parametrize("dtype", [Dtype.TF32, Dtype.INT8])
def test_what_multiplies_nothing_is_not_offered_in_ways_to_multiply(name: str, dtype: Dtype) -> None:
    assert tiny(name).refuses(dtype) == f"{dtype} is a way to multiply, and it multiplies nothing"
    assert not tiny("gemm").refuses(dtype)
