"""Where in a row of versions a step lies, from pairs of processes: what to measure next, or the answer. Pure.

A pair is a version measured beside an earlier one. First the two ends, until they are told apart or shown to
be the same. Then the version that halves what is believed (probabilistic bisection: Horstein 1963; Waeber,
Frazier & Henderson 2013), one pair at a time beside the first. What is believed follows from all pairs by
Bayes' rule. A version is named when it holds the step beside its own predecessor, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from benchbench.arrays import Floats, Indices
from benchbench.stats import median, t_quantile

DEGREES = 4.0  # of Student's t: one process that met a neighbour decides little (Lange, Little & Taylor 1989)
LEAST = 1e-4  # of a scale, as in stats.paired: equal values must not make every difference significant
LOOKS = (8, 12, 18, 27, 40)  # pairs of the two ends after which they are judged
CONFIRMING = 3  # pairs of a version and its predecessor, at least
ONE_STEP = 0.9  # probability before any pair that there is one step, not two
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)  # of the first of two steps in the whole difference
WIDE = 3.0  # standard errors of the step, and a factor of the scale, over which they are averaged
GRID = 7  # values of either
FIT_STEPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPair:
    """One pair: `change` is log(metric of `version` / metric of `beside`), an earlier version by number."""

    version: int
    beside: int
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRules:
    """A search over `versions`, numbered from 0, the good one; a step smaller than `threshold` is none.

    `confidence`: at which a version is named. `most`: pairs. `cases`: that are judged at the ends together.
    """

    versions: int
    threshold: float = 0.03
    confidence: float = 0.95
    most: int = 100
    cases: int = 1

    @property
    def last(self) -> int:
        """The number of the bad version."""
        return self.versions - 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A change as a logarithm, and its interval at the confidence of the search."""

    mid: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Span:
    """Versions `first` to `last`: the step came with one of them. `probability`: that it did."""

    first: int
    last: int
    probability: float


@dataclass(frozen=True, slots=True)
class Next:
    """The pair to measure next. `span`: where the step is so far, at the confidence asked for."""

    version: int
    beside: int
    span: Span | None = field(default=None, compare=False)


class SearchEnd(StrEnum):
    """How a search ends."""

    NAMED = "named"  # confirmed beside its predecessor
    RANGE = "range"  # the pairs were used up before
    NO_DIFFERENCE = "no difference"  # between the ends, of the threshold or more
    UNTOLD = "untold"  # the ends differ too little for their noise
    UNMEASURED = "unmeasured"  # an end cannot be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer: `whole` is the change between the ends, `step` that between `span` and its predecessor.

    `second`: where a further, smaller step is, if there are two.
    """

    end: SearchEnd
    pairs: int
    whole: Estimate | None = None
    span: Span | None = None
    step: Estimate | None = None
    second: Span | None = None

    @property
    def exit_code(self) -> int:
        """0: answered; 4: a version that matters cannot be measured; 12: not told (docs/cli.md)."""
        if self.end in (SearchEnd.RANGE, SearchEnd.UNTOLD):
            return 12
        several = self.span is not None and self.span.first < self.span.last
        return 4 if several or self.end is SearchEnd.UNMEASURED else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What the pairs tell. `larger`: by version, the probability that the larger step came with it.

    `smaller`: likewise, of two steps. `two`: the probability that there are two. `step`: the whole change as
    a logarithm; `share`: the larger one's of it. `scale`: of a pair's t distribution.
    """

    larger: tuple[float, ...]
    smaller: tuple[float, ...]
    two: float
    share: float
    step: float
    scale: float


def next_or_found(
    pairs: Sequence[VersionPair], rules: SearchRules, skipped: Set[int] = frozenset()
) -> Next | SearchResult:
    """The pair to measure next, or the answer. `skipped`: versions that cannot be measured."""
    if skipped & {0, rules.last}:
        return SearchResult(end=SearchEnd.UNMEASURED, pairs=len(pairs))
    ends = [pair.change for pair in pairs if (pair.version, pair.beside) == (rules.last, 0)]
    judged = judge_ends(ends, rules)
    if judged is None and len(pairs) < rules.most:
        return Next(rules.last, 0)
    whole = estimate(ends, rules.confidence) if len(ends) > 1 else None
    if judged is not SearchEnd.NAMED:
        return SearchResult(end=judged or SearchEnd.UNTOLD, pairs=len(pairs), whole=whole)
    found = belief(pairs, rules)
    span = likeliest(found.larger, skipped)
    beside = [p.change for p in pairs if (p.version, p.beside) == (span.last, span.first - 1)]
    is_likely = span.probability >= rules.confidence
    is_named = is_likely and confirmed(beside, found, rules.confidence)
    if not is_named and len(pairs) < rules.most:
        version = None if is_likely else halving(found.larger, skipped)
        known = narrowest(found.larger, rules.confidence)
        return Next(version, 0, known) if version else Next(span.last, span.first - 1, known)
    return SearchResult(
        end=SearchEnd.NAMED if is_named else SearchEnd.RANGE,
        pairs=len(pairs),
        whole=whole,
        span=span if is_named else narrowest(found.larger, rules.confidence),
        step=estimate(beside, rules.confidence) if is_named else None,
        second=narrowest(found.smaller, rules.confidence) if found.two >= rules.confidence else None,
    )


def search(
    measure: Callable[[Next], float | None], rules: SearchRules
) -> tuple[SearchResult, list[VersionPair]]:
    """The answer, and the pairs made. `measure`: a pair's change, or None where it cannot be measured."""
    pairs: list[VersionPair] = []
    skipped: set[int] = set()
    while isinstance(wanted := next_or_found(pairs, rules, skipped), Next):
        change = measure(wanted)
        if change is None:
            skipped.add(wanted.version)
        else:
            pairs.append(VersionPair(version=wanted.version, beside=wanted.beside, change=change))
    return wanted, pairs


def expected_pairs(rules: SearchRules, step: float, deviation: float, trials: int = 20) -> list[int]:
    """The pairs that searches take for a step of that size, simulated, sorted. Where it is is drawn.

    `deviation`: of a pair's logarithm, taken to be normal.
    """
    source = random.Random(0)
    counts: list[int] = []
    for _ in range(trials):
        at = source.randint(1, rules.last)

        def measure(wanted: Next, at: int = at) -> float:
            is_between = wanted.beside < at <= wanted.version
            return source.gauss(math.log1p(step) if is_between else 0.0, deviation)

        counts.append(search(measure, rules)[0].pairs)
    return sorted(counts)


def judge_ends(changes: Sequence[float], rules: SearchRules) -> SearchEnd | None:
    """Whether the ends differ: NAMED if so; None: not told yet, measure on.

    They are judged after each of LOOKS, each time at an equal part of the error, so that all together keep it
    (Bonferroni). NO_DIFFERENCE needs the interval within the threshold, and comes first: a change that is
    real and small is none.
    """
    error = (1 - rules.confidence) / len(LOOKS) / rules.cases
    margin = math.log1p(rules.threshold)
    for look in LOOKS:
        if len(changes) < look:
            return None
        middle, scale = fit(changes[:look])
        half = t_quantile(1 - error / 2, look - 1) * error_of(scale, look)
        if abs(middle) + half < margin:
            return SearchEnd.NO_DIFFERENCE
        if abs(middle) > half:
            return SearchEnd.NAMED
    return SearchEnd.UNTOLD


def fit(values: Sequence[float]) -> tuple[float, float]:
    """Location and scale of Student's t by maximum likelihood: EM, which weighs what is far off less.

    The square of the scale is corrected for the location that is fitted, n / (n − 1).
    """
    middle = median(values)
    scale = max(LEAST, 1.4826 * median([abs(value - middle) for value in values]))  # MAD → σ of normal data
    for _ in range(FIT_STEPS):
        weights = [(DEGREES + 1) / (DEGREES + ((value - middle) / scale) ** 2) for value in values]
        middle = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)
        square = math.fsum(w * (v - middle) ** 2 for w, v in zip(weights, values, strict=True))
        scale = max(LEAST, math.sqrt(square / len(values)))
    return middle, scale * math.sqrt(len(values) / max(len(values) - 1, 1))


def error_of(scale: float, count: int) -> float:
    """The standard error of a location that is fitted to `count` values, by Fisher's information."""
    return scale * math.sqrt((DEGREES + 3) / (DEGREES + 1) / count)


def estimate(changes: Sequence[float], confidence: float) -> Estimate:
    """The middle of two or more changes, and its t interval."""
    middle, scale = fit(changes)
    half = t_quantile((1 + confidence) / 2, len(changes) - 1) * error_of(scale, len(changes))
    return Estimate(middle, middle - half, middle + half)


def belief(pairs: Sequence[VersionPair], rules: SearchRules) -> Belief:
    """What all pairs tell by Bayes' rule, those of the ends among them, in whatever order they came.

    Before them every position is as likely as any other, and so is every pair of positions for two steps.
    The size of the whole change and the scale of pairs are averaged over. No pair tells positions between two
    measured versions apart, so they are treated as one gap.
    """
    import numpy as np

    ends = [pair.change for pair in pairs if (pair.version, pair.beside) == (rules.last, 0)]
    middle, scale = fit(ends)
    steps = middle + error_of(scale, len(ends)) * np.linspace(-WIDE, WIDE, GRID)
    scales = scale * np.geomspace(1 / WIDE, WIDE, GRID)
    measured = sorted({0, rules.last} | {v for pair in pairs for v in (pair.version, pair.beside)})
    place = {version: index for index, version in enumerate(measured)}
    sizes = np.diff(measured)
    first, second = np.triu_indices(len(sizes))  # the gaps of the two steps; of one step both are the same
    shares = np.array(SHARES)[:, None, None]
    parts = np.array([[0 * shares, 1 - shares], [shares, 1 + 0 * shares]])  # of the whole that a pair spans
    expected = parts * steps[:, None]
    logs = np.log(_prior(sizes, first, second))[:, None, None, None] + np.zeros(
        (1, *expected.shape[2:4], GRID)
    )
    for (version, beside), changes in _grouped(pairs):
        spans = np.zeros(len(sizes), dtype=int)
        spans[place[beside] : place[version]] = 1
        residuals = np.reshape(changes, (-1, *[1] * expected.ndim)) - expected
        table = _log_density(residuals, scales).sum(axis=0)  # by whether it spans the one step, and the other
        logs += table[spans[first], spans[second]]
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    return _summary(chances, (first, second), sizes, steps, scales)


def _prior(sizes: Indices, first: Indices, second: Indices) -> Floats:
    """Each pair of gaps weighs as much, and within it each of SHARES. Two steps in one gap look like one."""
    import numpy as np

    count = sizes.sum()
    twos = np.where(first == second, sizes[first] * (sizes[first] - 1) / 2, sizes[first] * sizes[second])
    ones = np.where(first == second, sizes[first] / count, 0)
    return np.asarray(ONE_STEP * ones + (1 - ONE_STEP) * twos / max(count * (count - 1) / 2, 1))


def _grouped(pairs: Sequence[VersionPair]) -> Iterator[tuple[tuple[int, int], list[float]]]:
    """The changes of each two versions."""
    found: dict[tuple[int, int], list[float]] = {}
    for pair in pairs:
        found.setdefault((pair.version, pair.beside), []).append(pair.change)
    yield from sorted((versions, sorted(changes)) for versions, changes in found.items())


def _log_density(residuals: Floats, scales: Floats) -> Floats:
    """The logarithm of Student's t density, without its constant."""
    import numpy as np

    return np.asarray(-np.log(scales) - (DEGREES + 1) / 2 * np.log1p((residuals / scales) ** 2 / DEGREES))


def _summary(
    chances: Floats, gaps: tuple[Indices, Indices], sizes: Indices, steps: Floats, scales: Floats
) -> Belief:
    """`chances`: by pair of gaps, share of the first step, whole step and scale."""
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
    own = np.maximum(mean_share, 1 - mean_share)
    return Belief(
        larger=_by_version(larger, sizes),
        smaller=_by_version(smaller / two if two else smaller, sizes),
        two=two,
        share=float(two * own + (1 - two)),
        step=float((chances.sum(axis=(0, 1, 3)) * steps).sum()),
        scale=float(np.exp((chances.sum(axis=(0, 1, 2)) * np.log(scales)).sum())),
    )


def _by_version(gaps: Floats, sizes: Indices) -> tuple[float, ...]:
    """A gap's probability, spread over the versions that its step may have come with; 0 for the first."""
    import numpy as np

    return (0.0, *np.repeat(gaps / sizes, sizes).tolist())


def likeliest(chances: Sequence[float], skipped: Set[int]) -> Span:
    """The version with the largest probability, with those before it that are skipped."""
    there = [version for version in range(len(chances)) if version not in skipped]
    spans = [
        Span(before + 1, after, math.fsum(chances[before + 1 : after + 1]))
        for before, after in pairwise(there)
    ]
    return max(spans, key=lambda span: span.probability)


def halving(chances: Sequence[float], skipped: Set[int]) -> int | None:
    """The version at which the probability that the step came before or with it is nearest to a half."""
    passed = dict(enumerate(_running_sums(chances)))
    inner = [version for version in range(1, len(chances) - 1) if version not in skipped]
    return min(inner, key=lambda version: abs(passed[version] - 0.5), default=None)


def _running_sums(values: Sequence[float]) -> Iterator[float]:
    total = 0.0
    for value in values:
        total += value
        yield total


def narrowest(chances: Sequence[float], confidence: float) -> Span:
    """The fewest neighbouring versions that hold the step with that probability; of equals the likelier."""
    sums = list(_running_sums(chances))
    best, last = Span(1, len(chances) - 1, 1.0), 1
    for first in range(1, len(chances)):
        while last < len(chances) - 1 and sums[last] - sums[first - 1] < confidence:
            last += 1
        held = sums[last] - sums[first - 1]
        if held < confidence:
            break
        if (last - first, -held) < (best.last - best.first, -best.probability):
            best = Span(first, last, min(held, 1.0))
    return best


def confirmed(changes: Sequence[float], found: Belief, confidence: float) -> bool:
    """Whether a version beside its predecessor shows the step that is believed to be there.

    Enough pairs, a median beyond half of it, and the step likelier than none by the odds of the confidence.
    These pairs alone: all others were measured beside the first version.
    """
    step = found.share * found.step
    if len(changes) < CONFIRMING or median(changes) / step <= 0.5:
        return False
    evidence = math.fsum(
        math.log1p((change / found.scale) ** 2 / DEGREES)
        - math.log1p(((change - step) / found.scale) ** 2 / DEGREES)
        for change in changes
    )
    return (DEGREES + 1) / 2 * evidence > math.log(confidence / (1 - confidence))
