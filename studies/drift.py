"""Drift inside runs, simulated: how often it is told, and what allowing for it does to stored comparisons.

    python -m studies.drift > studies/output/drift.txt

Quiet runs have independent processes. Of the others, all cases share what their rounds differ by, over noise
of 1 %: a random walk of 2 % a run, or shifts of 2 %, each round its own. Nothing else differs between the two
runs of a comparison. `shuffled` has the same processes with the rounds of each case in random order, so that
nothing common can be seen: what a comparison says that does not allow for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from benchbench.analyse.doubts import drift
from benchbench.judging.comparison import compare_runs
from benchbench.model.case import Verdict
from tests.simulator import Array, a_suite, noise

CASES, ROUNDS = (1, 6, 30), (3, 5, 10)
QUIET, PAIRS = 2000, 200  # runs, and pairs of them
CALLED = (Verdict.SLOWER, Verdict.FASTER)

Common = Callable[[np.random.Generator, int], Array]


def told(logs: Array) -> bool:
    """Whether a run is said to drift: row by row the rounds of a case."""
    return drift(list(enumerate(row)) for row in logs.tolist()) is not None


def walk(source: np.random.Generator, rounds: int) -> Array:
    """What the rounds of a run differ by where each goes on from the one before."""
    return np.asarray(0.02 / math.sqrt(rounds) * np.cumsum(source.standard_normal(rounds)))


def shifts(source: np.random.Generator, rounds: int) -> Array:
    """The same where each is by itself."""
    return 0.02 * source.standard_normal(rounds)


def disturbed(source: np.random.Generator, common: Common, cases: int, rounds: int) -> Array:
    """Logarithms of the processes of a run."""
    return np.asarray(common(source, rounds) + 0.01 * source.standard_normal((cases, rounds)))


def called(ref: Array, new: Array) -> set[Verdict]:
    """Which verdicts some case has."""
    found = compare_runs(a_suite(1e-3 * np.exp(ref)), a_suite(1e-3 * np.exp(new)))
    return {each.verdict for each in found.verdicts}


def quiet(cases: int, rounds: int, heavy: bool, count: int = QUIET) -> float:
    """The share of quiet runs that are said to drift."""
    source = np.random.default_rng([cases, rounds, heavy])
    return sum(told(0.02 * noise(source, heavy, cases, rounds)) for _ in range(count)) / count


def stored(common: Common, cases: int, rounds: int, count: int = PAIRS) -> Iterator[float]:
    """Of such runs those told; comparisons that alarm, rounds shuffled and in order; of these the slower."""
    source = np.random.default_rng([cases, rounds])
    seen, shuffled, ordered = 0, list[set[Verdict]](), list[set[Verdict]]()
    for _ in range(count):
        ref, new = (disturbed(source, common, cases, rounds) for _ in "ab")
        seen += told(ref) + told(new)
        shuffled.append(called(*(source.permuted(logs, axis=1) for logs in (ref, new))))
        ordered.append(called(ref, new))
    yield seen / 2 / count
    for suites, kinds in ((shuffled, CALLED), (ordered, CALLED), (ordered, CALLED[:1])):
        yield sum(not each.isdisjoint(kinds) for each in suites) / count


def main() -> None:
    """All tables."""
    print(f"{QUIET} quiet runs each: said to drift\ncases  rounds  normal     t3")
    for cases, rounds in product(CASES, ROUNDS):
        normal, heavy = quiet(cases, rounds, heavy=False), quiet(cases, rounds, heavy=True)
        print(f"{cases:5}  {rounds:6}  {normal:6.1%}  {heavy:5.1%}")
    for what, common in (("walk", walk), ("have uneven rounds", shifts)):
        print(f"\n{PAIRS} comparisons each of runs that {what}: some case is called slower or faster")
        print("cases  rounds  runs told  shuffled  in order  of these slower")
        for cases, rounds in product(CASES, ROUNDS):
            seen, shuffled, ordered, slower = stored(common, cases, rounds)
            figures = f"{seen:9.1%}  {shuffled:8.1%}  {ordered:8.1%}  {slower:15.1%}"
            print(f"{cases:5}  {rounds:6}  {figures}", flush=True)


if __name__ == "__main__":
    main()
