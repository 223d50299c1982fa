"""Drift and unevenness over the rounds of a run."""

import math
import random
from dataclasses import replace
from itertools import combinations, permutations
from statistics import median

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchbench.analyse.digest import digest
from benchbench.analyse.doubts import MIN_CHANGE, SIGNIFICANCE, Drift, _friedman_p, _score, _slope, drift
from benchbench.analyse.metrics import METRICS
from benchbench.analyse.scaling import RunView
from benchbench.documents.comparison import comparison_document
from benchbench.documents.run import report_document
from benchbench.judging.comparison import compare_runs
from benchbench.model.run import Record
from tests.factories import a_case, a_failure, a_record, a_run, some_rounds
from tests.simulator import noise

CASES = [a_case(params={"m": m}) for m in range(6)]
METRIC = {metric.name: metric for metric in METRICS}
CALM = (1e-3, 1.001e-3, 0.999e-3, 1.0005e-3, 0.9995e-3)


def test_a_single_case_drifts_only_if_every_round_continues_the_trend() -> None:
    """Without drift all orders are equally likely; two of 120 are far below the significance."""
    orders = [
        drift([[(n, 0.02 * level) for n, level in enumerate(permutation)]])
        for permutation in permutations(range(5))
    ]
    assert sum(order is not None for order in orders) == 2
    assert 2 / math.factorial(5) < SIGNIFICANCE


@given(st.lists(st.integers(-3, 3).map(float), min_size=3, max_size=12))
def test_score_and_slope_agree_with_kendall_and_theil_sen(logs: list[float]) -> None:
    pairs = [*combinations(enumerate(logs), 2)]
    score = sum((after > before) - (after < before) for (_, before), (_, after) in pairs)
    assert _score([*enumerate(logs)]) == score
    slopes = [(after - before) / (later - earlier) for (earlier, before), (later, after) in pairs]
    assert _slope([*enumerate(logs)]) == pytest.approx(median(slopes))


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_a_drift_of_three_percent_is_found_with_its_size(rounds: int) -> None:
    source = np.random.default_rng(rounds)
    trend = np.linspace(0, math.log(1.03), rounds)
    runs = [trend + 0.005 * noise(source, False, 12, rounds) for _ in range(100)]
    drifts = [drift([*enumerate(row)] for row in logs.tolist()) for logs in runs]
    assert all(one_drift is not None and one_drift.cases == 12 for one_drift in drifts)
    assert np.median([one_drift.change for one_drift in drifts if one_drift]) == pytest.approx(
        math.log(1.03), rel=0.1
    )


def test_a_trend_below_the_minimum_is_no_drift() -> None:
    assert drift([[(number, 0.2 * MIN_CHANGE * number) for number in range(5)]] * 6) is None
    assert drift([[(0, 0.0), (1, 0.5)]] * 6) is None  # two rounds have no trend
    walked = drift([[(number, 0.0075 * number) for number in range(5)]] * 6)
    assert walked
    assert walked.variance == pytest.approx(0.03**2 / 3)
    assert walked.degrees == 1


@example([0.0, -1.0, 0.0, 0.004, 0.006], 2.0)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(-3, 3))
def test_the_level_of_a_case_does_not_matter(logs: list[float], level: float) -> None:
    logs = [round(log, 3) for log in logs]
    plain = drift([[*enumerate(logs)]] * 4)
    shifted = drift([[(number, log + level) for number, log in enumerate(logs)]] * 4)
    changes = [one_drift.change for one_drift in (plain, shifted) if one_drift]
    if plain and shifted and plain.is_trend == shifted.is_trend:
        assert changes[0] == pytest.approx(changes[1], abs=1e-9)
    elif changes:  # rounding decides about a change at the limit
        assert min(map(abs, changes)) == pytest.approx(MIN_CHANGE, abs=1e-9)


def uneven(source: np.random.Generator, cases: int, *shift: float) -> np.ndarray:
    """Logarithms of a run whose rounds are slower by `shift` in all cases, over 1 % noise."""
    return np.asarray(np.array(shift) + 0.01 * source.standard_normal((cases, len(shift))))


def test_a_round_slower_in_all_cases_is_found_with_its_size() -> None:
    source = np.random.default_rng(5)
    drifts = [drift([*enumerate(row)] for row in uneven(source, 12, 0, 0.04, 0).tolist()) for _ in range(100)]
    assert all(one_drift and not one_drift.is_trend and one_drift.cases == 12 for one_drift in drifts)
    assert np.median([one_drift.change for one_drift in drifts if one_drift]) == pytest.approx(0.04, rel=0.1)
    text = "uneven: the slowest round took 4.00 % longer than the fastest, in 12 cases together"
    assert Drift(change=math.log(1.04), cases=12, is_trend=False, variance=0, degrees=2).note.text == text


def test_uneven_rounds_add_their_variance() -> None:
    run_drift = drift([[(0, 0.0), (1, 0.06), (2, 0.0)]] * 8)
    assert run_drift
    assert run_drift.variance == pytest.approx(0.06**2 / 3)
    assert run_drift.degrees == 2


def test_only_rounds_of_every_case_are_compared() -> None:
    """Additional rounds of two noisy cases do not count."""
    rounds = [(0, 0.0), (1, 0.05), (2, 0.0)]
    run_drift = drift([rounds] * 6 + [[*rounds, (3, 0.5), (4, -0.5)]] * 2)
    assert run_drift
    assert run_drift.cases == 8
    assert run_drift.change == pytest.approx(0.05)


def test_three_uneven_rounds_need_five_cases() -> None:
    rounds = [(0, 0.0), (1, 0.06), (2, 0.03)]
    assert drift([rounds] * 4) is None
    assert drift([rounds] * 5)


def test_equal_rounds_are_not_uneven() -> None:
    assert drift([[(0, 1.0), (1, 1.0), (2, 1.0)]] * 30) is None


ROWS = st.integers(3, 6).flatmap(
    lambda rounds: st.lists(
        st.lists(st.integers(0, 9), min_size=rounds, max_size=rounds).filter(lambda row: len({*row}) > 1),
        min_size=2,
        max_size=12,
    )
)


@given(ROWS)
def test_unevenness_agrees_with_friedmans_test(rows: list[list[int]]) -> None:
    from scipy.stats import friedmanchisquare

    expected = friedmanchisquare(*zip(*rows, strict=True))
    p = _friedman_p([[float(log) for log in row] for row in rows])
    assert p == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)


def rounds_of_all(*seconds: float) -> list[Record]:
    return [record for case in CASES for record in some_rounds(*seconds, case=case)]


DRIFTING = [1e-3 * (1 + 0.01 * number) for number in range(5)]


def test_a_report_notes_a_drift_at_the_top_and_in_json() -> None:
    report = report_document(a_run(rounds_of_all(*DRIFTING)))
    text = "drifted: steps became 4.00 % slower from the first round to the last, in 6 cases together"
    assert text in report.facts
    assert report.data["run"]["notes"] == [text]
    calm = report_document(a_run(rounds_of_all(*[1e-3] * 5)))
    assert calm.data["run"]["notes"] == []


def test_a_comparison_names_the_side_that_drifted() -> None:
    wild, calm = a_run(rounds_of_all(*DRIFTING)), a_run(rounds_of_all(*CALM))
    comparison = compare_runs(calm, wild)
    assert list(comparison.drifts) == ["new"]
    (line,) = [fact for fact in comparison_document(comparison, ()).facts if "drifted" in fact]
    assert line.startswith("new drifted: steps became 4.00 % slower")
    assert not compare_runs(calm, calm).drifts
    assert not compare_runs(calm, wild, METRIC["cold_s"]).drifts


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.1])
def test_reports_and_comparisons_have_the_same_drift(slope: float) -> None:
    """Also with cases that two suites share, that failed, or whose processes disagree."""
    draw = random.Random(1)
    cases = [*CASES, *(replace(case, suite="another") for case in CASES[:2])]
    records = []
    for case in cases:
        steps = [1e-3 * math.exp(slope * number + draw.gauss(0, 0.002)) for number in range(5)]
        records += some_rounds(*steps, case=case)
    records += some_rounds(1e-3, 1e-3, 9.0, case=a_case(params={"m": 100}))
    records.append(a_record(a_failure(), case=a_case(params={"m": 101})))
    run = a_run(records)
    assert RunView(run).drift == digest(run).drift
    assert (RunView(run).drift is not None) == (slope > 0)
