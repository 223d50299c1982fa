"""The search for the version that changed the speed: its posterior, its next pair and its end."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchbench.judging.bisection import (
    LOOKS,
    MIN_CONFIRMING_PAIRS,
    ONE_STEP_PRIOR,
    SHARES,
    Belief,
    NextPair,
    SearchEnd,
    SearchResult,
    SearchRules,
    VersionPair,
    belief,
    estimate,
    fit,
    is_confirmed,
    judge_ends,
    median_version,
    most_probable,
    next_pair_or_result,
    shortest_span,
)
from studies.bisections import is_right, scenes, search, simulate_search

SEEDS = 100
STEP = math.log(1.05)
LAST = SearchRules(versions=10)
ENDS = (0.049, 0.047, 0.051, 0.03, 0.06, 0.05, 0.055, 0.045)


def pair(version: int, change: float, beside: int = 0) -> VersionPair:
    return VersionPair(version=version, beside=beside, change=change)


def span_of(result: NextPair | SearchResult) -> tuple[SearchEnd, int, int]:
    """The end of a search and its range, which must exist."""
    assert isinstance(result, SearchResult)
    assert result.span is not None
    return result.end, result.span.first, result.span.last


def change_at(steps: Mapping[int, float]) -> Callable[[NextPair], float]:
    """Exact changes of versions with these steps."""
    return lambda pair: math.fsum(size for at, size in steps.items() if pair.beside < at <= pair.version)


def ends(rules: SearchRules, *changes: float) -> list[VersionPair]:
    return [pair(rules.last, change) for change in changes or ENDS]


@pytest.mark.real
def test_a_planted_step_is_named_correctly() -> None:
    all_scenes = scenes(64, (0.05,), 0.02, SEEDS)
    results = [simulate_search(scene, seed) for seed, scene in enumerate(all_scenes)]
    named = [
        (result, scene)
        for result, scene in zip(results, all_scenes, strict=True)
        if result.end is SearchEnd.NAMED
    ]
    right = sum(is_right(result, scene) for result, scene in named)
    assert right >= 95
    assert len(named) - right <= 2


@pytest.mark.real
@pytest.mark.parametrize("versions", [5, 64])
def test_equal_versions_have_no_difference(versions: int) -> None:
    ends = Counter(
        simulate_search(scene, seed).end for seed, scene in enumerate(scenes(versions, (), 0.02, SEEDS))
    )
    assert ends[SearchEnd.NO_DIFFERENCE] >= 95
    assert ends[SearchEnd.NAMED] == 0


@pytest.mark.parametrize("step", [STEP, -STEP])
def test_exact_values_need_the_minimum_number_of_pairs(step: float) -> None:
    requests: list[NextPair] = []

    def measure(request: NextPair) -> float:
        requests.append(request)
        return change_at({11: step})(request)

    result, pairs = search(measure, rules := SearchRules(versions=32))
    assert span_of(result) == (SearchEnd.NAMED, 11, 11)
    assert len(pairs) == LOOKS[0] + math.ceil(math.log2(rules.last)) + MIN_CONFIRMING_PAIRS
    assert result.step is not None
    assert result.step.mid == pytest.approx(step)
    spans = [request.span for request in requests[LOOKS[0] :]]
    assert all(span and span.first <= 11 <= span.last and span.probability >= 0.95 for span in spans)
    confirming = [request for request in requests if request.beside]
    assert {(request.version, request.beside) for request in confirming} == {(11, 10)}
    result, pairs = search(lambda _: step, SearchRules(versions=2))
    assert (result.end, len(pairs)) == (SearchEnd.NAMED, LOOKS[0])  # the ends are neighbours


def test_a_named_range_has_all_versions_that_cannot_be_measured() -> None:
    def measure(request: NextPair) -> float | None:
        return None if 5 <= request.version < 36 else change_at({5: STEP})(request)

    result, _ = search(measure, SearchRules(versions=40))
    assert span_of(result) == (SearchEnd.NAMED, 5, 36)
    assert (result.exit_code, result.second) == (4, None)


def test_the_larger_step_is_named_and_the_range_of_the_smaller_reported() -> None:
    result, _ = search(change_at({7: 0.065, 20: 0.035}), SearchRules(versions=32))
    assert span_of(result) == (SearchEnd.NAMED, 7, 7)
    assert result.second is not None
    assert 7 < result.second.first <= 20 <= result.second.last
    assert result.whole is not None
    assert result.whole.mid == pytest.approx(0.1)
    assert result.step is not None
    assert result.step.mid == pytest.approx(0.065)


def test_an_end_that_cannot_be_drawn_pairs_ends_the_search() -> None:
    for end in (0, 4):
        result = next_pair_or_result([], SearchRules(versions=5), {end})
        assert isinstance(result, SearchResult)
        assert result.end is SearchEnd.UNMEASURED


def test_an_exhausted_search_returns_the_smallest_range() -> None:
    rules = SearchRules(versions=64, most=9)
    result = next_pair_or_result([*ends(rules), pair(32, 0.05)], rules)
    assert isinstance(result, SearchResult)
    assert result.span is not None
    assert (result.end, result.span.last <= 32) == (SearchEnd.RANGE, True)
    assert result.span.probability >= rules.confidence


def test_ends_are_judged_after_whole_looks_only() -> None:
    rules = SearchRules(versions=3)
    noisy = [0.2, -0.2] * LOOKS[-1]
    assert [judge_ends(noisy[:count], rules) for count in (1, 7, 8, 26)] == [None] * 4
    assert judge_ends(noisy[: LOOKS[-1]], rules) is SearchEnd.UNDECIDED
    assert judge_ends(ENDS, rules) is SearchEnd.NAMED
    assert judge_ends([0.0] * 8, rules) is SearchEnd.NO_DIFFERENCE


def test_a_version_that_does_not_differ_from_its_predecessor_is_not_named() -> None:
    rules = SearchRules(versions=4)
    wrong = [*ends(rules), *(pair(2, 0.05) for _ in range(5)), *(pair(1, 0.0) for _ in range(5))]
    assert next_pair_or_result(wrong, rules) == NextPair(2, 1)
    result = next_pair_or_result([*wrong, *(pair(2, 0.0, beside=1) for _ in range(9))], rules)
    assert isinstance(result, NextPair)


def log_density(residual: float, scale: float) -> float:
    """Logarithm of Student's t density of four degrees of freedom, (1 + t²/4)^(−5/2) / scale."""
    return -2.5 * math.log1p((residual / scale) ** 2 / 4) - math.log(scale)


def posterior(pairs: list[VersionPair], rules: SearchRules) -> Belief:
    """Bayes' rule by enumeration of every pair of versions with steps.

    Two steps that no pair separates count as one.
    """
    gap = [
        bisect_left(sorted({v for p in pairs for v in (p.version, p.beside)}), v)
        for v in range(rules.versions)
    ]
    ends_of = [pair.change for pair in pairs if (pair.version, pair.beside) == (rules.last, 0)]
    middle, scale = fit(ends_of)
    error = scale * math.sqrt(7 / 5 / len(ends_of))  # Fisher's information: (ν + 1) / (ν + 3) of a value
    grid = [(middle + error * z, scale * 3 ** (k / 3)) for z in range(-3, 4) for k in range(-3, 4)]
    versions = range(1, rules.versions)
    chances = {}
    for first, second in combinations_with_replacement(versions, 2):
        prior = ONE_STEP_PRIOR / rules.last
        if first < second:
            prior = (1 - ONE_STEP_PRIOR) / math.comb(rules.last, 2)
        for share, (step, spread) in product(SHARES, grid):
            parts = (share, 1 - share)
            logs = [
                log_density(
                    pair.change
                    - step
                    * sum(
                        part
                        for part, at in zip(parts, (first, second), strict=True)
                        if pair.beside < at <= pair.version
                    ),
                    spread,
                )
                for pair in pairs
            ]
            chances[first, second, share, step, spread] = math.log(prior) + math.fsum(logs)
    highest = max(chances.values())
    weights = {key: math.exp(chance - highest) for key, chance in chances.items()}
    total = math.fsum(weights.values())
    weights = {key: weight / total for key, weight in weights.items()}
    two = math.fsum(weight for (first, second, *_), weight in weights.items() if gap[first] < gap[second])
    share_of_first = math.fsum(w * key[2] for key, w in weights.items() if gap[key[0]] < gap[key[1]]) / two
    larger, smaller = [0.0] * rules.versions, [0.0] * rules.versions
    for (first, second, share, *_), weight in weights.items():
        lead = 0.5 if share == 0.5 or gap[first] == gap[second] else float(share > 0.5)
        if two > 0.5 and gap[first] < gap[second]:
            lead = float(share_of_first >= 0.5)
        larger[first] += weight * lead
        larger[second] += weight * (1 - lead)
        if gap[first] < gap[second]:
            smaller[first] += weight * (1 - lead) / two
            smaller[second] += weight * lead / two
    return Belief(
        larger_step=tuple(larger),
        smaller_step=tuple(smaller),
        two_steps_p=two,
        larger_share=two * max(share_of_first, 1 - share_of_first) + 1 - two,
        total_step=math.fsum(weight * key[3] for key, weight in weights.items()),
        scale=math.exp(math.fsum(weight * math.log(key[4]) for key, weight in weights.items())),
    )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from((0.0, 0.017, 0.033, 0.05)), min_size=2, max_size=2),
    st.lists(
        st.tuples(st.sampled_from((2, 3, 5)), st.sampled_from((0, 2, 3)), st.floats(-0.1, 0.1)), max_size=3
    ),
)
@example([0.017, 0.017], [(2, 0, 0.018), (3, 0, 0.016), (3, 2, 0.0)])  # two steps, the second larger
@example([0.033, 0.033], [(2, 0, 0.034), (3, 0, 0.032), (3, 2, 0.0)])
def test_the_posterior_follows_from_bayes_rule(
    levels: list[float], drawn: list[tuple[int, int, float]]
) -> None:
    rules = SearchRules(versions=6)
    pairs = [*ends(rules), pair(2, levels[0]), pair(3, levels[1])]
    pairs += [pair(version, change, beside) for version, beside, change in drawn if beside < version]
    measured, expected = belief(pairs, rules), posterior(pairs, rules)
    for name in ("larger_step", "smaller_step", "two_steps_p", "larger_share", "total_step", "scale"):
        assert getattr(measured, name) == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-9), name


def test_a_fit_maximises_the_likelihood_of_student_s_t() -> None:
    values = [*ENDS, 0.2, -0.03]
    middle, scale = fit(values)
    scale *= math.sqrt((len(values) - 1) / len(values))

    def likelihood(middle: float, scale: float) -> float:
        return math.fsum(log_density(value - middle, scale) for value in values)

    best = likelihood(middle, scale)
    for by in (0.99, 1.01):
        assert likelihood(middle * by, scale) < best
        assert likelihood(middle, scale * by) < best


def test_an_estimate_has_its_t_interval() -> None:
    result = estimate(ENDS, 0.95)
    middle, scale = fit(ENDS)
    half = 2.364624 * scale * math.sqrt(7 / 5 / 8)  # 97.5 % point of Student's t with 7 degrees of freedom
    assert (result.low, result.mid, result.high) == pytest.approx((middle - half, middle, middle + half))


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=6), st.floats(0.6, 0.99), st.floats(0.6, 1))
def test_a_version_is_confirmed_by_the_likelihood_ratio(
    changes: list[float], confidence: float, share: float
) -> None:
    believed = replace(belief(ends(LAST), LAST), larger_share=share, total_step=0.07, scale=0.02)
    step, middle = 0.07 * share, sorted(changes)[(len(changes) - 1) // 2 : len(changes) // 2 + 1]
    ratio = math.fsum(log_density(change - step, 0.02) - log_density(change, 0.02) for change in changes)
    is_enough = len(changes) >= MIN_CONFIRMING_PAIRS
    expected = (
        is_enough and sum(middle) / len(middle) > step / 2 and ratio > math.log(confidence / (1 - confidence))
    )
    assert is_confirmed(changes, believed, confidence) is expected


@given(
    st.lists(st.floats(-0.01, 0.01), min_size=8, max_size=8),
    st.floats(-0.06, 0.06),
    st.sampled_from((1, 20)),
    st.sampled_from((0.03, 0.005)),
)
def test_ends_differ_if_their_interval_at_a_fifth_of_the_error_excludes_zero(
    noise: list[float], change: float, cases: int, threshold: float
) -> None:
    rules = SearchRules(versions=3, cases=cases, threshold=threshold)
    changes = [change + value for value in noise]
    interval = estimate(changes, 1 - 0.05 / 5 / cases)
    margin = math.log1p(threshold)
    expected = None
    if -margin < interval.low and interval.high < margin:
        expected = SearchEnd.NO_DIFFERENCE
    elif interval.low > 0 or interval.high < 0:
        expected = SearchEnd.NAMED
    assert judge_ends(changes, rules) is expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=30), st.floats(0.5, 0.99))
def test_the_narrowest_range_has_the_required_confidence(weights: list[float], confidence: float) -> None:
    chances = [0.0, *(weight / math.fsum(weights) for weight in weights)]
    span = shortest_span(chances, confidence)
    inside = math.fsum(chances[span.first : span.last + 1])
    assert inside >= confidence - 1e-9
    assert 1 <= span.first <= span.last < len(chances)
    narrower = span.last - span.first
    inside_others = [
        math.fsum(chances[first : first + narrower + 1]) for first in range(1, len(chances) - narrower)
    ]
    assert inside == pytest.approx(max(inside_others))
    assert span.probability == pytest.approx(inside)
    assert all(
        math.fsum(chances[first : first + narrower]) < confidence + 1e-9
        for first in range(1, len(chances) - narrower + 1)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=30), st.sets(st.integers(1, 28)))
def test_the_next_version_is_measurable_and_between_the_ends(weights: list[float], skipped: set[int]) -> None:
    chances = [0.0, *(weight / math.fsum(weights) for weight in weights)]
    version, inner = median_version(chances, skipped), {*range(1, len(chances) - 1)} - skipped
    assert version in inner if inner else version is None
    span = most_probable(chances, skipped - {len(chances) - 1})
    assert {*range(span.first, span.last)} <= skipped


def test_an_outlier_hardly_changes_the_estimate() -> None:
    assert estimate([*ENDS, 5.0], 0.95).mid == pytest.approx(estimate(ENDS, 0.95).mid, abs=0.003)
