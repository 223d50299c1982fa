"""A change that nearly all cases share is reported as the machine's."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.documents import comparison
from benchbench.judging.comparison import MIN_CASES, Comparison, common_factor, compare_runs
from benchbench.model.run import Partner, Run
from tests.factories import a_case, a_run, some_rounds
from tests.rendering import rendered

STEADY = (1.000e-3, 1.001e-3, 0.999e-3)
A_SEVENTH = [1.10, 1.12, 1.14, 1.15, 1.16, 1.17]
HINT = "probably the machine, not the code; measure interleaved"


def a_run_of(*factors: float, **info: Any) -> Run:
    records = [
        record
        for number, factor in enumerate(factors)
        for record in some_rounds(*(factor * s for s in STEADY), case=a_case(params={"m": number}))
    ]
    return a_run(records, **info)


def compared(*factors: float) -> Comparison:
    return compare_runs(a_run_of(*(1.0 for _ in factors)), a_run_of(*factors))


def text(result: Comparison, form: str = "terminal") -> str:
    return rendered(comparison.comparison_document(result, result.verdicts), form)


def test_a_change_of_all_cases_is_attributed_to_the_machine() -> None:
    comparison = compared(*A_SEVENTH)
    (line,) = [line for line in text(comparison).splitlines() if HINT in line]
    assert line == snapshot(
        "6 of 6 cases moved the same way, 1.145× in the median: "
        "probably the machine, not the code; measure interleaved (--ab)"
    )
    assert json.loads(text(comparison, "json"))["common_factor"] == {
        "ratio": pytest.approx(1.145, rel=1e-3),
        "cases": 6,
        "moving": 6,
    }


@pytest.mark.parametrize(
    "factors",
    [
        (1.0, 1.0, 1.0, 1.0, 1.0, 1.4),  # one case
        (1.2, 1.2, 1.2, 1.0, 1.0, 1.0),  # half of them
        (1.02, 1.02, 1.02, 1.02, 1.02, 1.02),  # less than the threshold
        (1.2, 1.2, 1.2, 1.2),  # too few cases
        (1.2, 1.2, 1.2, 0.8, 0.8, 1.2),  # two the other way
    ],
)
def test_a_change_of_few_cases_is_not_attributed_to_the_machine(factors: tuple[float, ...]) -> None:
    comparison = compared(*factors)
    assert comparison.common is None
    assert HINT not in text(comparison)
    assert json.loads(text(comparison, "json"))["common_factor"] is None


def test_a_single_large_change_does_not_affect_the_common_factor() -> None:
    comparison = compared(*A_SEVENTH, 3.0)
    assert comparison.common
    assert (comparison.common.cases, comparison.common.moving) == (7, 7)
    assert comparison.common.ratio == pytest.approx(1.15)


def test_interleaved_runs_have_no_common_factor() -> None:
    factors = A_SEVENTH
    ids = {case.id: case.id for case in a_run_of(*factors).info.plan}
    ref = a_run_of(*(1.0 for _ in factors), id="A", partner=Partner(label="old", run="B", cases=ids))
    new = a_run_of(*factors, id="B", partner=Partner(label="new", run="A", cases=ids))
    assert compare_runs(ref, new).common is None


ratios = st.lists(st.floats(-1, 1), min_size=MIN_CASES, max_size=20)


@given(ratios, st.floats(0.01, 0.5))
def test_swapping_the_runs_inverts_the_factor(logs: list[float], threshold: float) -> None:
    forward, backward = common_factor(logs, threshold), common_factor([-log for log in logs], threshold)
    assert (forward is None) == (backward is None)
    if forward and backward:
        assert backward.ratio == pytest.approx(1 / forward.ratio)
        assert backward.moving == forward.moving
        assert abs(math.log(forward.ratio)) >= math.log1p(threshold)
