"""Published shapes: each row is a case of its suite, and its FLOPs equal the counted ones."""

import itertools
from typing import Any

import numpy as np
import pytest

from benchbench.launch.catalogue import workload_at
from benchbench.plan.suite import load_suite, points
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads.operations.gemm import Gemm
from tests import published_shapes
from tests.published_shapes import CASES, FEATURES, SUITES, Published, flops, published, read

PUBLISHED = {suite.name: suite for suite in published()}


@pytest.mark.parametrize("suite", PUBLISHED.values(), ids=PUBLISHED)
def test_a_suite_matches_the_published_list(suite: Published) -> None:
    assert (SUITES / f"{suite.name}.toml").read_text() == published_shapes.toml(suite)


@pytest.mark.parametrize("suite", PUBLISHED.values(), ids=PUBLISHED)
def test_the_cases_are_exactly_the_rows(suite: Published) -> None:
    for entry in load_suite(suite.name).cases:
        cases = suite.entries()[entry.workload]
        assert planned(entry.accelerator) == in_order(cases)
        assert planned(entry.cpu) == in_order(suite.on_cpu(entry.workload, cases)) != []


def planned(tables: list[Any]) -> list[str]:
    return in_order([point for axes in tables for point in points(axes)])


def in_order(cases: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(case.items())) for case in cases)


def test_no_row_is_lost() -> None:
    for kind, count in {"gemm": 248, "conv": 217, "rnn": 125}.items():
        suites = [suite for suite in PUBLISHED.values() if suite.kind == kind]
        assert sum(len(suite.rows) for suite in suites) == len(read(f"deepbench_{kind}.csv")) == count
    assert len(PUBLISHED["gemm-models"].rows) == 220


def test_product_flops_match_the_published_ones() -> None:
    for row in read("deepbench_gemm.csv"):
        assert flops(*CASES["gemm"](row)) == row["flops"]


def test_convolution_flops_and_sides_match_the_published_ones() -> None:
    for row in read("deepbench_conv.csv"):
        workload, params = CASES["conv"](row)
        convolution: Any = workload_at(workload, params)
        assert convolution.output_shape == (row["n"], row["k"], row["out_h"], row["out_w"])
        assert {flops(workload + phase, params) for phase in published_shapes.PHASES["conv"]} == {
            row["fwd_flops"]
        }


def test_recurrent_product_flops_match_the_published_ones() -> None:
    for row in read("deepbench_rnn.csv"):
        hidden = row["hidden"]
        flops_counted = flops(*CASES["rnn"](row))
        assert flops_counted * hidden == row["fwd_flops_recurrent_only"] * (hidden + FEATURES)


@pytest.mark.parametrize(("a_t", "b_t"), [*itertools.product((False, True), repeat=2)])
def test_a_column_major_product_equals_the_row_major_one_in_memory(a_t: bool, b_t: bool) -> None:
    """The product that cuBLAS computes on column-major matrices equals ours on the same memory."""
    row = {"m": 3, "n": 4, "k": 5, "a_t": str(a_t).lower(), "b_t": str(b_t).lower()}
    source = np.random.default_rng(0)
    a = np.asfortranarray(source.standard_normal((5, 3) if a_t else (3, 5)))
    b = np.asfortranarray(source.standard_normal((4, 5) if b_t else (5, 4)))
    c = (a.T if a_t else a) @ (b.T if b_t else b)
    _, params = CASES["gemm"](row)
    ours = Gemm(**params).forward(Ops(), {"a": by_rows(b), "b": by_rows(a)})
    np.testing.assert_allclose(ours, by_rows(np.asfortranarray(c)))


def by_rows(matrix: Any) -> Any:
    """The memory of a column-major matrix, read by rows."""
    return matrix.ravel(order="K").reshape(matrix.shape[::-1])
