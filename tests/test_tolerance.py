"""Tolerance for rounding: drawn at a small size, and increased for longer sums."""

from dataclasses import replace

import numpy as np
import pytest

from benchbench.model.case import Dtype
from benchbench.worker.reference import drawn_tolerance, reference
from benchbench.worker.verify import accumulation
from benchbench.workloads.operations.recurrent import Lstm, LstmBackward


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
