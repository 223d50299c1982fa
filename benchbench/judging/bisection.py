"""Bisection of a performance step: the next pair of versions to measure, or the result. Pure.

A pair is a version measured beside an earlier one. The two ends are measured first, until their difference
is significant or shown to be negligible. Then the median of the current belief is measured beside the first
version, one pair at a time (probabilistic bisection: Horstein 1963; Waeber, Frazier & Henderson 2013). The
belief follows from all pairs by Bayes' rule. A version is named once it shows the step beside its own
predecessor, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from benchbench.arrays import Floats, Indices
from benchbench.stats import MAD_TO_DEVIATION, MIN_DEVIATION, mad, median, t_quantile

DEGREES = 4.0  # of Student's t: one disturbed process decides little (Lange, Little & Taylor 1989)
LOOKS = (8, 12, 18, 27, 40)  # numbers of pairs of the two ends after which the ends are judged
MIN_CONFIRMING_PAIRS = 3  # of a version and its predecessor
ONE_STEP_PRIOR = 0.9  # prior probability of one step, rather than two
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)  # of the first of two steps in the whole difference
GRID_WIDTH = 3.0  # of the grid: standard errors of the step, and a factor of the scale
GRID_SIZE = 7  # values of the step and of the scale
FIT_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPair:
    """A measured pair of versions. `change`: log(metric of `version` / metric of the earlier `beside`)."""

    version: int
    beside: int
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """Rules of a search over `versions`, numbered from 0, the good one.

    `threshold`: smallest step that counts, as a fraction. `confidence`: probability at which a version is
    named. `most`: largest number of pairs. `cases`: number of cases that are judged at the ends together.
    """

    versions: int
    threshold: float = 0.03
    confidence: float = 0.95
    most: int = 100
    cases: int = 1

    @property
    def last(self) -> int:
        """Number of the bad version."""
        return self.versions - 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A change as a logarithm, with its interval at the confidence of the search."""

    mid: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Span:
    """Versions `first` to `last`, one of which brought the step, with `probability`."""

    first: int
    last: int
    probability: float


@dataclass(frozen=True, slots=True)
class NextPair:
    """The pair to measure next. `span`: current range of the step, at the confidence of the search."""

    version: int
    beside: int
    span: Span | None = field(default=None, compare=False)


class SearchEnd(StrEnum):
    """Reason for the end of a search."""

    NAMED = "named"  # confirmed beside its predecessor
    RANGE = "range"  # the number of pairs was exhausted before
    NO_DIFFERENCE = "no difference"  # between the ends, of the threshold or more
    UNDECIDED = "untold"  # the difference of the ends is too small for their noise
    UNMEASURED = "unmeasured"  # an end cannot be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Result of a search. `whole`: change between the ends; `step`: change from the version before `span`.

    `second`: range of a further, smaller step, if there are two.
    """

    end: SearchEnd
    pairs: int
    whole: Estimate | None = None
    span: Span | None = None
    step: Estimate | None = None
    second: Span | None = None

    @property
    def exit_code(self) -> int:
        """0: answered; 4: an important version cannot be measured; 12: undecided (docs/cli.md)."""
        if self.end in (SearchEnd.RANGE, SearchEnd.UNDECIDED):
            return 12
        several = self.span is not None and self.span.first < self.span.last
        return 4 if several or self.end is SearchEnd.UNMEASURED else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Posterior distribution of the step, given all pairs.

    `larger_step`: for each version, the probability that it brought the larger step; `smaller_step`:
    likewise, of two steps. `two_steps_p`: probability of two steps. `total_step`: change between the ends
    as a logarithm; `larger_share`: share of the larger step in it. `scale`: of a pair's t distribution.
    """

    larger_step: tuple[float, ...]
    smaller_step: tuple[float, ...]
    two_steps_p: float
    larger_share: float
    total_step: float
    scale: float


def next_pair_or_result(
    pairs: Sequence[VersionPair], rules: SearchRules, skipped: Set[int] = frozenset()
) -> NextPair | SearchResult:
    """The pair to measure next, or the result. `skipped`: versions that cannot be measured."""
    if skipped & {0, rules.last}:
        return SearchResult(end=SearchEnd.UNMEASURED, pairs=len(pairs))
    ends = [pair.change for pair in pairs if (pair.version, pair.beside) == (rules.last, 0)]
    ends_result = judge_ends(ends, rules)
    if ends_result is None and len(pairs) < rules.most:
        return NextPair(rules.last, 0)
    whole = estimate(ends, rules.confidence) if len(ends) > 1 else None
    if ends_result is not SearchEnd.NAMED:
        return SearchResult(end=ends_result or SearchEnd.UNDECIDED, pairs=len(pairs), whole=whole)
    current = belief(pairs, rules)
    span = most_probable(current.larger_step, skipped)
    beside = [p.change for p in pairs if (p.version, p.beside) == (span.last, span.first - 1)]
    is_probable = span.probability >= rules.confidence
    is_named = is_probable and is_confirmed(beside, current, rules.confidence)
    if not is_named and len(pairs) < rules.most:
        version = None if is_probable else median_version(current.larger_step, skipped)
        current_span = shortest_span(current.larger_step, rules.confidence)
        return (
            NextPair(version, 0, current_span)
            if version
            else NextPair(span.last, span.first - 1, current_span)
        )
    return SearchResult(
        end=SearchEnd.NAMED if is_named else SearchEnd.RANGE,
        pairs=len(pairs),
        whole=whole,
        span=span if is_named else shortest_span(current.larger_step, rules.confidence),
        step=estimate(beside, rules.confidence) if is_named else None,
        second=shortest_span(current.smaller_step, rules.confidence)
        if current.two_steps_p >= rules.confidence
        else None,
    )


def judge_ends(changes: Sequence[float], rules: SearchRules) -> SearchEnd | None:
    """NAMED if the ends differ, another end of the search, or None if more pairs are needed.

    The ends are judged after each of LOOKS with an equal part of the error (Bonferroni). NO_DIFFERENCE needs
    the interval within the threshold and is checked first: a significant but small change is ignored.
    """
    error = (1 - rules.confidence) / len(LOOKS) / rules.cases
    margin = math.log1p(rules.threshold)
    for look in LOOKS:
        if len(changes) < look:
            return None
        middle, scale = fit(changes[:look])
        half = t_quantile(1 - error / 2, look - 1) * standard_error(scale, look)
        if abs(middle) + half < margin:
            return SearchEnd.NO_DIFFERENCE
        if abs(middle) > half:
            return SearchEnd.NAMED
    return SearchEnd.UNDECIDED


def fit(values: Sequence[float]) -> tuple[float, float]:
    """Location and scale of Student's t by maximum likelihood (EM), which gives outliers a small weight.

    The squared scale is corrected for the fitted location by n / (n − 1).
    """
    middle = median(values)
    scale = max(MIN_DEVIATION, MAD_TO_DEVIATION * mad(values))
    for _ in range(FIT_STEPS):
        weights = [(DEGREES + 1) / (DEGREES + ((value - middle) / scale) ** 2) for value in values]
        middle = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
        square = math.fsum(w * (v - middle) ** 2 for w, v in zip(weights, values, strict=True))
        scale = max(MIN_DEVIATION, math.sqrt(square / len(values)))
    return middle, scale * math.sqrt(len(values) / max(len(values) - 1, 1))


def standard_error(scale: float, count: int) -> float:
    """Standard error of a location fitted to `count` values, by Fisher's information."""
    return scale * math.sqrt((DEGREES + 3) / (DEGREES + 1) / count)


def estimate(changes: Sequence[float], confidence: float) -> Estimate:
    """Location of two or more changes, with its t interval."""
    middle, scale = fit(changes)
    half = t_quantile((1 + confidence) / 2, len(changes) - 1) * standard_error(scale, len(changes))
    return Estimate(middle, middle - half, middle + half)


def belief(pairs: Sequence[VersionPair], rules: SearchRules) -> Belief:
    """Posterior distribution of the step from all pairs, in any order, by Bayes' rule.

    In the prior, all positions of one step are equally likely, and so are all pairs of positions of two. The
    size of the whole change and the scale of pairs are averaged over. Pairs do not distinguish positions
    between two measured versions, so these are treated as one gap.
    """
    import numpy as np

    ends = [pair.change for pair in pairs if (pair.version, pair.beside) == (rules.last, 0)]
    middle, scale = fit(ends)
    steps = middle + standard_error(scale, len(ends)) * np.linspace(-GRID_WIDTH, GRID_WIDTH, GRID_SIZE)
    scales = scale * np.geomspace(1 / GRID_WIDTH, GRID_WIDTH, GRID_SIZE)
    measured = sorted({0, rules.last} | {v for pair in pairs for v in (pair.version, pair.beside)})
    position = {version: index for index, version in enumerate(measured)}
    sizes = np.diff(measured)
    first, second = np.triu_indices(len(sizes))  # the gaps of the two steps; of one step both are the same
    shares = np.array(SHARES)[:, None, None]
    parts = np.array([[0 * shares, 1 - shares], [shares, 1 + 0 * shares]])  # of the whole that a pair spans
    expected = parts * steps[:, None]
    logs = np.log(_prior(sizes, first, second))[:, None, None, None] + np.zeros(
        (1, *expected.shape[2:4], GRID_SIZE)
    )
    for (version, beside), changes in _changes_by_versions(pairs):
        spans = np.zeros(len(sizes), dtype=int)
        spans[position[beside] : position[version]] = 1
        residuals = np.reshape(changes, (-1, *[1] * expected.ndim)) - expected
        table = _log_density(residuals, scales).sum(axis=0)  # by whether it spans the one step, and the other
        logs += table[spans[first], spans[second]]
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    return _summary(chances, (first, second), sizes, steps, scales)


def _prior(sizes: Indices, first: Indices, second: Indices) -> Floats:
    """Prior probability of each pair of gaps, for each of SHARES.

    Two steps in one gap cannot be distinguished from one.
    """
    import numpy as np

    count = sizes.sum()
    twos = np.where(first == second, sizes[first] * (sizes[first] - 1) / 2, sizes[first] * sizes[second])
    ones = np.where(first == second, sizes[first] / count, 0)
    return np.asarray(ONE_STEP_PRIOR * ones + (1 - ONE_STEP_PRIOR) * twos / max(count * (count - 1) / 2, 1))


def _changes_by_versions(pairs: Sequence[VersionPair]) -> Iterator[tuple[tuple[int, int], list[float]]]:
    """Pairs of versions with their changes, both sorted."""
    changes_by_versions: dict[tuple[int, int], list[float]] = {}
    for pair in pairs:
        changes_by_versions.setdefault((pair.version, pair.beside), []).append(pair.change)
    yield from sorted((versions, sorted(changes)) for versions, changes in changes_by_versions.items())


def _log_density(residuals: Floats, scales: Floats) -> Floats:
    """Logarithm of Student's t density without its constant."""
    import numpy as np

    return np.asarray(-np.log(scales) - (DEGREES + 1) / 2 * np.log1p((residuals / scales) ** 2 / DEGREES))


def _summary(
    chances: Floats, gaps: tuple[Indices, Indices], sizes: Indices, steps: Floats, scales: Floats
) -> Belief:
    """Belief from `chances`: probabilities by pair of gaps, share of the first step, whole step and scale."""
    import numpy as np

    first, second = gaps
    shares = np.array(SHARES)
    is_two = first != second
    by_share = chances.sum(axis=(2, 3))
    two = float(by_share[is_two].sum())
    mean_share = float((by_share[is_two] * shares).sum() / two) if two else 1.0
    # Once there are surely two, one of them is looked for; before, the larger of each possibility.
    leads = np.where(shares == 0.5, 0.5, shares > 0.5)
    if two > 0.5:
        leads = np.full_like(shares, float(mean_share >= 0.5))
    to_first, to_second = (by_share * leads).sum(axis=1), (by_share * (1 - leads)).sum(axis=1)
    larger, smaller = np.zeros((2, len(sizes)))
    np.add.at(larger, first, to_first)
    np.add.at(larger, second, to_second)
    np.add.at(smaller, first[is_two], to_second[is_two])
    np.add.at(smaller, second[is_two], to_first[is_two])
    larger_shares = np.maximum(mean_share, 1 - mean_share)
    return Belief(
        larger_step=_by_version(larger, sizes),
        smaller_step=_by_version(smaller / two if two else smaller, sizes),
        two_steps_p=two,
        larger_share=float(two * larger_shares + (1 - two)),
        total_step=float((chances.sum(axis=(0, 1, 3)) * steps).sum()),
        scale=float(np.exp((chances.sum(axis=(0, 1, 2)) * np.log(scales)).sum())),
    )


def _by_version(gaps: Floats, sizes: Indices) -> tuple[float, ...]:
    """Probabilities by version: each gap's is distributed over its versions; 0 for the first version."""
    import numpy as np

    return (0.0, *np.repeat(gaps / sizes, sizes).tolist())


def most_probable(chances: Sequence[float], skipped: Set[int]) -> Span:
    """The most probable version, together with the skipped versions before it."""
    measurable = [version for version in range(len(chances)) if version not in skipped]
    spans = [
        Span(before + 1, after, math.fsum(chances[before + 1 : after + 1]))
        for before, after in pairwise(measurable)
    ]
    return max(spans, key=lambda span: span.probability)


def median_version(chances: Sequence[float], skipped: Set[int]) -> int | None:
    """Version at which the probability that the step came with it or before is nearest to one half."""
    cumulative = dict(enumerate(_running_sums(chances)))
    candidates = [version for version in range(1, len(chances) - 1) if version not in skipped]
    return min(candidates, key=lambda version: abs(cumulative[version] - 0.5), default=None)


def _running_sums(values: Sequence[float]) -> Iterator[float]:
    total = 0.0
    for value in values:
        total += value
        yield total


def shortest_span(chances: Sequence[float], confidence: float) -> Span:
    """Shortest range of versions with this probability of the step; among equals, the most probable."""
    sums = list(_running_sums(chances))
    best, last = Span(1, len(chances) - 1, 1.0), 1
    for first in range(1, len(chances)):
        while last < len(chances) - 1 and sums[last] - sums[first - 1] < confidence:
            last += 1
        probability = sums[last] - sums[first - 1]
        if probability < confidence:
            break
        if (last - first, -probability) < (best.last - best.first, -best.probability):
            best = Span(first, last, min(probability, 1.0))
    return best


def is_confirmed(changes: Sequence[float], current: Belief, confidence: float) -> bool:
    """True if a version measured beside its predecessor shows the expected step.

    This needs enough pairs, a median beyond half of the step, and a likelihood ratio of step to no step
    above the odds of the confidence. Only these pairs count: all others were measured beside the first
    version.
    """
    step = current.larger_share * current.total_step
    if len(changes) < MIN_CONFIRMING_PAIRS or median(changes) / step <= 0.5:
        return False
    evidence = math.fsum(
        math.log1p((change / current.scale) ** 2 / DEGREES)
        - math.log1p(((change - step) / current.scale) ** 2 / DEGREES)
        for change in changes
    )
    return (DEGREES + 1) / 2 * evidence > math.log(confidence / (1 - confidence))
