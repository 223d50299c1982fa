"""Simulated fleets of machines of one type: `python -m studies.stragglers [FLEETS]`.

Prints how often one of machines that are all alike is called slow, by the tool's own rule, and how often one
that is slower by several of the standard deviations that machines differ by. Each was measured on one day.

Not a test: the tests hold reduced versions.
"""

import sys

import numpy as np

from benchbench.choosing.stragglers import machine_ps
from benchbench.judging.comparison import ALPHA
from benchbench.judging.sessions import ASSUMED_SHARED
from benchbench.stats import holm
from tests.simulator import Array, noise

SIZES = (3, 5, 8, 12, 16, 32, 64)
SLOWER = (5, 7, 10)  # standard deviations


def fleets(size: int, count: int, heavy: bool) -> Array:
    """Logarithms of scores, shape (count, size)."""
    return ASSUMED_SHARED * noise(np.random.default_rng([size, heavy]), heavy, count, size)


def called(scores: Array) -> list[bool]:
    return [p < ALPHA for p in holm(machine_ps(scores.tolist(), ASSUMED_SHARED))]


def false_alarms(size: int, count: int, heavy: bool) -> float:
    return float(np.mean([any(called(scores)) for scores in fleets(size, count, heavy)]))


def power(size: int, count: int, deviations: float) -> float:
    slow = deviations * ASSUMED_SHARED * (np.arange(size) == 0)
    return float(np.mean([called(scores + slow)[0] for scores in fleets(size, count, heavy=False)]))


def main(count: int) -> None:
    print("| machines | any called: normal days | t₃ days |", " | ".join(f"finds {n} σ" for n in SLOWER), "|")
    print("| ---: | ---: | ---: |" + " ---: |" * len(SLOWER))
    for size in SIZES:
        alarms = [f"{100 * false_alarms(size, count, heavy):.1f} %" for heavy in (False, True)]
        found = [f"{100 * power(size, count, deviations):.0f} %" for deviations in SLOWER]
        print(f"| {size} | {' | '.join(alarms + found)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
