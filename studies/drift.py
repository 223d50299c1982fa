"""Detection of drift within simulated runs, and false alarms of comparisons of drifting runs.

    python -m studies.drift [PAIRS] > studies/output/drift.txt

Quiet runs have independent processes. In the other runs, the rounds differ in the same way for all cases.
They follow a random walk of 2 % per run, or have independent shifts of 2 % per round. All processes have 1 %
noise. The two runs of a comparison differ in nothing else, so every change is a false alarm. Columns named
`shuffled` have the rounds of each case in random order, which hides the drift from the comparison. PAIRS
(200) is the number of comparisons in each row. Ten times as many quiet runs are simulated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from benchbench.analyse.doubts import drift
from benchbench.judging.comparison import compare_runs
from benchbench.model.case import Verdict
from tests.simulator import Array, a_suite, noise

CASES, ROUNDS = (1, 6, 30), (3, 5, 10)
PAIRS = 200
QUIET_PER_PAIR = 10
CALLED = (Verdict.SLOWER, Verdict.FASTER)

RoundDrift = Callable[[np.random.Generator, int], Array]


def is_reported(logs: Array) -> bool:
    """True if accelbench reports drift. `logs` has a row of rounds for each case."""
    return drift(list(enumerate(row)) for row in logs.tolist()) is not None


def walk(source: np.random.Generator, rounds: int) -> Array:
    """Return the log factors of the rounds of a random walk."""
    return np.asarray(0.02 / math.sqrt(rounds) * np.cumsum(source.standard_normal(rounds)))


def shifts(source: np.random.Generator, rounds: int) -> Array:
    """Return independent log factors of the rounds."""
    return 0.02 * source.standard_normal(rounds)


def disturbed(source: np.random.Generator, drift_of: RoundDrift, cases: int, rounds: int) -> Array:
    """Return the log times of the processes of a run."""
    return np.asarray(drift_of(source, rounds) + 0.01 * source.standard_normal((cases, rounds)))


def verdicts_of(ref: Array, new: Array) -> set[Verdict]:
    """Return all verdicts of a comparison."""
    comparison = compare_runs(a_suite(1e-3 * np.exp(ref)), a_suite(1e-3 * np.exp(new)))
    return {verdict_row.verdict for verdict_row in comparison.verdicts}


def quiet_rate(cases: int, rounds: int, heavy: bool, count: int) -> float:
    """Return the share of quiet runs for which drift is reported."""
    source = np.random.default_rng([cases, rounds, heavy])
    return sum(is_reported(0.02 * noise(source, heavy, cases, rounds)) for _ in range(count)) / count


def comparison_rates(drift_of: RoundDrift, cases: int, rounds: int, count: int) -> Iterator[float]:
    """Yield the share of runs with reported drift, then the shares of comparisons with a false alarm.

    The rounds are shuffled, then in order. The last share counts `slower` alone, with the rounds in order.
    """
    source = np.random.default_rng([cases, rounds])
    reported, shuffled, in_order = 0, list[set[Verdict]](), list[set[Verdict]]()
    for _ in range(count):
        ref, new = (disturbed(source, drift_of, cases, rounds) for _ in "ab")
        reported += is_reported(ref) + is_reported(new)
        shuffled.append(verdicts_of(*(source.permuted(logs, axis=1) for logs in (ref, new))))
        in_order.append(verdicts_of(ref, new))
    yield reported / 2 / count
    for suites, kinds in ((shuffled, CALLED), (in_order, CALLED), (in_order, CALLED[:1])):
        yield sum(not verdicts.isdisjoint(kinds) for verdicts in suites) / count


def main(pairs: int) -> None:
    """Print all tables."""
    quiet_runs = QUIET_PER_PAIR * pairs
    print(f"{quiet_runs} quiet runs each: drift reported\ncases  rounds  normal     t3")
    for cases, rounds in product(CASES, ROUNDS):
        normal, heavy = (quiet_rate(cases, rounds, heavy, quiet_runs) for heavy in (False, True))
        print(f"{cases:5}  {rounds:6}  {normal:6.1%}  {heavy:5.1%}")
    for description, drift_of in (("walk", walk), ("have uneven rounds", shifts)):
        print(f"\n{pairs} comparisons each of runs that {description}: some case is called slower or faster")
        print("cases  rounds   reported  shuffled  in order  of these slower")
        for cases, rounds in product(CASES, ROUNDS):
            reported, shuffled, in_order, slower = comparison_rates(drift_of, cases, rounds, pairs)
            figures = f"{reported:9.1%}  {shuffled:8.1%}  {in_order:8.1%}  {slower:15.1%}"
            print(f"{cases:5}  {rounds:6}  {figures}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS)
