"""Steps among spikes, by three detectors: `python -m studies.spikes_and_steps [SERIES]`; it needs asv.

Prints how often a step in the middle of 100 runs is found within three runs, and how often a series without
one is said to change: by `accelbench history`, by asv (its step detection, changes of 3 % and more) and by
E-divisive with permutations (Matteson & James 2014, at p < 0.05 and 3 %). Spikes are single runs: some at
random, and some before the step that reach its height. The noise of a run is t with 5 degrees of freedom.

Not a test: tests/test_history.py holds a reduced version of ours.
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
    """Of adjacent pieces whose values differ by the threshold."""
    from asv.step_detect import detect_steps  # type: ignore[import-not-found]

    pieces = detect_steps(np.exp(logs).tolist())
    pairs = pairwise(pieces)
    return [b[0] for a, b in pairs if abs(math.log(b[2] / a[2])) >= math.log1p(THRESHOLD)]


def e_divisive(logs: Array, source: Source) -> list[int]:
    """Splits with the largest energy distance, each if few permutations within its segment reach that."""
    edges = [0, len(logs)]
    while True:
        splits = [(*_split(logs[a:b]), a) for a, b in pairwise(edges)]
        value, place, start = max(splits)
        if not place or not _significant(logs, edges, value, source):
            break
        edges = sorted([*edges, start + place])
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
    """The largest scaled energy distance of two parts of `values`, and where it splits them; 0: nowhere."""
    count = len(values)
    if count < 2 * SHORTEST:
        return 0.0, 0
    apart = np.abs(values[:, None] - values[None, :]).cumsum(axis=0).cumsum(axis=1)
    first = np.arange(SHORTEST, count - SHORTEST + 1)
    total, last = apart[-1, -1], count - first
    left = apart[first - 1, first - 1]
    between = apart[first - 1, -1] - left
    right = total - left - 2 * between
    energy = 2 * between / (first * last) - left / (first * (first - 1)) - right / (last * (last - 1))
    scaled = first * last / count * energy
    place = int(scaled.argmax())
    return float(scaled[place]), int(first[place])


DETECTORS: dict[str, Detector] = {"accelbench": ours, "asv": asv, "E-divisive": e_divisive}
STATIONARY: dict[str, Callable[[Source, int], Array]] = {
    "independent, 3 %": lambda source, count: independent(source, count, 0.03),
    "t₃, scale 2 %": heavy,
    "1 % with 3 % of spikes × 1.3": spiky,
    "AR(1), φ = 0.5, 3 %": lambda source, count: correlated(source, count, 0.5),
}


def stepped(source: Source, step: float, at_random: float, before: int) -> Array:
    """Noise of 5 %, a step, `at_random` of the runs 30 % slower, and `before` it runs as slow as after it."""
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
                        any(abs(each - MIDDLE) <= MARGIN for each in found)
                        for found in _found(detector, series)
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
        shares = [np.mean([bool(found) for found in _found(each, series)]) for each in DETECTORS.values()]
        print(f"| {name} | {_cells(shares)} |".replace("%", " %").replace("  %", " %"), flush=True)


def _found(detector: Detector, series: Sequence[Array]) -> list[list[int]]:
    source = np.random.default_rng(9)
    return [detector(logs, source) for logs in series]


def _cells(shares: Sequence[float | np.floating]) -> str:
    return " | ".join(f"{100 * share:.0f}%" for share in shares)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
