"""Do three detectors find a step among spikes, and how often do they report a change without one?

    python -m studies.spikes_and_steps [SERIES] > studies/output/spikes_and_steps.md

The detectors are `accelbench history`, asv (its step detection, changes of at least 3 %) and E-divisive with
permutations (Matteson & James 2014, at p < 0.05 and 3 %). A step is in the middle of 100 runs. It counts as
found if a change is reported within three runs. Spikes are single slow runs: some at random positions, some
before the step and as high. The noise of a run is t with 5 degrees of freedom. Needs `pip install asv`.
tests/test_history.py has a reduced version for accelbench.
"""

import math
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from benchbench.judging.change_points import change_points
from studies.series import correlated, heavy, independent, spiky
from tests.simulator import Array

RUNS, MIDDLE, MARGIN, THRESHOLD = 100, 50, 3, 0.03
PERMUTATIONS, SHORTEST, LEVEL = 99, 3, 0.05
Source = np.random.Generator
Detector = Callable[[Array, Source], list[int]]  # logarithms → the first run of each new level


def ours(logs: Array, _source: Source) -> list[int]:
    return [change.index for change in change_points(np.exp(logs).tolist(), threshold=THRESHOLD).changes]


def asv(logs: Array, _source: Source) -> list[int]:
    """Return the starts of pieces that differ from the piece before by at least the threshold."""
    from asv.step_detect import detect_steps  # type: ignore[import-not-found]

    pieces = detect_steps(np.exp(logs).tolist())
    pairs = pairwise(pieces)
    return [b[0] for a, b in pairs if abs(math.log(b[2] / a[2])) >= math.log1p(THRESHOLD)]


def e_divisive(logs: Array, source: Source) -> list[int]:
    """Split at the largest energy distance as long as few permutations of the segments reach it."""
    edges = [0, len(logs)]
    while True:
        splits = [(*_split(logs[a:b]), a) for a, b in pairwise(edges)]
        value, offset, start = max(splits)
        if not offset or not _significant(logs, edges, value, source):
            break
        edges = sorted([*edges, start + offset])
    levels = [float(logs[a:b].mean()) for a, b in pairwise(edges)]
    changed = zip(edges[1:], levels, levels[1:], strict=False)
    return [edge for edge, before, after in changed if abs(after - before) >= math.log1p(THRESHOLD)]


def _significant(logs: Array, edges: Sequence[int], value: float, source: Source) -> bool:
    reached = 1
    for _ in range(PERMUTATIONS):
        parts = [source.permutation(logs[a:b]) for a, b in pairwise(edges)]
        reached += max(_split(part)[0] for part in parts) >= value
        if reached > LEVEL * (PERMUTATIONS + 1):
            return False
    return True


def _split(values: Array) -> tuple[float, int]:
    """Return the largest scaled energy distance of two parts, and the start of the second; 0: no split."""
    count = len(values)
    if count < 2 * SHORTEST:
        return 0.0, 0
    distances = np.abs(values[:, None] - values[None, :]).cumsum(axis=0).cumsum(axis=1)
    first = np.arange(SHORTEST, count - SHORTEST + 1)
    total, last = distances[-1, -1], count - first
    within_first = distances[first - 1, first - 1]
    between = distances[first - 1, -1] - within_first
    within_last = total - within_first - 2 * between
    energy = (
        2 * between / (first * last)
        - within_first / (first * (first - 1))
        - within_last / (last * (last - 1))
    )
    scaled = first * last / count * energy
    best = int(scaled.argmax())
    return float(scaled[best]), int(first[best])


DETECTORS: dict[str, Detector] = {"accelbench": ours, "asv": asv, "E-divisive": e_divisive}
STATIONARY: dict[str, Callable[[Source, int], Array]] = {
    "independent, 3 %": lambda source, count: independent(source, count, 0.03),
    "t₃, scale 2 %": heavy,
    "1 % with 3 % of spikes × 1.3": spiky,
    "AR(1), φ = 0.5, 3 %": lambda source, count: correlated(source, count, 0.5),
}


def stepped(source: Source, step: float, at_random: float, before: int) -> Array:
    """Return log times with 5 % noise, a step, random spikes of 30 %, and `before` spikes of its height."""
    logs = 0.05 * source.standard_t(5, RUNS) / math.sqrt(5 / 3)
    logs[MIDDLE:] += math.log1p(step)
    logs += math.log(1.3) * (source.random(RUNS) < at_random)
    logs[source.choice(np.arange(5, MIDDLE - 5), before, replace=False)] += math.log1p(step)
    return np.asarray(logs)


def main(count: int) -> None:
    print(f"{count} series a row, 100 runs each\n")
    heads = " | ".join(DETECTORS)
    print(f"| a step | spikes at random | before it, as high | {heads} |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for step in (0.05, 0.1, 0.2):
        for at_random, before in ((0.0, 0), (0.03, 0), (0.03, 2), (0.03, 4)):
            series = [stepped(np.random.default_rng([7, n]), step, at_random, before) for n in range(count)]
            shares = [
                np.mean(
                    [
                        any(abs(index - MIDDLE) <= MARGIN for index in changes)
                        for changes in _changes(detector, series)
                    ]
                )
                for detector in DETECTORS.values()
            ]
            print(
                f"| +{step:.0%} | {at_random:.0%} | {before} | {_cells(shares)} |".replace("%", " %"),
                flush=True,
            )
    print(f"\n| no step, told to change | {heads} |\n| --- | ---: | ---: | ---: |")
    for name, logs in STATIONARY.items():
        series = [logs(np.random.default_rng([8, n]), RUNS) for n in range(count)]
        shares = [
            np.mean([bool(changes) for changes in _changes(detector, series)])
            for detector in DETECTORS.values()
        ]
        print(f"| {name} | {_cells(shares)} |".replace("%", " %").replace("  %", " %"), flush=True)


def _changes(detector: Detector, series: Sequence[Array]) -> list[list[int]]:
    source = np.random.default_rng(9)
    return [detector(logs, source) for logs in series]


def _cells(shares: Sequence[float | np.floating]) -> str:
    return " | ".join(f"{100 * share:.0f}%" for share in shares)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
