"""Statistics compared with SciPy, and the variance between processes that cases of a comparison share."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as oracle
from scipy.special import polygamma

from benchbench import stats
from benchbench.analyse.digest import CaseDigest
from benchbench.analyse.doubts import Drift
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.documents import comparison
from benchbench.judging.case_tests import CaseTest, paired_differences
from benchbench.judging.comparison import compare_runs
from benchbench.judging.session_cases import BaselineMatch, match_interleaved
from benchbench.judging.sessions import SessionDeviation
from benchbench.judging.significance import adjusted_results, family_of, family_size
from benchbench.judging.variance import (
    add_drifts,
    add_session_variance,
    are_clustered,
    at_least_the_mean,
    detectable_change,
    larger_variances,
    shared_variance,
)
from benchbench.model.options import Threshold
from benchbench.model.run import Policy
from benchbench.stats import (
    Difference,
    VariancePrior,
    _binomial_rank,
    effective_count,
    headline,
    mad,
    median,
    median_interval,
    quantile,
    t_quantile,
    variance_prior,
    welch,
)
from benchbench.timing.policy import POLICIES, budget_policy
from studies.adaptive_rounds import BUDGET_S, CASES, NOISE, rates, simulated_run, two_modes
from tests.factories import a_case, a_digest, a_run, some_rounds
from tests.rendering import rendered
from tests.simulator import highest_rate

differences = st.lists(
    st.builds(
        Difference,
        mid=st.floats(-1, 1),
        error=st.floats(1e-4, 1),
        degrees=st.floats(1, 20),
        share=st.floats(0.1, 1),
    ),
    min_size=1,
    max_size=40,
)


@given(differences)
def test_sharing_never_lowers_a_variance_and_always_adds_degrees(cases: list[Difference]) -> None:
    for before, after in zip(cases, shared_variance(cases), strict=True):
        assert (after.mid, after.share) == (before.mid, before.share)
        assert after.error >= before.error * (1 - 1e-9)
        assert after.degrees >= before.degrees - 1e-9


def test_one_case_keeps_its_own_variance() -> None:
    single = [Difference(0.1, 0.02, 4.0, 0.4)]
    assert shared_variance(single) == single
    assert at_least_the_mean(single)[0].error == pytest.approx(0.02)


@pytest.mark.parametrize(("degrees", "prior_degrees", "prior"), [(4, 4.0, 1e-4), (8, 10.0, 4e-4)])
def test_the_prior_of_many_cases_is_recovered(degrees: int, prior_degrees: float, prior: float) -> None:
    """Smyth 2004: 1/σ² is χ²(d₀) / (d₀ s₀²), and s² is σ² χ²(d) / d."""
    source = np.random.default_rng(4)
    true = prior * prior_degrees / source.chisquare(prior_degrees, 20_000)
    variances = true * source.chisquare(degrees, 20_000) / degrees
    size, freedom = stats._fit_prior(variances, np.full(20_000, float(degrees)))
    assert size == pytest.approx(prior, rel=0.05)
    assert freedom == pytest.approx(prior_degrees, rel=0.1)


@given(st.floats(1e-3, 1e3))
def test_the_inverse_of_trigamma_is_its_inverse(value: float) -> None:
    assert float(polygamma(1, stats._trigamma_inverse(value))) == pytest.approx(value, rel=1e-6)


def test_equally_variable_cases_are_pooled() -> None:
    source = np.random.default_rng(7)
    separate = [welch(a.tolist(), b.tolist()) for a, b in source.normal(0, 0.01, (200, 2, 3))]
    shared = shared_variance(separate)
    assert np.median([difference.variance for difference in shared]) == pytest.approx(1e-4, rel=0.1)
    assert min(difference.degrees for difference in shared) > 50


def test_the_spread_comes_from_planned_processes_and_the_mean_from_all() -> None:
    logs = [0.0, 0.01, -0.01, 0.05, 0.06]
    interval = headline([math.exp(value) for value in logs], planned=3)
    assert interval.low is not None
    assert interval.mid == pytest.approx(math.exp(0.022))
    assert math.log(interval.mid / interval.low) == pytest.approx(4.3027 * 0.01 / math.sqrt(5), rel=1e-4)
    pair = welch(logs, logs, planned=(logs[:3], logs[:3]))
    assert pair.error == pytest.approx(0.01 * math.sqrt(2 / 5))
    assert pair.degrees == pytest.approx(4)


def test_the_preset_determines_the_planned_processes() -> None:
    assert all(policy.planned == policy.rounds for policy in POLICIES.values())
    assert budget_policy(60).planned == 3
    records = some_rounds(1.0, 1.01, 0.99, 1.2, 1.3)
    ends = [
        compare_runs(a_run(records, policy=policy), a_run(records, policy=policy)).verdicts[0].high
        for policy in (Policy(name="fixed", rounds=5), budget_policy(60))
    ]
    assert ends[0] == pytest.approx(1.189, abs=0.05)
    assert ends[1] == pytest.approx(math.exp(2.776 * 0.01 * math.sqrt(2 / 5)), rel=1e-3)


def test_only_first_rounds_are_compared_if_one_side_needed_more() -> None:
    """The further rounds of the wild side are slow: compared as a whole, it would look 4 % slower."""
    calm, wild = [1.0, 1.001, 0.999, 1.0, 1.0], [1.0, 1.03, 0.97, 1.01, 0.99, 1.1, 1.1, 1.1, 1.1, 1.1]
    policy = POLICIES["default"]
    ref, new = (a_run(some_rounds(*steps), policy=policy) for steps in (calm, wild))
    there, back = compare_runs(ref, new).verdicts[0], compare_runs(new, ref).verdicts[0]
    assert there.ratio == pytest.approx(1.0, abs=2e-3)
    assert back.ratio == pytest.approx(1 / (there.ratio or 0))
    assert (there.ref_processes, there.new_processes) == (5, 5)
    assert (there.ref_unused, there.new_unused) == (0, 5)
    compared_runs = compare_runs(ref, new)
    assert "5 v 5 of 10 processes" in comparison.sentences(compared_runs.verdicts[0])[0]
    for compared, is_noted in ((compared_runs, True), (compare_runs(new, new), False)):
        notes = comparison.comparison_document(compared, compared.verdicts).notes
        assert (comparison.UNUSED in notes) == is_noted
    fixed = a_run(some_rounds(*wild), policy=Policy(name="fixed", rounds=10))
    assert compare_runs(ref, fixed).verdicts[0].new_processes == 10  # the user chose the number of rounds
    assert compare_runs(new, new).verdicts[0].new_processes == 10


def test_all_planned_rounds_and_all_of_a_budget_count() -> None:
    quick, default = POLICIES["quick"], POLICIES["default"]
    ref = a_run(some_rounds(1.0, 1.001, 0.999), policy=quick)
    new = a_run(some_rounds(*[1.0] * 10), policy=default)
    verdict = compare_runs(ref, new).verdicts[0]
    assert (verdict.ref_processes, verdict.new_processes) == (3, 5)
    ref, new = (a_run(some_rounds(*[1.0] * count), policy=budget_policy(60)) for count in (4, 7))
    verdict = compare_runs(ref, new).verdicts[0]
    assert (verdict.ref_processes, verdict.new_processes) == (4, 7)


REDUCED = 25


@pytest.mark.real
@pytest.mark.parametrize(
    ("policy", "noise"),
    [
        (POLICIES["default"], "3 %"),
        (budget_policy(BUDGET_S), "3 %"),
        (budget_policy(BUDGET_S), "1 %, of 6 cases 3 %"),
        (POLICIES["default"], "skewed processes, scale 2 %"),
    ],
)
def test_adaptive_rounds_keep_error_rates_and_coverage(policy: Policy, noise: str) -> None:
    alarms, coverage = rates(policy, NOISE[noise], REDUCED)
    assert alarms <= highest_rate(0.05, REDUCED)
    assert coverage >= 0.94 - 2 * math.sqrt(0.94 * 0.06 / (REDUCED * CASES))


@pytest.mark.real
def test_three_processes_in_two_modes_do_not_alarm() -> None:
    error_rates = rates(POLICIES["quick"], partial(two_modes, spread=0.001), 30)
    assert error_rates[0] <= highest_rate(0.05, 30)


def test_modes_are_detected_in_few_processes() -> None:
    source = np.random.default_rng(2)
    normal = source.normal(0, 0.01, (500, 60, 3))
    assert np.mean([are_clustered(groups.tolist()) for groups in normal]) <= 0.006
    clustered = np.where(source.random((60, 3)) < 0.5, 0.0, 0.1) + source.normal(0, 1e-3, (60, 3))
    assert are_clustered(clustered.tolist())
    assert not are_clustered([])
    assert not are_clustered([[0.0, 0.0, 0.0]] * 60)  # times of a clock without noise
    assert not are_clustered([[0.0, 0.0, 0.1, 0.1, 0.1]] * 60)  # five processes show both modes


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=4, unique=True), min_size=1, max_size=12))
def test_clusters_follow_from_the_smaller_gap_of_three_values(groups: list[list[float]]) -> None:
    """For normal values the direction of the deviations is uniform; Fisher's method combines groups."""
    ps = []
    for group in groups:
        low, middle, high = sorted(group[:3])
        if high - low >= 1e-4:
            share = min(middle - low, high - middle) / (high - low)
            ps.append(max(1 - 6 / math.pi * math.atan((1 - 2 * share) / math.sqrt(3)), 0.01))
    joint = oracle.chi2.sf(-2 * math.fsum(map(math.log, ps)), 2 * len(ps)) if ps else 1.0
    assume(abs(joint - 1e-3) > 1e-9)
    assert are_clustered(groups) is bool(joint < 1e-3)


def test_drifts_widen_a_difference_by_welch_and_satterthwaite() -> None:
    difference = Difference(0.1, 0.02, 4.0)
    drifts = [
        Drift(change=0.0, cases=9, is_trend=True, variance=3e-4, degrees=1.0),
        Drift(change=0.0, cases=9, is_trend=False, variance=1e-4, degrees=2.0),
    ]
    (widened,) = add_drifts(drifts, [difference])
    assert (widened.mid, widened.error) == pytest.approx((0.1, math.sqrt(8e-4)))
    assert widened.degrees == pytest.approx(8e-4**2 / (4e-4**2 / 4 + 3e-4**2 / 1 + 1e-4**2 / 2))
    assert add_drifts([], [difference]) == [difference]


def test_sessions_of_two_runs_widen_their_difference() -> None:
    difference = Difference(0.1, 0.02, 4.0)
    widened = add_session_variance(difference, 0.03**2, 7.0)
    assert (widened.mid, widened.error, widened.degrees) == pytest.approx((0.1, 0.03 * math.sqrt(2), 7.0))
    assert add_session_variance(difference, 0.01**2, 7.0) == difference


@pytest.mark.parametrize("levels", [(0.025,), (0.05, 0.025)])
@pytest.mark.parametrize("margin", [0.0, 3.0])
@pytest.mark.parametrize("degrees", [2.0, 4.0, 40.0])
def test_the_detectable_change_is_found_four_times_in_five(
    levels: tuple[float, ...], margin: float, degrees: float
) -> None:
    """True errors, and errors of new tests, vary about the known one as the root of χ²(ν)/ν."""
    source, count, error = np.random.default_rng(1), 200_000, 0.01
    change = detectable_change(margin * error, error, degrees, levels) / error
    true_errors = np.sqrt(source.chisquare(degrees, count) / degrees)
    is_found = np.ones(count, bool)
    for level in levels:
        new_errors = np.sqrt(source.chisquare(degrees, count) / degrees)
        measured = change * true_errors + source.normal(size=count)
        is_found &= measured > np.maximum(margin * true_errors, oracle.t.ppf(1 - level, degrees) * new_errors)
    assert is_found.mean() == pytest.approx(0.8, abs=0.012)


def a_test(number: int, mid: float, error: float = 0.01, *, interleaved: bool = False) -> CaseTest:
    """Test of a case that became slower by this logarithm; a quarter of its variance is the run's own."""
    difference = Difference(mid, error, 4.0)
    match = BaselineMatch(
        case=f"case {number}",
        metric=METRICS[0],
        sessions=(),
        new=CaseDigest(),
        new_logs=[math.log(2.0) + mid] * 3,
        days=[[math.log(2.0)]] * 6,
        dates=tuple(range(6)),
        verdict=None,
        reason="",
        interleaved=interleaved,
    )
    deviation = SessionDeviation(
        difference=difference,
        spread=error,
        days=6,
        predicted_deviation=error,
        own_variance=error**2 / 4,
        sessions_dominate=True,
    )
    limit = Threshold(0.03, "default")
    return CaseTest(match=match, limit=limit, difference=difference, deviation=deviation)


@given(st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=6), st.integers(0, 5), st.booleans())
def test_results_have_student_s_p_adjusted_by_holm(mids: list[float], untested: int, confirmed: bool) -> None:
    tests = [a_test(number, mid) for number, mid in enumerate(mids)]
    rate = replace(tests[0], match=replace(tests[0].match, metric=metric_named("items_per_s")))
    inverse = replace(rate, difference=Difference(-mids[0], 0.01, 4.0))
    untestable = replace(tests[0], match=replace(tests[0].match, case="untestable"), difference=None)
    assert family_size([*tests, inverse, untestable]) == len(tests)
    family = family_of(len(mids) + untested, stored=True, confirmed=confirmed, interleaved=False)
    by_key = adjusted_results([*tests, inverse, untestable], family)
    results = list(by_key.values())
    assert list(by_key) == [test.match.key for test in (*tests, inverse)]
    tails = {sign: oracle.t.sf(sign * np.array(mids) / 0.01, 4.0) for sign in (1, -1)}
    adjusted = {}
    for sign, ps in tails.items():
        order, level = np.argsort(ps), 0.0
        for rank, index in enumerate(order):
            level = max(level, min(1.0, max(family.size - rank, 5) * ps[index]))
            adjusted[sign, int(index)] = level
    half = oracle.t.ppf(0.975, 4.0) * 0.01
    for index, (mid, result) in enumerate(zip(mids, results, strict=False)):
        assert result.p == pytest.approx(tails[1][index])
        two_sided = 2 * min(tails[1][index], tails[-1][index])
        assert result.p_holm == pytest.approx(max(two_sided, min(adjusted[1, index], adjusted[-1, index])))
        assert (result.ratio, result.low, result.high) == pytest.approx(
            (math.exp(mid), math.exp(mid - half), math.exp(mid + half))
        )
        assert (result.ref, result.new) == pytest.approx((2.0, 2.0 * math.exp(mid)))
        assert (result.family, result.processes, result.against, result.degrees) == (family.size, 3, 6, 4.0)
    assert (results[-1].p, results[-1].p_holm) == (results[0].p, results[0].p_holm)


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("error", [0.01, 0.001])
def test_a_check_detects_four_in_five_of_changes_of_the_stated_size(size: int, error: float) -> None:
    def mde(*, stored: bool, confirmed: bool, interleaved: bool) -> float:
        """Smallest detectable change, as a logarithm."""
        family = family_of(size, stored=stored, confirmed=confirmed, interleaved=interleaved)
        tested = a_test(0, 0.0, error, interleaved=not stored)
        return math.log1p(adjusted_results([tested], family)[tested.match.key].mde)

    def t(p: float) -> float:
        return float(oracle.t.ppf(p, 4.0)) * error

    margin, limit = math.log(1.03), t(1 - 0.05 / max(size, 5))
    once = mde(stored=True, confirmed=False, interleaved=False)
    assert once == pytest.approx(max(margin, limit) + t(0.8))
    twice = mde(stored=True, confirmed=True, interleaved=False)
    assert twice == pytest.approx(max(margin, limit) + t(0.8 ** (1 / 1.25)))
    with_code = mde(stored=True, confirmed=True, interleaved=True)
    assert with_code == pytest.approx(max(margin, 0.0) + t(math.sqrt(0.8)))
    pairs = mde(stored=False, confirmed=False, interleaved=True)
    assert pairs == pytest.approx(detectable_change(margin, error, 4.0, (0.05 / max(size, 2),)))
    pairs_twice = mde(stored=False, confirmed=True, interleaved=True)
    assert pairs_twice == pytest.approx(detectable_change(margin, error, 4.0, (0.05, 0.025)))


@pytest.mark.parametrize("clustered", [True, False])
def test_pairs_share_the_variance_of_all_cases_unless_they_are_clustered(*, clustered: bool) -> None:
    source = np.random.default_rng(3)
    cases = [a_case(params={"m": number}) for number in range(60)]
    modes = np.where(source.random((60, 3)) < 0.5, 0.0, 0.1) + source.normal(0, 1e-4, (60, 3))
    logs = modes if clustered else source.normal(0, 0.03, (60, 3))
    level = source.normal(0, 0.1, (60, 3))  # of both processes of a pair
    ref = a_digest([(case, np.exp(row).tolist()) for case, row in zip(cases, level, strict=True)])
    new = a_digest([(case, np.exp(row).tolist()) for case, row in zip(cases, level + logs, strict=True)])
    matches = [match_interleaved(name, ref.cases[name], new.cases[name], METRICS[0]) for name in new.cases]
    differences = paired_differences(matches)
    own = [stats.paired(match.pairs) for match in matches]
    expected = (at_least_the_mean if clustered else shared_variance)(own)
    assert list(differences.values()) == expected
    few = paired_differences(matches[:2], matches[2:])
    assert few == {match.key: differences[match.key] for match in matches[:2]}


def test_a_comparison_notes_clustered_processes() -> None:
    logs = partial(two_modes, spread=0.001)
    source = np.random.default_rng(3)
    ref, new = (simulated_run(POLICIES["quick"], logs(source)) for _ in range(2))
    compared_runs = compare_runs(ref, new)
    assert compared_runs.modes
    assert "processes form clusters" in rendered(
        comparison.comparison_document(compared_runs, ()), "terminal"
    )
    assert comparison.comparison_document(compared_runs, ()).data["modes"]


def test_groups_that_vary_significantly_more_are_pooled() -> None:
    def difference(variance: float, degrees: float = 2.0) -> Difference:
        return Difference(0.0, math.sqrt(variance / 3), degrees, share=1 / 3)

    calm, wild = [0.5, 1.0, 1.5], [0.1, 4.0, 12.0]
    groups = [("calm", value) for value in calm] + [("wild", value) for value in wild] + [("single", 50.0)]
    pooled = larger_variances(
        [(name, difference(variance)) for name, variance in groups], typical_variance=1.0
    )
    assert pooled.keys() == {"wild"}
    assert pooled["wild"] == pytest.approx((16.1 / 3, 6.0))


durations = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=50)


@given(durations, st.floats(0, 1))
def test_quantiles_equal_those_of_numpy(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-12)


def test_a_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_the_headline_is_the_geometric_mean_with_a_t_interval_of_the_logs() -> None:
    medians = [1.0, 1.1, 0.9, 1.05, 1.2]
    logs = np.log(medians)
    low, high = oracle.t.interval(0.95, 4, loc=logs.mean(), scale=oracle.sem(logs))
    interval = headline(medians)
    assert interval.mid == pytest.approx(math.exp(logs.mean()))
    assert interval.low == pytest.approx(math.exp(low))
    assert interval.high == pytest.approx(math.exp(high))
    one = headline([2.0])
    assert (one.low, one.high) == (None, None)
    assert one.mid == pytest.approx(2.0)


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 30])
def test_t_quantiles_equal_those_of_scipy(degrees: int) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(oracle.t.ppf(0.975, degrees))


@pytest.mark.parametrize("n", [1, 5, 6, 10, 30, 45, 68, 500, 999, 1000, 5000])
def test_binomial_ranks_leave_at_most_the_tail_below(n: int) -> None:
    rank = _binomial_rank(n, 0.025)
    assert oracle.binom.cdf(rank - 1, n, 0.5) <= 0.0251
    assert oracle.binom.cdf(rank, n, 0.5) > 0.0249


@given(durations)
def test_the_mad_equals_that_of_scipy(values: list[float]) -> None:
    assert mad(values) == pytest.approx(float(oracle.median_abs_deviation(values)), abs=1e-12)


def effective(values: list[float]) -> float:
    """n / (1 + 2 Σ ρₖ), up to the first ρₖ that is not positive."""
    centred = np.array(values) - np.mean(values)
    rhos = [centred[lag:] @ centred[:-lag] / (centred @ centred) for lag in range(1, len(values) // 2)]
    first = next((index for index, rho in enumerate(rhos) if rho <= 0), len(rhos))
    return float(len(values) / (1 + 2 * sum(rhos[:first])))


series = st.lists(st.integers(-20, 20), min_size=4, max_size=40).map(
    lambda steps: [float(place) for place in np.cumsum(steps) + 100]
)


@given(series)
def test_an_effective_count_sums_the_first_positive_correlations(values: list[float]) -> None:
    assume(np.std(values) > 0.1)
    assert effective_count(values) == pytest.approx(effective(values))
    assert effective_count([1.0] * len(values)) == len(values)


@given(series, st.sampled_from((0.95, 0.99)))
def test_an_interval_of_a_median_has_binomial_ranks(values: list[float], confidence: float) -> None:
    assume(np.std(values) > 0.1)
    count = max(1, math.floor(effective(values) + 1e-9))
    assume(abs(effective(values) - round(effective(values))) > 1e-6)
    tail = (1 - confidence) / 2
    rank = next(rank for rank in range(count + 1) if oracle.binom.cdf(rank, count, 0.5) > tail)
    expected = (min(values), max(values))
    if rank:
        share = (rank - 0.5) / count
        expected = (float(np.quantile(values, share)), float(np.quantile(values, 1 - share)))
    assert median_interval(values, confidence) == pytest.approx(expected)


@given(
    st.floats(0.01, 30), st.floats(1, 20), st.one_of(st.floats(0.5, 60), st.just(math.inf)), st.floats(1, 200)
)
def test_a_prior_moderates_a_variance_by_degrees_of_freedom(
    ratio: float, degrees: float, prior_degrees: float, most: float
) -> None:
    prior, variance = VariancePrior(1e-4, prior_degrees, most), 1e-4 * ratio
    if math.isinf(prior_degrees):
        p, moderated = oracle.chi2.sf(ratio * degrees, degrees), 1e-4
    else:
        p = oracle.f.sf(ratio, degrees, prior_degrees)
        moderated = (prior_degrees * 1e-4 + degrees * variance) / (prior_degrees + degrees)
    pooled = max(degrees, min(prior_degrees + degrees, most))
    assert prior.p_of(variance, degrees) == pytest.approx(p, abs=1e-12)
    assert prior.posterior(variance, degrees) == pytest.approx((max(variance, moderated), pooled))
    assume(min(abs(p - 0.02), abs(p - 0.1)) > 1e-9)
    expected = (moderated if p >= 0.1 else variance, degrees if p < 0.02 else pooled)
    assert prior.moderate(variance, degrees) == pytest.approx(expected)


def test_correlated_cases_have_fewer_degrees_of_freedom() -> None:
    prior = variance_prior([1.0, 2.0, 4.0, 1.5], [4.0, 5.0, 4.0, 3.0], 0.25)
    assert prior.max_degrees == pytest.approx(16 / (1 + 3 * 0.25))


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=8), st.lists(st.floats(-1, 1), min_size=3, max_size=8))
def test_planned_values_determine_the_variance_of_a_difference(
    before: list[float], after: list[float]
) -> None:
    planned = before[:3], after[:3]
    variances = [max(float(np.var(side, ddof=1)), 1e-8) for side in planned]
    share = 1 / len(before) + 1 / len(after)
    parts = [variances[0] / len(before), variances[1] / len(after)]
    equal = [variance * share / 2 for variance in variances]
    assume(not math.isclose(sum(equal), sum(parts)))  # rounding would decide between them
    if sum(equal) > sum(parts):
        parts = equal
    difference = welch(before, after, planned=planned)
    assert difference.mid == pytest.approx(np.mean(after) - np.mean(before), abs=1e-12)
    assert difference.error**2 == pytest.approx(sum(parts))
    degrees = sum(parts) ** 2 / sum(part**2 / 2 for part in parts)
    assert difference.degrees == pytest.approx(degrees)
    assert difference.share == pytest.approx(share)
