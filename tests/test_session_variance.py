"""Variance between the sessions of a baseline, shared by all cases of a check."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as oracle

import benchbench
from benchbench.analyse.digest import CaseDigest
from benchbench.analyse.metrics import METRICS
from benchbench.documents import gate
from benchbench.documents.gate import Gate
from benchbench.errors import UsageError
from benchbench.judging.case_tests import Confirmation
from benchbench.judging.check import check_interleaved, decide, likely_size
from benchbench.judging.gate_ending import exit_code
from benchbench.judging.session_cases import (
    UNSHARED,
    BaselineMatch,
    GatePolicy,
    SessionVariance,
    session_variance,
    shared_session_variance,
    squared_correlation,
)
from benchbench.judging.sessions import (
    CommonVariance,
    HeavyTails,
    equal_variance_p,
    moments,
    normality_p,
    session_deviation,
    symmetry_p,
)
from benchbench.model.case import Verdict
from benchbench.model.options import Variance
from benchbench.stats import Difference, VariancePrior
from studies.sessions import (
    CASES,
    PROCESSES,
    against_sessions,
    alike,
    heavy,
    partners,
    rates,
    skewed,
    stormy,
    suites,
    together,
    unlike,
)
from tests.rendering import rendered
from tests.simulator import Array, a_session, highest_rate

POLICY = GatePolicy(metrics=METRICS[:1])
FIRST, SECOND, BOTH = "against the sessions", "interleaved with the baseline's code", "both tests interleaved"
REDUCED = 25
SHARED = (Variance.SHARED,)
DAYS = tuple(range(10))

# Variance shared with other cases


def test_the_spread_of_all_cases_moderates_that_of_each() -> None:
    days = [[[place]] for place in (0.0, 0.01, -0.01, 0.0, 0.0)]
    difference = session_deviation(days, [0.0], 0.07).difference
    prior = VariancePrior(0.02**2, math.inf, 120.0)
    shared = session_deviation(days, [0.0], 0.07, prior).difference
    assert difference.error == pytest.approx(math.sqrt(5e-5 * 1.2))
    assert shared.error == pytest.approx(0.02 * math.sqrt(1.2))
    assert shared.degrees == 120.0
    less = session_deviation(days, [0.0], 0.07, VariancePrior(0.001**2, 12.0, 120.0)).difference
    assert less.error == pytest.approx(difference.error)
    assert less.degrees == 16.0


def test_equally_varying_cases_share_the_pooled_variance() -> None:
    common = CommonVariance(4e-4, 120.0)
    assert common.posterior(1e-4, 4) == (4e-4, 120.0)
    assert common.posterior(6e-4, 4) == (4e-4, 120.0)
    assert common.posterior(1e-3, 4)[0] == pytest.approx(6e-4)  # within chance
    assert common.posterior(2e-3, 4) == (2e-3, 120.0)  # beyond chance
    assert HeavyTails(4e-4).posterior(1e-4, 9) == (4e-4, 4)
    assert HeavyTails(4e-4).posterior(8e-4, 9) == (8e-4, 4)


def test_fewer_than_five_sessions_use_the_assumed_spread() -> None:
    days = [[[0.0]], [[0.01]]]
    prior = VariancePrior(0.5, math.inf, 120.0)
    assert session_deviation(days, [0.0], 0.07, prior) == session_deviation(days, [0.0], 0.07)


def random_days(
    source: np.random.Generator, share: float, cases: int = 30, days: int = 10
) -> list[list[float]]:
    common, individual = source.standard_normal((1, days)), source.standard_normal((cases, days))
    return list((0.02 * (math.sqrt(share) * common + math.sqrt(1 - share) * individual)).tolist())


@pytest.mark.parametrize(("share", "square"), [(0.0, 0.0), (0.5, 0.25), (1.0, 1.0)])
def test_squared_correlation_is_the_mean_square_over_pairs_of_cases(share: float, square: float) -> None:
    source = np.random.default_rng(8)
    squares = [squared_correlation([DAYS] * 30, random_days(source, share)) for _ in range(60)]
    assert np.mean(squares) == pytest.approx(square, abs=0.08)


def test_cases_with_other_days_or_without_variance_do_not_count() -> None:
    days = random_days(np.random.default_rng(8), 1.0, cases=3)
    assert squared_correlation([DAYS, DAYS, tuple(range(1, 11))], days) == pytest.approx(1.0)
    assert squared_correlation([DAYS] * 2, [[0.0] * 10] * 2) == 0.0
    assert squared_correlation([DAYS], days[:1]) == 0.0


# Sessions far from the others


def variances_of(drawings: list[list[list[float]]]) -> list[SessionVariance]:
    return [
        shared_session_variance(drawing, squared_correlation([DAYS[: len(drawing[0])]] * CASES, drawing))
        for drawing in drawings
    ]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("days", [5, 10])
def test_normal_sessions_share_one_variance(share: float, days: int) -> None:
    source, runs = np.random.default_rng(12), 150
    variances = variances_of([random_days(source, share, days=days) for _ in range(runs)])
    assert sum(
        isinstance(variance.prior, CommonVariance) for variance in variances
    ) / runs >= 1 - highest_rate(0.06, runs)
    assert sum(variance.heavy_tails for variance in variances) / runs <= highest_rate(0.03, runs)


@pytest.mark.parametrize(
    ("weather", "days", "least"), [(heavy, 5, 0.6), (stormy, 5, 0.95), (heavy, 10, 0.95), (stormy, 10, 1.0)]
)
def test_heavy_tails_of_sessions_are_detected(weather: Callable[..., Array], days: int, least: float) -> None:
    source, runs = np.random.default_rng(13), 100
    variances = variances_of([weather(source, days, spread=0.02).T.tolist() for _ in range(runs)])
    assert sum(variance.heavy_tails for variance in variances) / runs >= least


@pytest.mark.parametrize("days", [5, 10])
def test_unequal_variances_are_not_classified_as_heavy_tails(days: int) -> None:
    source, runs = np.random.default_rng(14), 150
    drawings = [unlike(source, days, 0.02, 0.8).T.tolist() for _ in range(runs)]
    variances = variances_of(drawings)
    assert not any(isinstance(variance.prior, CommonVariance) for variance in variances)
    assert sum(variance.heavy_tails for variance in variances) / runs <= highest_rate(0.15, runs)
    ps = np.array([normality_p([moments(place) for place in drawing], 0.0) for drawing in drawings])
    for level in (0.05, 0.1, 0.2):
        assert np.mean(ps < level) <= highest_rate(1.2 * level, runs)


@pytest.mark.parametrize("days", [5, 10])
def test_only_sessions_skewed_to_slow_are_detected_as_skewed(days: int) -> None:
    source, runs = np.random.default_rng(15), 100
    drawings = [skewed(source, days, spread=0.02).T for _ in range(runs)]
    assert all(variance.heavy_tails for variance in variances_of([drawing.tolist() for drawing in drawings]))
    moments_of = [[moments(values) for values in (-drawing).tolist()] for drawing in drawings]
    assert not any(symmetry_p(cases, 0.0) < 0.5 for cases in moments_of)


def test_normal_sessions_are_rarely_classified_as_skewed() -> None:
    source, runs = np.random.default_rng(16), 1000
    for weather in (partial(unlike, spread=0.02, deviation=0.8), partial(alike, spread=0.02)):
        drawings = [weather(source, 5).T.tolist() for _ in range(runs)]
        ps = np.array([symmetry_p([moments(place) for place in drawing], 0.0) for drawing in drawings])
        for level in (0.02, 0.05, 0.2):
            assert np.mean(ps < level) <= highest_rate(level, runs)


def test_a_session_slow_in_all_cases_counts_once() -> None:
    source, runs = np.random.default_rng(17), 300
    drawings = [random_days(source, 1.0, days=5) for _ in range(runs)]
    ps = np.array([symmetry_p([moments(place) for place in drawing], 1.0) for drawing in drawings])
    assert np.mean(ps < 0.05) <= highest_rate(0.05, runs)
    unshared = np.array([symmetry_p([moments(place) for place in drawing], 0.0) for drawing in drawings])
    assert np.mean(unshared < 0.05) > 0.2


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=30, unique=True))
def test_the_skewness_equals_that_of_scipy(values: list[float]) -> None:
    assume(np.std(values) > 1e-3)
    assert moments(values).skewness == pytest.approx(oracle.skew(values), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("metric", ["latency_s", "items_per_s"])
def test_the_worse_side_of_a_time_and_of_a_rate_is_the_skewed_one(metric: str) -> None:
    suite = next(suites(np.random.default_rng(4), 10, partial(skewed, spread=0.02), 1.0))
    the_metric = next(candidate for candidate in METRICS if candidate.name == metric)
    result = decide(suite.sessions, suite.run, GatePolicy(metrics=(the_metric,)))
    assert all(finding.heavy_tails for finding in result.findings)


@pytest.mark.parametrize(("metric", "sign"), [("latency_s", 1), ("items_per_s", -1)])
@pytest.mark.parametrize("is_worse", [True, False])
def test_only_days_that_are_skewed_to_the_worse_side_are_heavy_tails(
    metric: str, sign: int, *, is_worse: bool
) -> None:
    """Each case has two of five days on one side: skewed, but without tails."""
    source = np.random.default_rng(1)
    (the_metric,) = (candidate for candidate in METRICS if candidate.name == metric)
    matches = []
    for number in range(30):
        logs = sign * (1 if is_worse else -1) * source.permutation([0.0, 0.0, 0.0, 0.02, 0.02])
        match = BaselineMatch(
            case=f"case {number}",
            metric=the_metric,
            sessions=(),
            new=CaseDigest(),
            new_logs=[0.0],
            days=[[[float(log)]] for log in logs],
            dates=tuple(range(5)),
            verdict=None,
            reason="",
        )
        matches.append(match)
    variance = session_variance(matches, Variance.SHARED)
    assert variance.heavy_tails is is_worse
    assert isinstance(variance.prior, HeavyTails) is is_worse
    assert session_variance(matches, Variance.OWN) == UNSHARED
    assert session_variance(matches[:1], Variance.SHARED) == UNSHARED
    short = [replace(match, days=match.days[:4], dates=match.dates[:4]) for match in matches]
    assert session_variance(short, Variance.SHARED) == UNSHARED


def test_cases_that_never_vary_have_the_least_variance() -> None:
    still = shared_session_variance([[0.0] * 5] * 30, 0.0).prior
    assert still
    assert still.posterior(1e-8, 4)[0] == 1e-8


@given(st.lists(st.floats(-1, 1), min_size=5, max_size=30, unique=True))
def test_the_kurtosis_test_equals_that_of_scipy(values: list[float]) -> None:
    assume(np.std(values) > 1e-3)  # values that vary
    statistics = moments(values)
    assert statistics.kurtosis == pytest.approx(oracle.kurtosis(values, fisher=False), rel=1e-6)
    assert equal_variance_p([statistics], 0.0) == pytest.approx(heavy_tails_p(values), abs=1e-9)


def heavy_tails_p(values: Sequence[float]) -> float:
    """One-sided p by SciPy, whose formula ends at tails that are far lighter than normal ones."""
    p = float(oracle.kurtosistest(values, alternative="greater").pvalue)
    return 1.0 if p < 0.1 and oracle.kurtosis(values, fisher=False) < 2 else p


def test_two_levels_are_no_heavy_tails() -> None:
    assert equal_variance_p([moments([0.0, 1.0] * 100)], 0.0) == 1.0


days_of_cases = st.lists(
    st.lists(st.floats(-1, 1), min_size=5, max_size=9, unique=True).filter(lambda days: np.std(days) > 1e-2),
    min_size=1,
    max_size=4,
)


@given(days_of_cases)
def test_the_pooled_kurtosis_is_that_of_all_centred_values(cases: list[list[float]]) -> None:
    pooled = np.concatenate([np.array(case) - np.mean(case) for case in cases])
    expected = heavy_tails_p(pooled.tolist())
    assert equal_variance_p([moments(case) for case in cases], 0.0) == pytest.approx(expected, abs=1e-9)


@given(days_of_cases, st.floats(0, 1))
def test_mean_skewness_and_kurtosis_have_their_normal_distribution(
    cases: list[list[float]], square: float
) -> None:
    """Moments of K normal values by Fisher (1930); the mean of correlated cases varies more."""
    counts = np.array([len(case) for case in cases])
    kurtosis_mean = 3 * (counts - 1) / (counts + 1)
    kurtosis_variance = (
        24 * counts * (counts - 2) * (counts - 3) / ((counts + 1.0) ** 2 * (counts + 3) * (counts + 5))
    )
    skewness_variance = 6 * (counts - 2) / ((counts + 1) * (counts + 3))
    kurtosis = np.array([oracle.kurtosis(case, fisher=False) for case in cases])
    skewness = np.array([oracle.skew(case) for case in cases])
    spreads = np.array([np.std(case) for case in cases])

    def p(weights: Array, excess: Array, variances: Array) -> float:
        inflation = 1 + square * (weights.sum() ** 2 / (weights**2).sum() - 1)
        error = math.sqrt((weights**2 * variances).sum() * inflation)
        return float(oracle.norm.sf((weights * excess).sum() / error))

    statistics = [moments(case) for case in cases]
    assert normality_p(statistics, square) == pytest.approx(
        p(spreads**2, kurtosis - kurtosis_mean, kurtosis_variance), abs=1e-9
    )
    assert symmetry_p(statistics, square) == pytest.approx(p(spreads, skewness, skewness_variance), abs=1e-9)


@given(st.floats(0.01, 20), st.floats(1, 20), st.floats(1, 60))
def test_a_case_keeps_its_variance_if_an_f_test_finds_it_larger(
    ratio: float, degrees: float, common_degrees: float
) -> None:
    variance = 1e-4 * ratio
    p = oracle.f.sf(ratio, degrees, common_degrees)
    assume(abs(p - 0.02) > 1e-6)
    expected = variance if p < 0.02 else max(1e-4, 0.6 * variance)
    assert CommonVariance(1e-4, common_degrees).posterior(variance, degrees) == pytest.approx(
        (expected, max(degrees, common_degrees))
    )
    assert HeavyTails(1e-4).posterior(variance, degrees) == (max(variance, 1e-4), min(degrees, 4))


def test_a_slowdown_against_sessions_with_heavy_tails_is_provisional() -> None:
    suite = next(suites(np.random.default_rng(2), 10, partial(stormy, spread=0.01), 1.5))
    again = Confirmation(new=suite.again)
    result = decide(suite.sessions, suite.run, POLICY, again)
    verdicts = [finding.verdict for finding in result.findings]
    assert Verdict.PROVISIONAL in verdicts[:3]
    assert Verdict.SLOWER not in verdicts
    assert exit_code(result) == 12
    text = rendered(gate.check_document(Gate(name="main", result=result)))
    assert "some sessions are far from the rest" in text
    assert "to decide it now: accelbench check --baseline main --ab rev:" in text
    separate = decide(suite.sessions, suite.run, replace(POLICY, variance=Variance.OWN), again)
    assert Verdict.SLOWER in [finding.verdict for finding in separate.findings[:3]]
    assert not any(finding.heavy_tails for finding in separate.findings)


# Error rates of checks: reduced from studies/sessions.py


@pytest.mark.real
@pytest.mark.parametrize(("sessions", "spread"), [(5, 0.02), (5, 0.1), (10, 0.05)])
def test_checks_that_share_the_variance_rarely_fail_unchanged_suites(sessions: int, spread: float) -> None:
    error_rates = rates(FIRST, sessions, partial(alike, spread=spread), REDUCED, (1.0,), variances=SHARED)
    assert error_rates[Variance.SHARED][0] <= highest_rate(0.05, REDUCED)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_shared_variance_rarely_fails_an_unchanged_suite_with_slow_sessions(share: float) -> None:
    error_rates = rates(
        FIRST, 5, partial(together, spread=0.05, share=share), REDUCED, (1.0,), variances=SHARED
    )
    assert error_rates[Variance.SHARED][0] <= highest_rate(0.05, REDUCED)


@pytest.mark.real
@pytest.mark.parametrize(
    ("sessions", "weather"),
    [(5, heavy), (5, stormy), (5, skewed), (10, heavy), (10, stormy), (10, skewed)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_heavy_or_skewed_tails_rarely_fail_a_check(sessions: int, weather: Callable[..., Array]) -> None:
    failed, not_passed = rates(FIRST, sessions, partial(weather, spread=0.02), 60, (1.0,), variances=SHARED)[
        Variance.SHARED
    ][:2]
    assert failed <= highest_rate(0.05, 60)
    assert not_passed <= highest_rate(0.1, 60)


def test_slowdown_against_heavy_tails_is_advised_to_be_measured_interleaved() -> None:
    drawn_suites = suites(np.random.default_rng(3), 10, partial(heavy, spread=0.02), 1.2)
    verdicts = [verdict for _ in range(12) for verdict in against_sessions(next(drawn_suites), POLICY)[:3]]
    assert verdicts.count(Verdict.PROVISIONAL) / len(verdicts) >= 0.7


@pytest.mark.real
def test_shared_variance_detects_more_than_separate_variances() -> None:
    error_rates = rates(FIRST, 5, partial(alike, spread=0.02), 2 * REDUCED, (1.0, 1.1))
    assert error_rates[Variance.SHARED][2] >= 0.78
    assert error_rates[Variance.OWN][2] <= 0.35


@pytest.mark.real
def test_pairs_share_their_variance_too() -> None:
    error_rates = rates(BOTH, 1, partial(alike, spread=0.0), 6, (1.0, 1.1))
    assert error_rates[Variance.SHARED][2] >= error_rates[Variance.OWN][2]
    source = np.random.default_rng(5)
    shared, separate = (
        interleaved(source.normal(0, 0.02, (2, CASES, PROCESSES)), variance) for variance in Variance
    )
    assert shared > separate


def interleaved(logs: Array, variance: Variance) -> float:
    """The mean degrees of freedom of the tests."""
    ref, new = (a_session(np.exp(log), id=name) for log, name in zip(logs, "AB", strict=True))
    findings = check_interleaved(*partners(ref, new), replace(POLICY, variance=variance)).findings
    return float(np.mean([finding.first.degrees for finding in findings if finding.first]))


def test_an_unknown_variance_is_refused() -> None:
    with pytest.raises(UsageError, match="No variance named 'mine'"):
        benchbench.check("latest", baseline="main", variance="mine")


# Size of a detected change


@given(st.floats(0.001, 0.3), st.floats(0.0005, 0.1), st.floats(2, 200), st.floats(0.001, 0.05))
def test_likely_size_is_between_the_threshold_and_the_estimate(
    estimate: float, error: float, degrees: float, level: float
) -> None:
    margin = min(estimate, math.log1p(0.05))
    size = likely_size(Difference(estimate, error, degrees), margin, level)
    assert margin - 1e-12 <= size <= estimate + 1e-12
    assert likely_size(Difference(-estimate, error, degrees), margin, level) == size


@pytest.mark.real
def test_likely_size_is_median_unbiased_after_selection() -> None:
    source, error, margin = np.random.default_rng(3), 0.02, math.log1p(0.05)
    for true in (0.07, 0.09, 0.12):
        estimates = true + error * source.standard_normal(4000)
        bar = max(margin, oracle.norm.isf(0.001) * error)
        called = estimates[estimates >= bar]
        sizes = np.array([likely_size(Difference(x, error, 1e6), margin, 0.001) for x in called])
        assert np.mean(sizes > true) == pytest.approx(0.5, abs=0.06)
        assert abs(sizes.mean() - true) < 0.6 * abs(called.mean() - true) + 0.002


def test_likely_size_of_a_large_change_is_its_estimate() -> None:
    assert likely_size(Difference(0.5, 0.01, 10.0), 0.05, 0.01) == pytest.approx(0.5, rel=1e-3)
