"""Statistics compared with scipy, and their properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as oracle

from benchbench.stats import (
    _binomial_rank,
    effective_count,
    headline,
    mad,
    median,
    median_interval,
    quantile,
    t_quantile,
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


@given(st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=10))
def test_the_interval_contains_the_headline(values: list[float]) -> None:
    interval = headline(values)
    assert interval.low is not None
    assert interval.high is not None
    assert interval.low <= interval.mid <= interval.high


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 30])
def test_t_quantiles_equal_those_of_scipy(degrees: int) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(oracle.t.ppf(0.975, degrees))


@pytest.mark.parametrize("n", [1, 5, 6, 10, 30, 45, 68, 500, 999, 1000, 5000])
def test_binomial_ranks_leave_at_most_the_tail_below(n: int) -> None:
    rank = _binomial_rank(n, 0.025)
    assert oracle.binom.cdf(rank - 1, n, 0.5) <= 0.0251
    assert oracle.binom.cdf(rank, n, 0.5) > 0.0249


def test_the_interval_of_a_median_has_its_stated_coverage() -> None:
    source = np.random.default_rng(1)
    covered = 0
    for _ in range(600):
        low, high = median_interval(source.lognormal(0.0, 0.1, 40).tolist())
        covered += low <= 1.0 <= high
    assert covered / 600 >= 0.93


def test_autocorrelated_samples_count_for_less() -> None:
    source = np.random.default_rng(2)
    noise = source.normal(size=4000)
    series = [0.0]
    for value in noise:
        series.append(0.5 * series[-1] + value)
    assert effective_count(noise.tolist()) == pytest.approx(4000, rel=0.15)
    assert effective_count(series) == pytest.approx(4000 / 3, rel=0.25)  # (1 − φ) / (1 + φ)


def test_constant_samples_are_all_independent() -> None:
    assert effective_count([1.0] * 10) == 10


@given(durations)
def test_the_mad_equals_that_of_scipy(values: list[float]) -> None:
    assert mad(values) == pytest.approx(float(oracle.median_abs_deviation(values)), abs=1e-12)
