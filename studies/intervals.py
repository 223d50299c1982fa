"""Does the 95 % interval of a latency hold the truth? `python -m studies.intervals [RUNS]`.

Prints, of simulated runs of 30 cases with the tool's own schedule, how often the interval that a report shows
holds the latency that any number of processes would have, over all cases and in the case where it does so
least; and how wide it is, in the median. The variance is shared by the cases of a run, as a report does, or
each case's own.

Not a test: the tests hold a reduced version.
"""

import math
import sys
from collections.abc import Callable, Iterator

import numpy as np

from benchbench.analyse.metrics import METRICS
from benchbench.analyse.rows import rows
from benchbench.model.run import Policy, Run
from benchbench.stats import headline, median
from benchbench.timing.policy import POLICIES
from studies.adaptive_rounds import CASES, NOISE
from tests.simulator import Array, a_scheduled_run

STEP_S = 1e-3
PRESETS = {
    "--quick": POLICIES["quick"],
    "default": POLICIES["default"],
    "five": Policy(name="fixed", rounds=5),
}
KINDS = (
    "1 %",
    "5 %",
    "t₃ 2 %",
    "skewed processes, scale 2 %",
    "log-normal about 1.2 %",
    "1 %, of 6 cases 3 %",
    "two modes, 0.1 %",
)
Source = np.random.Generator
DRAWS = 500  # of all cases, for the mean logarithm of a noise


def level(logs: Callable[[Source], Array]) -> float:
    """The mean logarithm of processes, which the geometric mean of many reaches."""
    source = np.random.default_rng(1)
    return float(np.mean([logs(source).mean() for _ in range(DRAWS)]))


def shared(run: Run) -> Iterator[tuple[float, float]]:
    """The interval of each case in a report."""
    for row in rows(run):
        found = row.metric(METRICS[0].name)
        yield found.low or 0.0, found.high or math.inf


def own(run: Run) -> Iterator[tuple[float, float]]:
    """The same, told by the case's processes alone."""
    for case in run.info.plan:
        medians = [median(each.outcome.block_s) for each in run.records if each.case == case]  # type: ignore[union-attr]
        found = headline(medians, planned=run.info.policy.planned)
        yield found.low or 0.0, found.high or math.inf


WAYS = {"shared": shared, "own": own}


def coverage(
    logs: Callable[[Source], Array], policy: Policy, runs: int
) -> dict[str, tuple[float, float, float]]:
    """By way: the share of intervals that hold the truth, that in the worst case, the median half width."""
    truth, source = STEP_S * math.exp(level(logs)), np.random.default_rng([runs, policy.rounds])
    held = {way: np.zeros(CASES) for way in WAYS}
    halves: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(runs):
        run = a_scheduled_run(policy, STEP_S * np.exp(logs(source)))
        for way, intervals in WAYS.items():
            found = list(intervals(run))
            held[way] += [low <= truth <= high for low, high in found]
            halves[way] += [math.log(high / low) / 2 for low, high in found if low and high < math.inf]
    return {
        way: (float(held[way].mean()) / runs, float(held[way].min()) / runs, median(halves[way]))
        for way in WAYS
    }


def main(runs: int) -> None:
    error = 1.96 * math.sqrt(0.95 * 0.05 / (runs * CASES))
    print(
        f"{runs} runs of {CASES} cases: 95 % of independent cases are known within {100 * error:.1f} points\n"
    )
    print("| noise | rounds | variance | intervals hold | in the worst case | half width |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for name in KINDS:
        for preset, policy in PRESETS.items():
            for way, (share, worst, half) in coverage(NOISE[name], policy, runs).items():
                cells = f"{100 * share:.1f} % | {100 * worst:.0f} % | {100 * math.expm1(half):.1f} %"
                print(f"| {name} | {preset} | {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
