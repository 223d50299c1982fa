"""Simulated searches for the version that brought a step: `python -m studies.bisections [SEEDS]`.

Prints how often the tool's own search names the version, how often it confirms a wrong one, and the pairs of
processes that it takes; and the same of one measurement of each version beside a threshold, as a script under
`git bisect run` does it. Each process has normal noise, and one in twenty meets a neighbour: it takes longer
by the size of a normal number of 30 %. Where the step is is drawn.

Not a test: the tests hold reduced versions.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchbench.judging.bisection import (
    NextPair,
    SearchEnd,
    SearchResult,
    SearchRules,
    VersionPair,
    next_pair_or_result,
)
from benchbench.stats import mean, median, quantile

DISTURBED, DISTURBANCE = 0.05, 0.3  # processes that meet a neighbour, and by how much


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`steps`: version → by how much it is slower than the one before. `deviation`: of a pair's logarithm."""

    versions: int
    steps: dict[int, float]
    deviation: float

    def level(self, version: int) -> float:
        """The logarithm of what a version takes."""
        return math.fsum(math.log1p(step) for at, step in self.steps.items() if at <= version)

    def measure(self, source: np.random.Generator) -> Callable[[NextPair], float]:
        """What a pair of processes shows."""

        def process(version: int) -> float:
            own = self.deviation / math.sqrt(2) * source.standard_normal()
            met = DISTURBANCE * abs(source.standard_normal()) if source.random() < DISTURBED else 0.0
            return self.level(version) + own + met

        def pair(wanted: NextPair) -> float:
            return process(wanted.version) - process(wanted.beside)

        return pair


def scenes(versions: int, steps: tuple[float, ...], deviation: float, seeds: int) -> list[Scene]:
    """One for each seed, its steps at drawn versions."""
    made = []
    for seed in range(seeds):
        source = np.random.default_rng([versions, seed])
        places = source.choice(np.arange(1, versions), len(steps), replace=False).tolist()
        given = dict(zip(places, steps, strict=True))
        made.append(Scene(versions=versions, steps=given, deviation=deviation))
    return made


def search(
    measure: Callable[[NextPair], float | None], rules: SearchRules
) -> tuple[SearchResult, list[VersionPair]]:
    """Result of a search, and its pairs. `measure` returns a pair's change; None if it cannot be measured."""
    pairs: list[VersionPair] = []
    skipped: set[int] = set()
    while isinstance(next_pair := next_pair_or_result(pairs, rules, skipped), NextPair):
        change = measure(next_pair)
        if change is None:
            skipped.add(next_pair.version)
        else:
            pairs.append(VersionPair(version=next_pair.version, beside=next_pair.beside, change=change))
    return next_pair, pairs


def searched(scene: Scene, seed: int, **rules: float) -> SearchResult:
    chosen = SearchRules(versions=scene.versions, **rules)  # type: ignore[arg-type]
    return search(scene.measure(np.random.default_rng([scene.versions, 1, seed])), chosen)[0]


def is_right(found: SearchResult, scene: Scene) -> bool:
    """Whether one version is named, and it brought the largest step."""
    largest = max(scene.steps, key=lambda at: scene.steps[at])
    return found.span is not None and (found.span.first, found.span.last) == (largest, largest)


def thresholded(scene: Scene, seed: int, pairs: int) -> bool:
    """Whether halving by the median of so many pairs beside half of the step, which is known, ends there."""
    measure = scene.measure(np.random.default_rng([scene.versions, 2, seed]))
    ((at, _),) = scene.steps.items()
    good, bad = 0, scene.versions - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        seen = median([measure(NextPair(middle, 0)) or 0.0 for _ in range(pairs)])
        good, bad = (good, middle) if seen > scene.level(at) / 2 else (middle, bad)
    return bad == at


def row(versions: int, step: float, deviation: float, seeds: int) -> str:
    made = scenes(versions, (step,) if step else (), deviation, seeds)
    found = [searched(scene, seed) for seed, scene in enumerate(made)]
    named = [f for f in found if f.end is SearchEnd.NAMED]
    right = sum(f.end is SearchEnd.NAMED and is_right(f, s) for f, s in zip(found, made, strict=True) if step)
    none = sum(f.end is SearchEnd.NO_DIFFERENCE for f in found)
    pairs = [float(f.pairs) for f in found]
    spread = f"{mean(pairs):.0f} ({quantile(pairs, 0.05):.0f}–{quantile(pairs, 0.95):.0f})"
    others = [sum(thresholded(s, n, count) for n, s in enumerate(made)) if step else None for count in (1, 5)]
    shares = [f"{100 * each / seeds:.0f} %" if each is not None else "–" for each in (right, *others)]
    told = f"{100 * (len(named) - right) / seeds:.0f} % | {100 * none / seeds:.0f} %"
    cells = [str(versions), f"{step:.0%}", f"{deviation:.0%}", shares[0], told, spread, *shares[1:]]
    return f"| {' | '.join(cells)} |"


def two_steps(versions: int, steps: tuple[float, ...], deviation: float, seeds: int) -> str:
    made = scenes(versions, steps, deviation, seeds)
    seen: Counter[str] = Counter()
    for seed, scene in enumerate(made):
        found = searched(scene, seed)
        named = found.end is SearchEnd.NAMED and found.span
        at = named.last if named else 0
        seen["one of them named"] += at in scene.steps
        seen["another named"] += bool(named) and at not in scene.steps
        seen["two told"] += found.second is not None
    counts = " | ".join(f"{100 * count / seeds:.0f} %" for count in seen.values())
    return f"| {versions} | {' and '.join(f'{step:.0%}' for step in steps)} | {deviation:.0%} | {counts} |"


def main(seeds: int) -> None:
    print("| versions | step | σ of a pair | named rightly | a wrong one named | no difference |", end="")
    print(" pairs, mean (5 %–95 %) | one pair beside a threshold | median of five |")
    print("| ---: " * 9 + "|")
    for versions, step, deviation in (
        *((5, 0.03, 0.02), (64, 0.10, 0.02), (64, 0.05, 0.02), (64, 0.03, 0.02), (64, 0.05, 0.04)),
        *((1000, 0.05, 0.02), (5, 0.0, 0.02), (64, 0.0, 0.02), (64, 0.01, 0.02)),
    ):
        print(row(versions, step, deviation, seeds), flush=True)
    print()
    print("| versions | two steps | σ of a pair | one of them named | another named | two told |")
    print("| ---: " * 6 + "|")
    for steps in ((0.05, 0.05), (0.03, 0.07), (0.1, 0.1)):
        print(two_steps(64, steps, 0.02, seeds), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
