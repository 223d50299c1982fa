"""Results of simulated searches for the version that became slower.

    python -m studies.bisections [SEEDS] > studies/output/bisections.md

Each row has SEEDS searches by accelbench's own rules, with the step at a random version. It has the share of
searches that name the correct version, the share that name a wrong one, and the number of measured pairs of
processes. The last two columns are for a script under `git bisect run`, which compares each version with a
threshold. Each process has normal noise. One process in twenty is disturbed: it takes longer by the size of a
normal number with a standard deviation of 30 %. tests/test_bisection.py has a reduced version.
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

DISTURBED = 0.05  # share of processes that are disturbed
DISTURBANCE = 0.3  # standard deviation of the additional log time, whose absolute value counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Simulated versions of a program."""

    versions: int
    steps: dict[int, float]  # version → its slowdown relative to the previous version
    deviation: float  # standard deviation of the log ratio of a pair

    def level(self, version: int) -> float:
        """Return the log time of a version without noise."""
        return math.fsum(math.log1p(step) for at, step in self.steps.items() if at <= version)

    def measure(self, source: np.random.Generator) -> Callable[[NextPair], float]:
        """Return a function that simulates the log ratio of a pair of processes."""

        def process(version: int) -> float:
            noise = self.deviation / math.sqrt(2) * source.standard_normal()
            disturbance = DISTURBANCE * abs(source.standard_normal()) if source.random() < DISTURBED else 0.0
            return self.level(version) + noise + disturbance

        def pair(request: NextPair) -> float:
            return process(request.version) - process(request.beside)

        return pair


def scenes(versions: int, steps: tuple[float, ...], deviation: float, seeds: int) -> list[Scene]:
    """Return a scene for each seed, with its steps at random versions."""
    simulated = []
    for seed in range(seeds):
        source = np.random.default_rng([versions, seed])
        step_versions = source.choice(np.arange(1, versions), len(steps), replace=False).tolist()
        step_sizes = dict(zip(step_versions, steps, strict=True))
        simulated.append(Scene(versions=versions, steps=step_sizes, deviation=deviation))
    return simulated


def search(
    measure: Callable[[NextPair], float | None], rules: SearchRules
) -> tuple[SearchResult, list[VersionPair]]:
    """Search with `measure`, which returns a pair's change or None if it cannot be measured.

    Returns the result and all measured pairs.
    """
    pairs: list[VersionPair] = []
    skipped: set[int] = set()
    while isinstance(next_pair := next_pair_or_result(pairs, rules, skipped), NextPair):
        change = measure(next_pair)
        if change is None:
            skipped.add(next_pair.version)
        else:
            pairs.append(VersionPair(version=next_pair.version, beside=next_pair.beside, change=change))
    return next_pair, pairs


def simulate_search(scene: Scene, seed: int, **rules: float) -> SearchResult:
    search_rules = SearchRules(versions=scene.versions, **rules)  # type: ignore[arg-type]
    return search(scene.measure(np.random.default_rng([scene.versions, 1, seed])), search_rules)[0]


def is_right(result: SearchResult, scene: Scene) -> bool:
    """True if the search names the version with the largest step."""
    largest = max(scene.steps, key=lambda at: scene.steps[at])
    return result.span is not None and (result.span.first, result.span.last) == (largest, largest)


def threshold_finds_step(scene: Scene, seed: int, pairs: int) -> bool:
    """True if bisecting with a threshold ends at the step.

    The threshold is half of the step, whose size is known. It is compared with the median of `pairs` pairs.
    """
    measure = scene.measure(np.random.default_rng([scene.versions, 2, seed]))
    ((at, _),) = scene.steps.items()
    good, bad = 0, scene.versions - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        change = median([measure(NextPair(middle, 0)) or 0.0 for _ in range(pairs)])
        good, bad = (good, middle) if change > scene.level(at) / 2 else (middle, bad)
    return bad == at


def row(versions: int, step: float, deviation: float, seeds: int) -> str:
    all_scenes = scenes(versions, (step,) if step else (), deviation, seeds)
    results = [simulate_search(scene, seed) for seed, scene in enumerate(all_scenes)]
    ends = Counter(result.end for result in results)
    right = sum(
        result.end is SearchEnd.NAMED and is_right(result, scene)
        for result, scene in zip(results, all_scenes, strict=True)
        if step
    )
    pairs = [float(result.pairs) for result in results]
    spread = f"{mean(pairs):.0f} ({quantile(pairs, 0.05):.0f}–{quantile(pairs, 0.95):.0f})"
    counts = [right, ends[SearchEnd.NAMED] - right, ends[SearchEnd.NO_DIFFERENCE]]
    shares = [f"{100 * count / seeds:.0f} %" for count in counts]
    thresholds = [_threshold_share(all_scenes, count) if step else "–" for count in (1, 5)]
    cells = [str(versions), f"{step:.0%}", f"{deviation:.0%}", *shares, spread, *thresholds]
    return f"| {' | '.join(cells)} |"


def _threshold_share(all_scenes: list[Scene], pairs: int) -> str:
    correct = sum(threshold_finds_step(scene, seed, pairs) for seed, scene in enumerate(all_scenes))
    return f"{100 * correct / len(all_scenes):.0f} %"


def two_steps(versions: int, steps: tuple[float, ...], deviation: float, seeds: int) -> str:
    all_scenes = scenes(versions, steps, deviation, seeds)
    counts: Counter[str] = Counter()
    for seed, scene in enumerate(all_scenes):
        result = simulate_search(scene, seed)
        span = result.end is SearchEnd.NAMED and result.span
        at = span.last if span else 0
        counts["one of them named"] += at in scene.steps
        counts["another named"] += bool(span) and at not in scene.steps
        counts["two reported"] += result.second is not None
    shares = " | ".join(f"{100 * count / seeds:.0f} %" for count in counts.values())
    return f"| {versions} | {' and '.join(f'{step:.0%}' for step in steps)} | {deviation:.0%} | {shares} |"


def main(seeds: int) -> None:
    print("| versions | step | σ of a pair | correct | wrong | no difference |", end="")
    print(" pairs, mean (5 %–95 %) | one pair beside a threshold | median of five |")
    print("| ---: " * 9 + "|")
    for versions, step, deviation in (
        *((5, 0.03, 0.02), (64, 0.10, 0.02), (64, 0.05, 0.02), (64, 0.03, 0.02), (64, 0.05, 0.04)),
        *((1000, 0.05, 0.02), (5, 0.0, 0.02), (64, 0.0, 0.02), (64, 0.01, 0.02)),
    ):
        print(row(versions, step, deviation, seeds), flush=True)
    print()
    print("| versions | two steps | σ of a pair | one of them named | another named | two reported |")
    print("| ---: " * 6 + "|")
    for steps in ((0.05, 0.05), (0.03, 0.07), (0.1, 0.1)):
        print(two_steps(64, steps, 0.02, seeds), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
