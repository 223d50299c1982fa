"""Coverage of the 95 % intervals of latencies, in simulated runs.

    python -m studies.intervals [RUNS] > studies/output/intervals.md

Simulates runs of 30 cases with accelbench's own schedule. The truth is the latency that many processes would
have. Each row has the share of intervals that contain it, over all cases and in the worst case, and the
median half width of the intervals. In rows named `shared`, all cases contribute to the variance, as in a
report. In rows named `own`, each case is estimated separately. tests/test_variance.py has a reduced version.
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
DRAWS = 500  # simulated runs that estimate the mean log time of a noise


def level(logs: Callable[[Source], Array]) -> float:
    """Return the mean log time of processes."""
    source = np.random.default_rng(1)
    return float(np.mean([logs(source).mean() for _ in range(DRAWS)]))


def shared(run: Run) -> Iterator[tuple[float, float]]:
    """Yield the interval of each case as in a report."""
    for row in rows(run):
        latency = row.metric(METRICS[0].name)
        yield latency.low or 0.0, latency.high or math.inf


def separate(run: Run) -> Iterator[tuple[float, float]]:
    """Yield the interval of each case, estimated from its own processes only."""
    for case in run.info.plan:
        records = [record for record in run.records if record.case == case]
        medians = [median(record.outcome.block_s) for record in records]  # type: ignore[union-attr]
        estimate = headline(medians, planned=run.info.policy.planned)
        yield estimate.low or 0.0, estimate.high or math.inf


VARIANCES = {"shared": shared, "own": separate}


def coverage(
    logs: Callable[[Source], Array], policy: Policy, runs: int
) -> dict[str, tuple[float, float, float]]:
    """Return, by variance, the coverage over all cases and in the worst case, and the median half width."""
    truth, source = STEP_S * math.exp(level(logs)), np.random.default_rng([runs, policy.rounds])
    covering = {variance: np.zeros(CASES) for variance in VARIANCES}
    half_widths: dict[str, list[float]] = {variance: [] for variance in VARIANCES}
    for _ in range(runs):
        run = a_scheduled_run(policy, STEP_S * np.exp(logs(source)))
        for variance, intervals in VARIANCES.items():
            bounds = list(intervals(run))
            covering[variance] += [low <= truth <= high for low, high in bounds]
            finite = [(low, high) for low, high in bounds if low and high < math.inf]
            half_widths[variance] += [math.log(high / low) / 2 for low, high in finite]
    return {
        name: (float(counts.mean()) / runs, float(counts.min()) / runs, median(half_widths[name]))
        for name, counts in covering.items()
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
            for variance, (share, worst, half) in coverage(NOISE[name], policy, runs).items():
                cells = f"{100 * share:.1f} % | {100 * worst:.0f} % | {100 * math.expm1(half):.1f} %"
                print(f"| {name} | {preset} | {variance} | {cells} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
