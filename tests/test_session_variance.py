"""One run against stored sessions: common changes, the error of the difference, and shared variance."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as oracle

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.documents import gate
from benchbench.documents.gate import Gate
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import GateResult, check_interleaved, decide, exit_code
from benchbench.judging.session_cases import BaselineMatch, session_variance
from benchbench.judging.sessions import (
    MIN_SESSIONS,
    SharedVariance,
    days_of,
    moments,
    normality_p,
    session_deviation,
    shared_variance,
    squared_correlation,
    symmetry_p,
)
from benchbench.model.case import Verdict
from benchbench.stats import VariancePrior, deviation, mean, paired
from benchbench.store.disk import start_time
from studies.sessions import (
    CASES,
    PROCESSES,
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
from tests.factories import a_run_info
from tests.rendering import rendered
from tests.simulator import Array, a_session, highest_rate, process_medians, some_cases

POLICY = GatePolicy(metrics=METRICS[:1])
FIRST = "against the sessions"
REDUCED = 25
DAYS = tuple(range(10))


def test_the_spread_of_all_cases_moderates_that_of_each() -> None:
    days = [[place] for place in (0.0, 0.01, -0.01, 0.0, 0.0)]
    difference = session_deviation(days, [0.0], 0.07).difference
    prior = VariancePrior(0.02**2, math.inf, 120.0)
    shared = session_deviation(days, [0.0], 0.07, SharedVariance(prior)).difference
    assert difference.error == pytest.approx(math.sqrt(5e-5 * 1.2))
    assert shared.error == pytest.approx(0.02 * math.sqrt(1.2))
    assert shared.degrees == 120.0
    less = SharedVariance(VariancePrior(0.001**2, 12.0, 120.0))
    less_difference = session_deviation(days, [0.0], 0.07, less).difference
    assert less_difference.error == pytest.approx(difference.error)
    assert less_difference.degrees == 16.0
    assert SharedVariance(prior, heavy_tails=True).of_case(1e-4, 9) == (4e-4, 4)


def test_fewer_than_five_sessions_use_the_assumed_spread() -> None:
    days = [[0.0], [0.01]]
    shared = SharedVariance(VariancePrior(0.5, math.inf, 120.0))
    assert session_deviation(days, [0.0], 0.07, shared) == session_deviation(days, [0.0], 0.07)


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


def variances_of(drawings: list[list[list[float]]]) -> list[SharedVariance]:
    return [
        shared_variance(drawing, squared_correlation([DAYS[: len(drawing[0])]] * CASES, drawing))
        for drawing in drawings
    ]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("days", [5, 10])
def test_normal_sessions_are_rarely_classified_as_heavy_tails(share: float, days: int) -> None:
    source, runs = np.random.default_rng(12), 150
    variances = variances_of([random_days(source, share, days=days) for _ in range(runs)])
    assert sum(variance.heavy_tails for variance in variances) / runs <= highest_rate(
        {5: 0.06, 10: 0.02}[days], runs
    )


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
    assert sum(variance.heavy_tails for variance in variances) / runs <= highest_rate(0.15, runs)


@pytest.mark.parametrize("days", [5, 10])
def test_only_sessions_skewed_to_slow_are_detected_as_skewed(days: int) -> None:
    source, runs = np.random.default_rng(15), 100
    drawings = [skewed(source, days, spread=0.02).T for _ in range(runs)]
    assert all(variance.heavy_tails for variance in variances_of([drawing.tolist() for drawing in drawings]))
    moments_of = [[moments(values) for values in (-drawing).tolist()] for drawing in drawings]
    assert not any(symmetry_p(cases, 0.0) < 0.5 for cases in moments_of)


@pytest.mark.parametrize(("metric", "sign"), [("latency_s", 1), ("items_per_s", -1)])
@pytest.mark.parametrize("is_worse", [True, False])
def test_only_days_that_are_skewed_to_the_worse_side_are_heavy_tails(
    metric: str, sign: int, *, is_worse: bool
) -> None:
    """Each case has two of five days on one side: skewed, but without tails."""
    source = np.random.default_rng(1)
    template = BaselineMatch(
        case="",
        metric=metric_named(metric),
        sessions=(),
        new=CaseDigest(),
        new_logs=[0.0],
        days=[],
        dates=tuple(range(5)),
        verdict=None,
        reason="",
    )
    matches = []
    for number in range(30):
        logs = sign * (1 if is_worse else -1) * source.permutation([0.0, 0.0, 0.0, 0.02, 0.02])
        matches.append(replace(template, case=f"case {number}", days=[[float(log)] for log in logs]))
    variance = session_variance(matches)
    assert variance
    assert variance.heavy_tails is is_worse
    assert session_variance(matches[:1]) is None
    short = [replace(match, days=match.days[:4], dates=match.dates[:4]) for match in matches]
    assert session_variance(short) is None
    memory = metric_named("peak_host_bytes")
    variance_of_memory = session_variance([replace(match, metric=memory) for match in matches])
    assert variance_of_memory
    assert not variance_of_memory.heavy_tails


def test_with_heavy_tails_a_case_has_at_least_the_mean_variance() -> None:
    skewed_days = [0.0, 0.0, 0.0, 0.0, 0.02]
    shared = shared_variance([skewed_days] * 29 + [[3 * place for place in skewed_days]], 0.0)
    assert shared.heavy_tails
    own = float(np.var(skewed_days, ddof=1))
    assert shared.of_case(own, 4) == pytest.approx((own * (29 + 9) / 30, 4))
    assert shared.of_case(9 * own, 9) == pytest.approx((9 * own, 4))


def test_cases_that_never_vary_have_the_least_variance() -> None:
    still = shared_variance([[0.0] * 5] * 30, 0.25)
    variance, degrees = still.of_case(1e-8, 4)
    assert 1e-8 <= variance <= 2e-8
    assert degrees == pytest.approx(120 / (1 + 29 * 0.25))


days_of_cases = st.lists(
    st.lists(st.floats(-1, 1), min_size=5, max_size=9, unique=True).filter(lambda days: np.std(days) > 1e-2),
    min_size=1,
    max_size=4,
)


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


@pytest.mark.parametrize(
    ("sessions", "weather", "count"),
    [
        *((5, partial(together, spread=0.05, share=share), REDUCED) for share in (0.5, 1.0)),
        *(
            pytest.param(sessions, partial(alike, spread=spread), REDUCED, marks=pytest.mark.real)
            for sessions, spread in ((5, 0.02), (5, 0.1), (10, 0.05))
        ),
        *(
            pytest.param(sessions, partial(weather, spread=0.02), 60, marks=pytest.mark.real)
            for sessions in (5, 10)
            for weather in (heavy, stormy, skewed)
        ),
    ],
)
def test_checks_that_share_the_variance_rarely_fail_unchanged_suites(
    sessions: int, weather: Callable[..., Array], count: int
) -> None:
    failed, not_passed = rates(FIRST, sessions, weather, count, (1.0,))[:2]
    assert failed <= highest_rate(0.05, count)
    assert not_passed <= highest_rate(0.1, count)


@pytest.mark.real
def test_shared_variance_finds_most_changes_with_five_sessions() -> None:
    error_rates = rates(FIRST, 5, partial(alike, spread=0.02), 2 * REDUCED, (1.0, 1.1))
    assert error_rates[2] >= 0.62


def test_pairs_share_their_variance_too() -> None:
    logs = np.random.default_rng(5).normal(0, 0.02, (2, CASES, PROCESSES))
    ref, new = (a_session(np.exp(log), id=name) for log, name in zip(logs, "AB", strict=True))
    findings = check_interleaved(*partners(ref, new), POLICY).findings
    assert all(finding.first and finding.first.degrees > PROCESSES - 1 for finding in findings)


logs = st.lists(st.floats(-5, 5), min_size=3, max_size=6)


@given(st.lists(logs, min_size=5, max_size=10), logs)
def test_with_enough_sessions_the_error_is_that_of_a_further_session_or_of_the_processes(
    sessions: list[list[float]], new: list[float]
) -> None:
    deviation = session_deviation(sessions, new, assumed=0.02)
    means = [float(np.mean(session)) for session in sessions]
    between = max(float(np.std(means, ddof=1)), 1e-4) * math.sqrt(1 + 1 / len(sessions))
    groups = [*sessions, new]
    squares = sum((len(group) - 1) * np.var(group, ddof=1) for group in groups)
    variance = max(squares / sum(len(group) - 1 for group in groups), 1e-8)
    within = math.sqrt(variance * (1 / len(new) + sum(1 / len(e) for e in sessions) / len(sessions) ** 2))
    assert deviation.difference.error == pytest.approx(max(between, within))
    assert deviation.difference.degrees == len(sessions) - 1
    assert deviation.difference.mid == pytest.approx(np.mean(new) - np.mean(means), abs=1e-12)
    assert not deviation.is_provisional


def test_each_missing_session_counts_as_differing_by_the_assumed_spread() -> None:
    one = session_deviation([[0.0, 0.001, -0.001]], [0.05, 0.051, 0.049], assumed=0.02)
    assert (one.spread, one.is_provisional, one.difference.degrees) == (None, True, MIN_SESSIONS - 1)
    assert one.difference.error == pytest.approx(0.02 * math.sqrt(2))
    deviation = session_deviation([[0.0] * 3, [0.1] * 3, [0.2] * 3], [0.0] * 3, assumed=0.02)
    assert deviation.spread == pytest.approx(0.1)
    pooled = (2 * 0.1**2 + 2 * 0.02**2) / 4
    assert deviation.difference.error == pytest.approx(math.sqrt(pooled * (1 + 1 / 3)))
    assert deviation.difference.degrees == 4
    assert deviation.is_provisional


@given(st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_another_session_never_makes_a_check_less_sensitive(spread: float, assumed: float) -> None:
    """Sessions that all differ by the assumed spread; once, 9 degrees of freedom became K - 1."""

    def visible(count: int, spread: float) -> float:
        values = np.linspace(-1, 1, count) if count > 1 else np.zeros(1)
        values = values * spread / (np.std(values, ddof=1) if count > 1 else 1)
        difference = session_deviation([[float(v)] for v in values], [0.0], assumed).difference
        return float(oracle.t.ppf(1 - 0.05 / 30, difference.degrees)) * difference.error

    sizes = [visible(count, min(spread, assumed)) for count in range(1, 11)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(sizes))


def test_noisy_processes_count_if_they_exceed_the_assumed_spread() -> None:
    noisy = [-0.3, 0.0, 0.3]
    deviation = session_deviation([noisy], noisy, assumed=0.02)
    assert deviation.difference.error == pytest.approx(0.3 * math.sqrt(2 / 3))
    assert deviation.difference.degrees == 4


def test_one_value_a_session_has_no_spread_within() -> None:
    values = [0.0, 0.01, -0.01, 0.0, 0.02]
    session = session_deviation([[place] for place in values], [0.3], assumed=0.02)
    assert session.difference.error == pytest.approx(deviation(values) * math.sqrt(1.2))


@pytest.mark.parametrize("sessions", [[], [[]]])
def test_nothing_to_deviate_from_is_an_error(sessions: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="without a value"):
        session_deviation(sessions, [0.0], assumed=0.02)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=10))
def test_the_paired_test_equals_that_of_scipy(pairs: list[tuple[float, float]]) -> None:
    assume(np.std([b - a for a, b in pairs], ddof=1) > 1e-3)  # SciPy has no lower limit
    before, after = zip(*pairs, strict=True)
    difference, expected = paired(pairs), oracle.ttest_rel(after, before)
    assert difference.p_either() == pytest.approx(expected.pvalue, abs=1e-12)
    assert difference.mid == pytest.approx(mean(after) - mean(before), abs=1e-12)
    assert difference.degrees == expected.df


def test_common_effects_cancel_in_pairs() -> None:
    pairs = [(weather, weather + 0.05 + tiny) for weather, tiny in [(0.0, 0.001), (1.0, -0.001), (-2.0, 0.0)]]
    assert paired(pairs).p_above() < 0.001


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_time_without_a_zone_is_in_utc_everywhere(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of pytest-benchmark write times without a zone."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert days_of(["2026-01-02T03:04:05", "2026-01-02T23:04:04+00:00"]) == [0, 0]
        stamp = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
        assert start_time(a_run_info(id="mine", started="2026-01-02T03:04:05")) == stamp
    finally:
        monkeypatch.undo()
        time.tzset()


CASE_COUNT, STEADY = 6, np.array([1.0, 1.002, 0.998])
# Changes of each case (row) on each of five days and in the run: below 1 %, without order.
NOISE = np.array(
    [
        [0.000, 0.006, -0.004, 0.003, -0.006, 0.002],
        [0.005, -0.003, 0.004, -0.006, 0.001, -0.002],
        [-0.006, 0.002, 0.005, 0.000, 0.004, 0.001],
        [0.003, -0.005, -0.002, 0.006, 0.000, -0.001],
        [-0.002, 0.004, 0.000, -0.004, 0.005, 0.000],
        [0.001, 0.000, -0.005, 0.004, -0.003, 0.003],
    ]
)


def medians(day: int, factors: Sequence[float]) -> Array:
    return np.asarray(1e-3 * np.exp(NOISE[:, day])[:, None] * np.array(factors)[:, None] * STEADY)


def sessions(*factors: float) -> list[Digest]:
    return [a_session(medians(day, [factor] * CASE_COUNT), day=day) for day, factor in enumerate(factors)]


def a_new(*factors: float, hour: int = 0) -> Digest:
    return a_session(medians(5, factors), day=9, hour=hour, id="RUN")


def check(baseline: list[Digest], new: Digest, again: Digest | None = None) -> GateResult:
    return decide(baseline, new, POLICY, Confirmation(new=again or new))


CALM = (1.0, 1.0, 1.0, 1.0, 1.0)
ONE_SLOW = (1.0, 1.0, 1.25, 1.0, 1.0)
UNCHANGED = [1.0] * CASE_COUNT
LAST_SLOW = [*UNCHANGED[1:], 1.2]


@pytest.mark.parametrize("factors", [CALM, ONE_SLOW])
def test_a_slow_case_is_found_even_if_a_session_was_slow(factors: tuple[float, ...]) -> None:
    result = check(sessions(*factors), a_new(*LAST_SLOW))
    assert [finding.verdict for finding in result.findings] == [Verdict.SAME] * 5 + [Verdict.SLOWER]
    assert exit_code(result) == 10


def test_a_slow_session_is_removed_though_most_cases_of_the_run_changed() -> None:
    result = check(sessions(*ONE_SLOW), a_new(1.0, 1.0, 1.2, 1.2, 0.8, 0.8))
    verdicts = [finding.verdict for finding in result.findings]
    assert verdicts == [Verdict.SAME] * 2 + [Verdict.SLOWER] * 2 + [Verdict.FASTER] * 2


def test_a_slow_hour_changes_no_case() -> None:
    runs = [a_new(*(factor * base for base in LAST_SLOW)) for factor in (1, 1.04)]
    calm, slow = (check(sessions(*CALM), run) for run in runs)
    for calm_finding, slow_finding in zip(calm.findings, slow.findings, strict=True):
        assert calm_finding.verdict is slow_finding.verdict
        assert calm_finding.first
        assert slow_finding.first
        assert calm_finding.first.ratio == pytest.approx(slow_finding.first.ratio, abs=2e-3)
    (together,) = slow.together
    assert together.first
    assert together.first.ratio == pytest.approx(1.04, abs=0.005)
    assert together.verdict is not Verdict.SLOWER


def test_a_common_slowdown_is_one_finding_measured_again_in_all_cases() -> None:
    new = a_new(*[1.2] * CASE_COUNT)
    first = decide(sessions(*CALM), new, POLICY)
    assert len(first.flagged) == CASE_COUNT
    result = check(sessions(*CALM), new)
    assert [finding.verdict for finding in result.together] == [Verdict.SLOWER]
    assert {finding.verdict for finding in result.findings} == {Verdict.SAME}
    assert exit_code(result) == 10
    assert exit_code(check(sessions(*CALM), new, again=a_new(*UNCHANGED))) == 0


@pytest.mark.parametrize(("hour", "verdict"), [(0, Verdict.SLOWER), (5, Verdict.INCONCLUSIVE)])
def test_second_measurement_in_another_hour_has_an_unknown_common_change(hour: int, verdict: Verdict) -> None:
    only_flagged = a_session(medians(5, LAST_SLOW)[-1:], cases=some_cases(CASE_COUNT)[-1:], day=9, hour=hour)
    baseline = sessions(1.0, 0.9, 1.1, 0.95, 1.05)
    assert check(baseline, a_new(*LAST_SLOW), only_flagged).findings[-1].verdict is verdict
    slow_hour = check(baseline, a_new(*(1.04 * factor for factor in LAST_SLOW)), only_flagged).findings[-1]
    assert slow_hour.confirmation
    assert slow_hour.confirmation.ratio == pytest.approx(1.2 if hour else 1.2 / 1.04, rel=0.02)


@pytest.mark.parametrize(("old", "verdict"), [(1.0, Verdict.SLOWER), (1.2, Verdict.SAME)])
def test_the_baselines_code_shows_whether_the_code_or_the_hour_changed(old: float, verdict: Verdict) -> None:
    policy = replace(POLICY, interleaved=True)
    new, before = a_new(*[1.2] * CASE_COUNT), a_session(medians(5, [old] * CASE_COUNT), day=9, id="OLD")
    (together,) = decide(sessions(*CALM), new, policy, Confirmation(new=new, ref=before)).together
    assert together.verdict is verdict
    assert together.confirmation
    assert together.confirmation.ratio == pytest.approx(1.2 / old)


@pytest.mark.parametrize(
    ("before", "after", "rounds", "verdict"),
    [
        (6, 6, 3, Verdict.SLOWER),
        (5, 6, 3, Verdict.SLOWER),
        (6, 5, 3, Verdict.SLOWER),
        (4, 6, 3, Verdict.INSUFFICIENT),
        (6, 4, 3, Verdict.INSUFFICIENT),
        (0, 6, 3, Verdict.INSUFFICIENT),
        (6, 6, 2, Verdict.INSUFFICIENT),
    ],
)
def test_a_common_change_is_confirmed_by_three_pairs_of_five_cases(
    before: int, after: int, rounds: int, verdict: Verdict
) -> None:
    """`before` and `after`: cases of the old and of the new code in the second measurement."""
    old, new = (
        a_session(medians(5, [factor] * CASE_COUNT)[:count, :rounds], some_cases(CASE_COUNT)[:count], day=9)
        for factor, count in ((1.0, before), (1.2, after))
    )
    policy = replace(POLICY, interleaved=True)
    result = decide(sessions(*CALM), a_new(*[1.2] * CASE_COUNT), policy, Confirmation(new=new, ref=old))
    (together,) = result.together
    assert together.verdict is verdict
    reason = "measured again: too few cases have pairs"
    assert (reason in together.reason) == (verdict is Verdict.INSUFFICIENT)
    assert together.confirmation is None or together.confirmation.against == rounds


def test_fewer_than_five_cases_have_no_common_change() -> None:
    source = np.random.default_rng(3)
    rows = process_medians(source, (6, 4, 3), 0.001)
    baseline = [a_session(row, day=day) for day, row in enumerate(rows[:-1])]
    result = decide(baseline, a_session(1.04 * rows[-1], day=9), POLICY)
    assert not result.together
    ratios = [finding.first.ratio for finding in result.findings if finding.first]
    assert ratios == pytest.approx([1.04] * 4, abs=0.01)
