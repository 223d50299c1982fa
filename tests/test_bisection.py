"""The search for the version that brought a step: what it believes, what it measures next, when it ends."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchbench.judging.bisection import (
    LOOKS,
    MIN_CONFIRMING_PAIRS,
    NextPair,
    SearchEnd,
    SearchResult,
    SearchRules,
    VersionPair,
    belief,
    estimate,
    expected_pairs,
    fit,
    is_confirmed,
    judge_ends,
    median_version,
    most_probable,
    next_pair_or_result,
    search,
    shortest_span,
)
from studies.bisections import Scene, is_right, scenes, searched

SEEDS = 100
STEP = math.log(1.05)
ENDS = (0.049, 0.047, 0.051, 0.03, 0.06, 0.05, 0.055, 0.045)


def pair(version: int, change: float, beside: int = 0) -> VersionPair:
    return VersionPair(version=version, beside=beside, change=change)


def ends(rules: SearchRules, *changes: float) -> list[VersionPair]:
    return [pair(rules.last, change) for change in changes or ENDS]


# What it names, by simulation


@pytest.mark.real
def test_a_planted_step_is_named_and_hardly_ever_a_wrong_one() -> None:
    made = scenes(64, (0.05,), 0.02, SEEDS)
    found = [searched(scene, seed) for seed, scene in enumerate(made)]
    named = [(each, scene) for each, scene in zip(found, made, strict=True) if each.end is SearchEnd.NAMED]
    right = sum(is_right(each, scene) for each, scene in named)
    assert right >= 95
    assert len(named) - right <= 2


@pytest.mark.real
@pytest.mark.parametrize("versions", [5, 64])
def test_where_nothing_differs_no_difference_is_told(versions: int) -> None:
    told = Counter(searched(scene, seed).end for seed, scene in enumerate(scenes(versions, (), 0.02, SEEDS)))
    assert told[SearchEnd.NO_DIFFERENCE] >= 95
    assert told[SearchEnd.NAMED] == 0


@pytest.mark.real
def test_a_step_among_versions_that_cannot_be_measured_is_given_as_their_range() -> None:
    for seed in range(20):
        at = 5 + seed
        scene = Scene(versions=32, steps={at: 0.08}, deviation=0.02, skipped={at - 2, at - 1})
        found = searched(scene, seed)
        assert found.end is SearchEnd.NAMED
        assert found.span
        assert (found.span.first, found.span.last) == (at - 2, at)


@pytest.mark.real
def test_of_two_steps_one_is_named_and_two_are_told() -> None:
    made = scenes(64, (0.05, 0.05), 0.02, 30)
    found = [searched(scene, seed) for seed, scene in enumerate(made)]
    spans = [each.span for each in found]
    assert sum(each.end is SearchEnd.NAMED for each in found) >= 27
    places = zip(spans, made, strict=True)
    assert sum(span is not None and span.last in scene.steps for span, scene in places) >= 27
    told = [(each, scene) for each, scene in zip(found, made, strict=True) if each.second]
    assert len(told) >= 15
    for each, scene in told:
        assert each.second
        assert any(each.second.first <= at <= each.second.last for at in scene.steps)


def test_values_that_are_exact_need_no_more_pairs_than_the_rules_ask_for() -> None:
    found, pairs = search(
        lambda wanted: STEP if wanted.beside < 11 <= wanted.version else 0.0,
        rules := SearchRules(versions=32),
    )
    assert found.span is not None
    assert (found.end, found.span.first, found.span.last) == (SearchEnd.NAMED, 11, 11)
    assert len(pairs) == LOOKS[0] + math.ceil(math.log2(rules.last)) + MIN_CONFIRMING_PAIRS
    assert found.step is not None
    assert found.step.mid == pytest.approx(STEP)


def test_a_step_to_the_better_is_found_as_well() -> None:
    found, _ = search(
        lambda wanted: -STEP if wanted.beside < 3 <= wanted.version else 0.0, SearchRules(versions=9)
    )
    assert found.end is SearchEnd.NAMED
    assert found.span is not None
    assert found.span.last == 3


def test_two_versions_are_told_apart_by_the_pairs_of_the_ends_alone() -> None:
    found, pairs = search(lambda _: STEP, SearchRules(versions=2))
    assert (found.end, len(pairs)) == (SearchEnd.NAMED, LOOKS[0])


# How it ends


def test_an_end_that_cannot_be_measured_ends_the_search() -> None:
    for end in (0, 4):
        found = next_pair_or_result([], SearchRules(versions=5), {end})
        assert isinstance(found, SearchResult)
        assert found.end is SearchEnd.UNMEASURED


def test_pairs_that_are_used_up_give_the_smallest_range() -> None:
    rules = SearchRules(versions=64, most=9)
    found = next_pair_or_result([*ends(rules), pair(32, 0.05)], rules)
    assert isinstance(found, SearchResult)
    assert found.end is SearchEnd.RANGE
    assert found.span is not None
    assert found.span.last <= 32
    assert found.span.probability >= rules.confidence


def test_ends_are_judged_after_whole_looks_only() -> None:
    rules = SearchRules(versions=3)
    noisy = [0.2, -0.2] * LOOKS[-1]
    assert [judge_ends(noisy[:count], rules) for count in (1, 7, 8, 26)] == [None] * 4
    assert judge_ends(noisy[: LOOKS[-1]], rules) is SearchEnd.UNDECIDED
    assert judge_ends(ENDS, rules) is SearchEnd.NAMED
    assert judge_ends([0.0] * 8, rules) is SearchEnd.NO_DIFFERENCE


def test_a_change_that_is_real_and_small_is_no_difference() -> None:
    small = [0.009, 0.0095, 0.01, 0.0105, 0.011, 0.01, 0.01, 0.01]
    assert judge_ends(small, SearchRules(versions=3)) is SearchEnd.NO_DIFFERENCE
    assert judge_ends(small, SearchRules(versions=3, threshold=0.005)) is SearchEnd.NAMED


def test_several_cases_need_stronger_evidence_of_each() -> None:
    changes = [0.05, 0.07, 0.02, 0.03, 0.08, 0.06, 0.01, 0.04]
    assert judge_ends(changes, SearchRules(versions=3)) is SearchEnd.NAMED
    assert judge_ends(changes, SearchRules(versions=3, cases=100)) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((0.05, 0.05, 0.05), True),
        ((0.05, 0.05), False),  # too few
        ((0.01, 0.02, 0.01), False),  # less than half of it
        ((0.05, 0.05, -0.2), True),  # one that met a neighbour
        ((-0.05, -0.05, -0.05), False),
    ],
)
def test_a_version_is_confirmed_by_pairs_beside_its_predecessor(
    changes: tuple[float, ...], expected: bool
) -> None:
    rules = SearchRules(versions=9)
    believed = belief([*ends(rules), pair(4, 0.05), pair(3, 0.0)], rules)
    assert is_confirmed(changes, believed, rules.confidence) is expected


def test_a_version_that_does_not_differ_from_its_predecessor_is_not_named() -> None:
    rules = SearchRules(versions=4)
    wrong = [*ends(rules), *(pair(2, 0.05) for _ in range(5)), *(pair(1, 0.0) for _ in range(5))]
    assert next_pair_or_result(wrong, rules) == NextPair(2, 1)
    found = next_pair_or_result([*wrong, *(pair(2, 0.0, beside=1) for _ in range(9))], rules)
    assert isinstance(found, NextPair)


def test_more_versions_and_more_noise_take_more_pairs() -> None:
    few, many = (expected_pairs(SearchRules(versions=n), 0.1, 0.01, 5) for n in (4, 200))
    noisy = expected_pairs(SearchRules(versions=4), 0.1, 0.05, 5)
    assert few[2] < many[2]
    assert few[2] < noisy[2]
    assert few == expected_pairs(SearchRules(versions=4), 0.1, 0.01, 5)


# Laws

changes = st.floats(-0.2, 0.2)
measured = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 8), changes).filter(lambda each: each[1] < each[0]),
    max_size=8,
).map(lambda found: [pair(version, change, beside) for version, beside, change in found])
LAST = SearchRules(versions=10)


@settings(max_examples=40, deadline=None)
@given(measured)
def test_what_is_believed_is_a_probability(pairs: list[VersionPair]) -> None:
    posterior = belief(ends(LAST) + pairs, LAST)
    assert math.fsum(posterior.larger_step) == pytest.approx(1)
    assert all(0 <= each <= 1 for each in (*posterior.larger_step, *posterior.smaller_step))
    assert posterior.larger_step[0] == 0
    assert len(posterior.larger_step) == LAST.versions
    assert 0 <= posterior.two_steps_p <= 1
    assert 0.5 <= posterior.larger_share <= 1.0 + 1e-9


@settings(max_examples=40, deadline=None)
@given(measured, st.randoms(use_true_random=False))
def test_the_order_of_the_pairs_does_not_matter(pairs: list[VersionPair], source: object) -> None:
    mixed = ends(LAST) + pairs
    source.shuffle(mixed)  # type: ignore[attr-defined]
    assert belief(mixed, LAST) == belief(ends(LAST) + pairs, LAST)


@settings(max_examples=40, deadline=None)
@given(measured)
def test_slower_and_faster_are_mirror_images(pairs: list[VersionPair]) -> None:
    there = belief(ends(LAST) + pairs, LAST)
    back = belief([pair(p.version, -p.change, p.beside) for p in ends(LAST) + pairs], LAST)
    assert back.larger_step == pytest.approx(there.larger_step, abs=1e-6)
    assert back.total_step == pytest.approx(-there.total_step, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(measured, st.integers(1, 8))
def test_a_pair_like_the_bad_end_speaks_for_earlier_versions_and_one_like_the_good_for_later(
    pairs: list[VersionPair], version: int
) -> None:
    """Without a second step in sight: of two, one may lie on either side."""

    def before(found: list[VersionPair]) -> float:
        return math.fsum(belief(found, LAST).larger_step[: version + 1])

    known = ends(LAST)
    assert before([*known, pair(version, STEP)]) > before(known) > before([*known, pair(version, 0.0)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=30), st.floats(0.5, 0.99))
def test_the_narrowest_range_holds_the_step_with_the_confidence_asked_for(
    weights: list[float], confidence: float
) -> None:
    chances = [0.0, *(weight / math.fsum(weights) for weight in weights)]
    found = shortest_span(chances, confidence)
    inside = math.fsum(chances[found.first : found.last + 1])
    assert inside >= confidence - 1e-9
    assert 1 <= found.first <= found.last < len(chances)
    narrower = found.last - found.first
    assert all(
        math.fsum(chances[first : first + narrower]) < confidence + 1e-9
        for first in range(1, len(chances) - narrower + 1)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=30), st.sets(st.integers(1, 28)))
def test_what_is_probed_can_be_measured_and_lies_between_the_ends(
    weights: list[float], skipped: set[int]
) -> None:
    chances = [0.0, *(weight / math.fsum(weights) for weight in weights)]
    chosen, inner = median_version(chances, skipped), {*range(1, len(chances) - 1)} - skipped
    assert chosen in inner if inner else chosen is None
    span = most_probable(chances, skipped - {len(chances) - 1})
    assert {*range(span.first, span.last)} <= skipped


@given(st.lists(changes, min_size=3, max_size=20), st.floats(-1, 1))
def test_a_fitted_middle_moves_with_its_values_and_lies_among_them(values: list[float], by: float) -> None:
    middle, scale = fit(values)
    assert min(values) - 1e-9 <= middle <= max(values) + 1e-9
    moved, same = fit([value + by for value in values])
    assert moved == pytest.approx(middle + by, abs=1e-6)
    assert same == pytest.approx(scale, rel=1e-3)


def test_one_wild_value_hardly_moves_what_is_fitted() -> None:
    assert estimate([*ENDS, 5.0], 0.95).mid == pytest.approx(estimate(ENDS, 0.95).mid, abs=0.003)
