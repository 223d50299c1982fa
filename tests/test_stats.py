"""Statistics compared with scipy, and their properties."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as oracle

from benchbench.stats import (
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


def test_one_process_has_no_interval() -> None:
    interval = headline([2.0])
    assert interval.low is None
    assert interval.high is None
    assert interval.mid == pytest.approx(2.0)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=10), st.floats(1e-3, 1e3))
def test_a_change_of_unit_scales_the_headline_and_its_interval(values: list[float], factor: float) -> None:
    before, after = headline(values), headline([value * factor for value in values])
    assert after.mid == pytest.approx(before.mid * factor, rel=1e-6)
    assert before.low is not None
    assert after.low == pytest.approx(before.low * factor, rel=1e-6)


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
