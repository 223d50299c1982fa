"""One run against stored sessions: the error of the difference, and the substitute for missing sessions."""

import itertools
import math
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as oracle

from benchbench.judging.sessions import MIN_SESSIONS, days_of, session_deviation
from benchbench.stats import deviation, holm, mean, paired
from benchbench.store.disk import start_time
from tests.factories import a_run_info

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


def test_one_session_uses_the_assumed_spread() -> None:
    deviation = session_deviation([[0.0, 0.001, -0.001]], [0.05, 0.051, 0.049], assumed=0.02)
    assert deviation.spread is None
    assert deviation.is_provisional
    assert deviation.difference.error == pytest.approx(0.02 * math.sqrt(2))
    assert deviation.difference.degrees == MIN_SESSIONS - 1


def test_each_missing_session_counts_as_differing_by_the_assumed_spread() -> None:
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


def test_a_small_family_is_corrected_as_one_of_the_minimum_size() -> None:
    assert holm([0.01], min_family=5) == pytest.approx([0.05])
    assert holm([0.01, 0.02], min_family=5) == pytest.approx([0.05, 0.1])
    assert holm([0.001] * 10, min_family=5) == holm([0.001] * 10)


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
