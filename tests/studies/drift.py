"""Drift inside runs, simulated: how often it is told, and what allowing for it does to stored comparisons.

    python -m tests.studies.drift > tests/studies/output/drift.txt

Quiet runs have independent processes. Walks are of 2 % a run, shared by its cases, over noise of 1 %; nothing
else differs between the two runs of a comparison. `shuffled` has the same processes with their rounds in
random order, so that no drift can be seen: what a comparison says that does not allow for it.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from benchbench.analyse.drift import drift
from benchbench.comparing.verdicts import compare_runs
from benchbench.model.status import Verdict
from tests.simulator import Array, a_suite, noise

CASES, ROUNDS = (1, 6, 30), (3, 5, 10)
QUIET, WALKS = 2000, 200  # runs, and pairs of them
CALLED = (Verdict.SLOWER, Verdict.FASTER)


def told(logs: Array) -> bool:
    """Whether a run is said to drift: row by row the rounds of a case."""
    return drift(list(enumerate(row)) for row in logs.tolist()) is not None


def walking(source: np.random.Generator, cases: int, rounds: int) -> Array:
    """Logarithms of the processes of a run."""
    walk = 0.02 / math.sqrt(rounds) * np.cumsum(source.standard_normal(rounds))
    return np.asarray(walk + 0.01 * source.standard_normal((cases, rounds)))


def alarms(ref: Array, new: Array) -> bool:
    """Whether some case is called slower or faster."""
    found = compare_runs(a_suite(1e-3 * np.exp(ref)), a_suite(1e-3 * np.exp(new)))
    return any(each.verdict in CALLED for each in found.verdicts)


def quiet(cases: int, rounds: int, heavy: bool, count: int = QUIET) -> float:
    """The share of quiet runs that are said to drift."""
    source = np.random.default_rng([cases, rounds, heavy])
    return sum(told(0.02 * noise(source, heavy, cases, rounds)) for _ in range(count)) / count


def stored(cases: int, rounds: int, count: int = WALKS) -> tuple[float, float, float]:
    """Of runs that walk: those told, and the comparisons that alarm, rounds shuffled and in order."""
    source = np.random.default_rng([cases, rounds])
    seen, shuffled, ordered = 0, 0, 0
    for _ in range(count):
        ref, new = walking(source, cases, rounds), walking(source, cases, rounds)
        seen += told(ref) + told(new)
        shuffled += alarms(*(source.permuted(logs, axis=1) for logs in (ref, new)))
        ordered += alarms(ref, new)
    return seen / 2 / count, shuffled / count, ordered / count


def main() -> None:
    """Both tables."""
    print(f"{QUIET} quiet runs each: said to drift\ncases  rounds  normal     t3")
    for cases, rounds in product(CASES, ROUNDS):
        normal, heavy = quiet(cases, rounds, heavy=False), quiet(cases, rounds, heavy=True)
        print(f"{cases:5}  {rounds:6}  {normal:6.1%}  {heavy:5.1%}")
    print(f"\n{WALKS} comparisons each of runs that walk: some case is called slower or faster")
    print("cases  rounds  runs said to drift  shuffled  in order")
    for cases, rounds in product(CASES, ROUNDS):
        seen, shuffled, ordered = stored(cases, rounds)
        print(f"{cases:5}  {rounds:6}  {seen:18.1%}  {shuffled:8.1%}  {ordered:8.1%}", flush=True)


if __name__ == "__main__":
    main()
