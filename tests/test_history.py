"""Change points on simulated noise and labelled series, against independent methods, and their properties."""

import csv
import doctest
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats as oracle

from benchbench.judging.change_points import History, Segment, best_partition, change_points
from studies.series import UNCHANGED, among_spikes, correlated, independent, there_and_back

Logs = NDArray[np.float64]
HERE = Path(__file__).parent
DATA = HERE / "data/regression"
MARGIN = 5
seeds = st.integers(0, 2**32 - 1)
lawful = settings(max_examples=60, deadline=None, derandomize=True)


def indices(history: History) -> list[int]:
    return [change.index for change in history.changes]


def found_in(y: Logs, **options: float) -> list[int]:
    return indices(change_points(np.exp(y).tolist(), **options))  # type: ignore[arg-type]


@pytest.mark.real
@pytest.mark.parametrize(
    ("noise", "series", "most"),
    [
        ("independent, 1 %", 200, 6),
        ("log-normal, 10 %", 200, 6),
        ("t₃, scale 2 %", 200, 6),
        ("1 % with 3 % of spikes × 1.3", 200, 6),
        ("AR(1), φ = 0.5, 3 %", 200, 6),
        ("AR(1), φ = 0.8", 200, 20),
        ("AR(1), φ = 0.9", 60, 6),
        ("three machines, 3 runs on each", 60, 6),
        ("two machines, 5 runs on each", 60, 6),
    ],
)
def test_a_stable_series_of_100_runs_rarely_has_a_change(noise: str, series: int, most: int) -> None:
    source, (logs, _) = np.random.default_rng(4), UNCHANGED[noise]
    assert sum(bool(found_in(logs(source, 100))) for _ in range(series)) <= most


def test_recurring_levels_are_reported_but_are_not_changes() -> None:
    y = 0.1 * np.repeat([0, 1, 0, 1], 8) + independent(np.random.default_rng(3), 32)
    history = change_points(np.exp(y).tolist())
    assert not history.changes
    assert list(history.recurring) == pytest.approx([1.0, math.exp(0.1)], rel=0.01)
    assert [(segment.start, segment.stop) for segment in history.segments] == [(0, 32)]


def test_single_runs_at_a_recurring_level_are_not_changes() -> None:
    y = independent(np.random.default_rng(3), 40, 0.005)
    y[20:23] += 0.15
    (first, second) = indices(change_points(np.exp(y).tolist()))
    assert (first, second) == (20, 23)
    y[9] += 0.15  # the segment recurs once, and so does this run
    assert not change_points(np.exp(y).tolist()).changes
    y[20:23] -= 0.15
    assert not change_points(np.exp(y).tolist()).recurring


@pytest.mark.parametrize("spikes", [1, 2, 3, 5])
def test_a_step_is_found_despite_earlier_spikes_of_its_height(spikes: int) -> None:
    assert sum(among_spikes(np.random.default_rng(number), spikes) for number in range(20)) >= 16


def test_runs_with_a_third_at_another_level_have_no_change() -> None:
    assert sum(among_spikes(np.random.default_rng(number), 18) for number in range(20)) <= 2


def test_a_change_and_its_reversal_are_two_changes() -> None:
    assert sum(there_and_back(np.random.default_rng(number)) for number in range(20)) >= 19


def test_short_correlated_series_rarely_have_a_change() -> None:
    logs, runs = UNCHANGED["the same, 20 runs  "]
    source = np.random.default_rng(4)
    assert sum(bool(found_in(logs(source, runs))) for _ in range(100)) <= 22


def labelled(name: str) -> dict[str, list[dict[str, str]]]:
    series: dict[str, list[dict[str, str]]] = {}
    with (DATA / name).open() as file:
        for row in csv.DictReader(file):
            series.setdefault(row.get("series", name), []).append(row)
    return series


def numbers(rows: list[dict[str, str]]) -> list[float]:
    """The values, or their exponentials if some have no logarithm, so that the method sees the values."""
    values = [float(row["value"]) for row in rows]
    return values if min(values) > 0 else np.exp(values).tolist()


def marked(rows: list[dict[str, str]], column: str) -> list[int]:
    return [int(row["index"]) for row in rows if row[column] == "1"]


def hits(indices_found: list[int], truth: list[int]) -> int:
    """Number of pairs within the margin; each true point counts once, for the nearest point found."""
    remaining = list(indices_found)
    for point in truth:
        near = min(remaining, key=lambda index: abs(index - point), default=None)
        if near is not None and abs(near - point) <= MARGIN:
            remaining.remove(near)
    return len(indices_found) - len(remaining)


UNIT_CASES = labelled("unit_cases.csv")
TCPD = labelled("tcpd_series.csv")
TRUTH = {
    name: int(rows[0]["truth_by_construction"]) for name, rows in labelled("tcpd_annotations.csv").items()
}
TIGERBEETLE = labelled("otava_tigerbeetle.csv")["otava_tigerbeetle.csv"]


@pytest.mark.parametrize("name", UNIT_CASES)
def test_no_change_of_the_unit_cases_is_missed(name: str) -> None:
    rows = UNIT_CASES[name]
    truth = marked(rows, "cp")
    changes = indices(change_points(numbers(rows)))
    assert all(any(abs(index - point) <= 1 for index in changes) for point in truth)


def test_an_outlier_before_a_step_is_not_a_change() -> None:
    history = change_points(numbers(UNIT_CASES["mongo_outlier_then_step"]))
    assert history.outliers == (2,)
    assert indices(history) == [15]


@pytest.mark.parametrize("name", TCPD)
def test_the_quality_control_series_have_exactly_the_change_they_were_built_with(name: str) -> None:
    (index,) = indices(change_points(numbers(TCPD[name])))
    assert abs(index - TRUTH[name]) <= MARGIN


def test_changes_of_five_percent_in_a_throughput_history_match_the_labels() -> None:
    history = change_points(numbers(TIGERBEETLE), threshold=0.05, better="higher")
    truth = marked(TIGERBEETLE, "cp_ge5pct")
    assert hits(indices(history), truth) == len(truth) == len(history.changes) == 2
    assert [change.direction for change in history.changes] == ["slower", "faster"]
    assert 10 in history.outliers


def test_smaller_changes_in_that_history_agree_with_otava() -> None:
    changes = indices(change_points(numbers(TIGERBEETLE), better="higher"))
    assert len(changes) > 2
    assert hits(changes, marked(TIGERBEETLE, "otava_p001_any_size")) == len(changes)


def test_f1_over_all_labelled_series_is_at_least_seventy_percent() -> None:
    """The threshold is 3 %, although two of the labels mark only changes of 5 % and more."""
    judged = [(numbers(rows), marked(rows, "cp")) for rows in UNIT_CASES.values()]
    judged += [(numbers(rows), [TRUTH[name]]) for name, rows in TCPD.items()]
    judged += [(numbers(TIGERBEETLE), marked(TIGERBEETLE, "cp_ge5pct"))]
    results = [(indices(change_points(values)), truth) for values, truth in judged]
    true = sum(hits(changes, truth) for changes, truth in results)
    assert 2 * true / sum(len(changes) + len(truth) for changes, truth in results) >= 0.70


REAL = labelled("mongodb_series.csv")["real_series"]


def test_a_real_stable_series_has_its_outliers_and_no_change() -> None:
    history = change_points(numbers(REAL))
    assert history.outliers == tuple(marked(REAL, "gesd_outlier"))
    assert not history.changes


def test_a_step_of_ten_percent_in_real_noise_is_found_three_runs_later() -> None:
    values = numbers(REAL)
    lengths = range(20, len(values) + 1)
    stepped = [values[: n - 3] + [1.1 * value for value in values[n - 3 : n]] for n in lengths]
    hits_by_length = [
        any(abs(i - n + 3) <= 3 for i in indices(change_points(v)))
        for n, v in zip(lengths, stepped, strict=True)
    ]
    assert sum(hits_by_length) >= 0.85 * len(lengths)
    flagged = [bool(change_points(values[:n]).changes) for n in lengths]
    assert sum(flagged) <= 0.15 * len(lengths)


def test_the_test_and_interval_of_a_change_equal_scipy_for_uncorrelated_noise() -> None:
    y = 0.01 * (np.arange(20) % 2) + 0.2 * (np.arange(20) >= 12)
    (change,) = change_points(np.exp(y).tolist()).changes
    test = oracle.ttest_ind(y[12:], y[:12])
    low, high = test.confidence_interval()
    assert change.ratio == pytest.approx(math.exp(y[12:].mean() - y[:12].mean()))
    assert change.p == pytest.approx(test.pvalue, rel=1e-6)
    assert (change.low, change.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_correlated_noise_widens_the_interval_and_counts_for_fewer_runs() -> None:
    y = correlated(np.random.default_rng(6), 60, 0.5) + 0.5 * (np.arange(60) >= 30)
    (change,) = change_points(np.exp(y).tolist()).changes
    assert change.index == 30
    residuals = np.concatenate([y[:30] - y[:30].mean(), y[30:] - y[30:].mean()])
    phi = residuals[1:] @ residuals[:-1] / (residuals @ residuals)
    phi = (phi + 2 / 60) / (1 - 6 / 60)  # Marriott & Pope 1954, two means
    inflation = (1 + phi) / (1 - phi)
    assert inflation > 2
    error = math.sqrt(residuals @ residuals / 58 * inflation * 2 / 30)
    t = oracle.t(58 / inflation)
    assert change.p == pytest.approx(2 * t.sf(math.log(change.ratio) / error))
    assert math.log(change.high / change.low) == pytest.approx(2 * t.ppf(0.975) * error)


def test_every_reported_change_is_significant() -> None:
    """Series whose noise grows tenfold: the early noise does not predict the late noise."""
    source = np.random.default_rng(7)
    series = [np.exp(source.normal(0, [0.005] * 20 + [0.05] * 10)).tolist() for _ in range(50)]
    changes = [change for values in series for change in change_points(values).changes]
    assert changes
    assert all(change.p < 0.001 for change in changes)


def least_cost(y: list[float], penalty: float) -> float:
    """Cost by the textbook recursion over every last segment, with each sum of squares computed anew."""
    best = [0.0] + [math.inf] * len(y)
    for stop in range(3, len(y) + 1):
        best[stop] = penalty + min(best[start] + spread(y[start:stop]) for start in range(stop - 2))
    return best[-1]


def spread(y: list[float]) -> float:
    mean = math.fsum(y) / len(y)
    return math.fsum((value - mean) ** 2 for value in y)


@lawful
@given(st.lists(st.floats(-5, 5), min_size=3, max_size=20), st.floats(1e-3, 20))
def test_the_partition_has_the_least_cost(y: list[float], penalty: float) -> None:
    edges = best_partition(np.array(y), penalty)
    assert (edges[0], edges[-1]) == (0, len(y))
    assert all(stop - start >= 3 for start, stop in pairwise(edges))
    cost = math.fsum(spread(y[start:stop]) + penalty for start, stop in pairwise(edges))
    assert cost == pytest.approx(least_cost(y, penalty), abs=1e-9)


def stepped(seed: int) -> Logs:
    """A series with 1 % noise; three of four have one to three steps."""
    source = np.random.default_rng(seed)
    n = int(source.integers(6, 80))
    y = independent(source, n)
    for _ in range(source.integers(0, 4)):
        y[int(source.integers(0, n)) :] += source.uniform(-0.4, 0.4)
    return y


@lawful
@given(seeds, st.floats(1e-6, 1e6))
def test_a_change_of_unit_moves_no_change(seed: int, factor: float) -> None:
    values = np.exp(stepped(seed))
    before, after = change_points(values.tolist()), change_points((factor * values).tolist())
    assert indices(before) == indices(after)
    assert before.outliers == after.outliers
    assert [c.ratio for c in before.changes] == pytest.approx([c.ratio for c in after.changes])


@lawful
@given(seeds)
def test_a_reversed_series_has_the_mirrored_changes(seed: int) -> None:
    y = stepped(seed)
    assert found_in(y[::-1]) == sorted(len(y) - index for index in found_in(y))


@lawful
@given(seeds)
def test_the_better_direction_only_turns_the_direction_of_changes(seed: int) -> None:
    values = np.exp(stepped(seed)).tolist()
    lower, higher = change_points(values), change_points(values, better="higher")
    assert lower.segments == higher.segments
    assert all(a.direction != b.direction for a, b in zip(lower.changes, higher.changes, strict=True))
    assert all((change.direction == "slower") == (change.ratio > 1) for change in lower.changes)


@lawful
@given(seeds)
def test_segments_cover_the_series_and_ratios_follow_from_their_levels(seed: int) -> None:
    y = stepped(seed)
    history = change_points(np.exp(y).tolist())
    assert (history.segments[0].start, history.segments[-1].stop) == (0, len(y))
    for change, (before, after) in zip(history.changes, pairwise(history.segments), strict=True):
        assert before.stop == change.index == after.start
        assert change.ratio == pytest.approx(after.level / before.level)
        assert change.low < change.ratio < change.high


@lawful
@given(st.floats(1e-9, 1e9), st.integers(1, 100))
def test_a_constant_series_has_neither_changes_nor_outliers(value: float, count: int) -> None:
    history = change_points([value] * count)
    assert history == History((), (), (Segment(0, count, history.segments[0].level),))
    assert history.segments[0].level == pytest.approx(value)


@pytest.mark.parametrize("after", range(3, 18))
def test_a_clean_step_near_the_end_has_no_outliers(after: int) -> None:
    y = independent(np.random.default_rng(5), 20)
    y[20 - after :] += 0.5
    history = change_points(np.exp(y).tolist())
    assert indices(history) == [20 - after]
    assert not history.outliers


def test_alternating_values_have_no_outliers() -> None:
    assert change_points([1.0, 1.1] * 20 + [1.0]).outliers == ()


@lawful
@given(seeds, st.floats(0, 1), st.floats(-3, 3).filter(lambda size: abs(size) > 0.3))
def test_one_spike_is_an_outlier_and_never_a_change(seed: int, place: float, size: float) -> None:
    source = np.random.default_rng(seed)
    y = independent(source, int(source.integers(20, 80)))
    at = round(place * len(y))
    history = change_points(np.exp(np.insert(y, at, size)).tolist())
    assert at in history.outliers
    assert not history.changes


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0, 1.0, 2.0, 2.0]])
def test_fewer_than_six_runs_have_no_change(values: list[float]) -> None:
    assert not change_points(values).changes


def test_a_step_between_equal_values_is_found_with_three_runs_on_either_side() -> None:
    (change,) = change_points([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]).changes
    assert change.index == 3
    assert change.ratio == pytest.approx(2.0)
    assert change.low < change.ratio < change.high
    assert 0 < change.p < 0.001


def test_a_significant_change_below_the_threshold_is_not_reported() -> None:
    y = independent(np.random.default_rng(3), 200) / 10
    y[100:] += math.log(1.02)
    assert found_in(y) == []
    assert found_in(y, threshold=0.01) == [100]


def test_no_change_is_reported_across_a_boundary() -> None:
    y = independent(np.random.default_rng(4), 60)
    y[20:] += 0.5
    y[40:] += 0.2
    values = np.exp(y).tolist()
    history = change_points(values, boundaries=[20])
    assert indices(history) == [40]
    assert [(segment.start, segment.stop) for segment in history.segments] == [(0, 20), (20, 40), (40, 60)]
    assert indices(change_points(values)) == [20, 40]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_logarithm_is_an_error_that_names_its_run(value: float) -> None:
    with pytest.raises(ValueError, match=r"^run 2 is .*: change points need finite values above 0$"):
        change_points([1.0, 1.0, value, 1.0])


@pytest.mark.parametrize("boundary", [-1, 0, 4])
def test_a_boundary_outside_the_series_is_an_error(boundary: int) -> None:
    with pytest.raises(ValueError, match="outside a series of 4 runs"):
        change_points([1.0] * 4, boundaries=[boundary])


def test_the_example_of_the_documentation_works() -> None:
    result = doctest.testfile(str(HERE.parent / "docs/history.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
