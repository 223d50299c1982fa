"""Comparisons whose rounds the tool chooses: `python -m studies.adaptive_rounds [SUITES [NOISE [ROUNDS]]]`.

Prints how often some of 30 unchanged cases is called slower, how often the 95 % intervals hold the truth, and
how often 3 slower cases are found, with the tool's own schedule and rule. NOISE and ROUNDS choose rows.

Not a test: the tests hold reduced versions.
"""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from benchbench.judging.comparison import CaseComparison, compare_runs
from benchbench.model.case import Verdict
from benchbench.model.measurement import Measurement
from benchbench.model.run import Policy, Record, Run
from benchbench.timing.policy import POLICIES, budget_policy
from tests.simulator import Array, a_scheduled_run, noise

CASES, SLOW = 30, 3
BUDGET_S = 180.0  # twice as many processes as the first rounds have
PRESETS = {
    "default": POLICIES["default"],
    "`--rounds 5`": Policy(name="fixed", rounds=5),
    "`--budget`": budget_policy(BUDGET_S),
    "`--quick`": POLICIES["quick"],
}
Source = np.random.Generator


def alike(source: Source, spread: float, *, heavy: bool = False) -> Array:
    """Logarithms of processes of 30 cases, as many as any preset may measure."""
    return spread * noise(source, heavy, CASES, 24)


def unlike(source: Source, spread: float, deviation: float) -> Array:
    """Cases whose spreads are log-normal, the same in both runs."""
    spreads = spread * np.exp(deviation * np.random.default_rng(30).standard_normal((CASES, 1)))
    return np.asarray(spreads * source.standard_normal((CASES, 24)))


def some_noisy(source: Source, spread: float, factor: float) -> Array:
    """The last six are noisier."""
    values = alike(source, spread)
    values[-6:] *= factor
    return values


def skewed(source: Source, scale: float) -> Array:
    """Log-normal of shape 1 above a common floor: a few processes are much slower than the rest."""
    return np.asarray(scale * source.lognormal(0, 1, (CASES, 24)))


def two_modes(source: Source, spread: float, share: float = 1.0) -> Array:
    """Half of the processes of a share of the cases take 10 % longer."""
    values = alike(source, spread)
    affected = round(share * CASES)
    values[:affected] += math.log(1.1) * (source.random((affected, 24)) < 0.5)
    return values


NOISE: dict[str, Callable[[Source], Array]] = {
    "1 %": partial(alike, spread=0.01),
    "3 %": partial(alike, spread=0.03),
    "5 %": partial(alike, spread=0.05),
    "t₃ 2 %": partial(alike, spread=0.02, heavy=True),
    "log-normal about 1.2 %": partial(unlike, spread=0.012, deviation=1.24),
    "skewed processes, scale 2 %": partial(skewed, scale=0.02),
    "1 %, of 6 cases 3 %": partial(some_noisy, spread=0.01, factor=3.0),
    "two modes, 0.1 %": partial(two_modes, spread=0.001),
    "two modes of 10 cases, 0.1 %": partial(two_modes, spread=0.001, share=1 / 3),
}


def measured(policy: Policy, logs: Array) -> Run:
    """A run of 30 cases."""
    return a_scheduled_run(policy, 1e-3 * np.exp(logs))


def slowed(run: Run, factor: float) -> Run:
    """The first three cases slower: their spread stays, and with it the rounds they get."""
    slow = run.info.plan[:SLOW]
    return replace(
        run, records=tuple(_slowed(each, factor) if each.case in slow else each for each in run.records)
    )


def _slowed(record: Record, factor: float) -> Record:
    assert isinstance(record.outcome, Measurement)
    blocks = tuple(factor * seconds for seconds in record.outcome.block_s)
    return replace(record, outcome=replace(record.outcome, block_s=blocks))


@dataclass
class Counts:
    """Of suites: those with an alarm, intervals that hold 1, and slower cases found at each change."""

    alarms: int = 0
    held: int = 0
    hits: list[int] = field(default_factory=list)

    def add(self, unchanged: Sequence[CaseComparison], slower: Sequence[Sequence[CaseComparison]]) -> None:
        self.alarms += any(each.verdict is Verdict.SLOWER for each in unchanged)
        self.held += sum((each.low or 0) <= 1 <= (each.high or math.inf) for each in unchanged)
        hits = [sum(each.verdict is Verdict.SLOWER for each in verdicts[:SLOW]) for verdicts in slower]
        self.hits = [sum(both) for both in zip(self.hits or [0] * len(hits), hits, strict=True)]

    def shares(self, suites: int) -> list[float]:
        return [self.alarms / suites, self.held / (CASES * suites), *(n / (SLOW * suites) for n in self.hits)]


def rates(
    policy: Policy, logs: Callable[[Source], Array], suites: int, changes: Sequence[float] = ()
) -> list[float]:
    """Shares of alarms, of intervals that hold the truth, and of slower cases found."""
    source, counts = np.random.default_rng([suites, policy.rounds]), Counts()
    for _ in range(suites):
        ref, new = (measured(policy, logs(source)) for _ in range(2))
        runs = [new, *(slowed(new, change) for change in changes)]
        unchanged, *slower = (compare_runs(ref, run).verdicts for run in runs)
        counts.add(unchanged, slower)
    return counts.shares(suites)


def main(suites: int, noise: str = "", rounds: str = "") -> None:
    """`noise`, `rounds`: how the names begin of the rows to make; empty: all."""
    print("| noise | rounds | any of 30 slower | intervals hold | finds 5 % | 10 % |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    chosen = itertools.product(NOISE.items(), PRESETS.items())
    for (name, logs), (preset, policy) in chosen:
        if name.startswith(noise) and preset.startswith(rounds):
            shares = rates(policy, logs, suites, (1.05, 1.1))
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            print(f"| {name} | {preset} | {cells} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300, *sys.argv[2:4])
