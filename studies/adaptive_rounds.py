"""Error rates of comparisons of two stored runs, whose numbers of rounds depend on the measured noise.

    python -m studies.adaptive_rounds [SUITES [NOISE [ROUNDS]]] > studies/output/adaptive_rounds.md

Simulates pairs of runs of 30 cases with accelbench's own schedule and compares them by its own rule. Each row
has the share of comparisons with a false alarm, the share of 95 % intervals that contain the true ratio, and
the share of slower cases that are found. SUITES is the number of comparisons in each row. NOISE and ROUNDS
select rows by the beginnings of their first two columns. tests/test_variance.py has a reduced version.
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
    """Return log times of 24 processes, the most of any preset, for 30 cases with the same spread."""
    return spread * noise(source, heavy, CASES, 24)


def unlike(source: Source, spread: float, deviation: float) -> Array:
    """Return log times of cases with log-normal spreads, which are the same in both runs."""
    spreads = spread * np.exp(deviation * np.random.default_rng(30).standard_normal((CASES, 1)))
    return np.asarray(spreads * source.standard_normal((CASES, 24)))


def some_noisy(source: Source, spread: float, factor: float) -> Array:
    """Return log times of which the last six cases are noisier."""
    values = alike(source, spread)
    values[-6:] *= factor
    return values


def skewed(source: Source, scale: float) -> Array:
    """Return log-normal values of shape 1 above a common floor, so a few processes are much slower."""
    return np.asarray(scale * source.lognormal(0, 1, (CASES, 24)))


def two_modes(source: Source, spread: float, share: float = 1.0) -> Array:
    """Return log times in which half of the processes of a share of the cases take 10 % longer."""
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


def simulated_run(policy: Policy, logs: Array) -> Run:
    """Return a run of 30 cases."""
    return a_scheduled_run(policy, 1e-3 * np.exp(logs))


def slowed(run: Run, factor: float) -> Run:
    """Make the first three cases slower. Their spread stays the same, and so does their number of rounds."""
    slow = run.info.plan[:SLOW]
    return replace(
        run,
        records=tuple(_slowed(record, factor) if record.case in slow else record for record in run.records),
    )


def _slowed(record: Record, factor: float) -> Record:
    assert isinstance(record.outcome, Measurement)
    blocks = tuple(factor * seconds for seconds in record.outcome.block_s)
    return replace(record, outcome=replace(record.outcome, block_s=blocks))


@dataclass
class Counts:
    """Counts over simulated suites."""

    alarms: int = 0  # suites with a false alarm
    covering: int = 0  # intervals that contain 1
    slower_found: list[int] = field(default_factory=list)  # detected slower cases, for each change

    def add(self, unchanged: Sequence[CaseComparison], slower: Sequence[Sequence[CaseComparison]]) -> None:
        self.alarms += any(comparison.verdict is Verdict.SLOWER for comparison in unchanged)
        self.covering += sum(
            (comparison.low or 0) <= 1 <= (comparison.high or math.inf) for comparison in unchanged
        )
        counts = [sum(row.verdict is Verdict.SLOWER for row in verdicts[:SLOW]) for verdicts in slower]
        sums = self.slower_found or [0] * len(counts)
        self.slower_found = [total + count for total, count in zip(sums, counts, strict=True)]

    def shares(self, suites: int) -> list[float]:
        powers = [count / (SLOW * suites) for count in self.slower_found]
        return [self.alarms / suites, self.covering / (CASES * suites), *powers]


def rates(
    policy: Policy, logs: Callable[[Source], Array], suites: int, changes: Sequence[float] = ()
) -> list[float]:
    """Return the shares of false alarms, of intervals that contain 1, and of detected cases per change."""
    source, counts = np.random.default_rng([suites, policy.rounds]), Counts()
    for _ in range(suites):
        ref, new = (simulated_run(policy, logs(source)) for _ in range(2))
        runs = [new, *(slowed(new, change) for change in changes)]
        unchanged, *slower = (compare_runs(ref, run).verdicts for run in runs)
        counts.add(unchanged, slower)
    return counts.shares(suites)


def main(suites: int, noise: str = "", rounds: str = "") -> None:
    """Print the rows whose first two columns begin with `noise` and `rounds`."""
    print("| noise | rounds | any of 30 slower | intervals hold | finds 5 % | 10 % |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    rows = itertools.product(NOISE.items(), PRESETS.items())
    for (name, logs), (preset, policy) in rows:
        if name.startswith(noise) and preset.startswith(rounds):
            shares = rates(policy, logs, suites, (1.05, 1.1))
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            print(f"| {name} | {preset} | {cells} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300, *sys.argv[2:4])
