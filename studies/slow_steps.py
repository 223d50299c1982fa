"""How accurate are warm-up and the stop rule for slow steps? Simulated series whose steady level is known.

    python -m studies.slow_steps [PROCESSES] > studies/output/slow_steps.md

The first table has steps of 0.1 to 1 s: how far their sampled blocks are from the steady level, by preset
and window length. The second has the share of processes that stop because they are precise enough, and how
often their median is truly within that precision.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchbench.model.run import Policy
from benchbench.stats import median
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import measure_steps, sample
from tests.script import Script
from tests.simulator import Array

STEPS_S = (0.1, 0.2, 0.5, 1.0)
LENGTH_S = 200.0
DEFAULT = POLICIES["default"]
WINDOWS = {
    "default": DEFAULT,
    "default, windows of 0.5 s, 20 s": replace(DEFAULT, window_s=0.5, warmup_max_s=20.0),
    "default, windows of 3 s, 60 s": replace(DEFAULT, window_s=3.0),
    "`--quick`": POLICIES["quick"],
}
Source = np.random.Generator


def level(source: Source, kind: str, t: Array) -> Array:
    """Logarithm of the level at `t` seconds, relative to the steady level."""
    if kind == "steady":
        return np.zeros_like(t)
    if kind == "decays":
        rate_s = math.exp(source.uniform(math.log(0.5), math.log(6)))
        return np.asarray(math.log1p(source.uniform(0.2, 2)) * np.exp(-t / rate_s))
    if kind == "drops":
        return np.where(t < source.uniform(0.5, 8), math.log1p(source.uniform(0.1, 0.5)), 0.0)
    lengths = source.uniform(1.5, 5, int(LENGTH_S))
    return np.asarray(source.uniform(-0.12, 0.12, len(lengths))[np.searchsorted(np.cumsum(lengths), t)])


def correlated(source: Source, count: int, deviation: float, phi: float) -> Array:
    """AR(1) noise."""
    values = deviation * source.standard_normal(count)
    for index in range(1, count):
        values[index] = phi * values[index - 1] + math.sqrt(1 - phi**2) * values[index]
    return values


@dataclass(frozen=True)
class Process:
    """Simulated process: its relative error, whether it was called steady, and its seconds of warm-up."""

    error: float
    steady: bool
    warm_s: float


def processes(kind: str, policy: Policy, count: int) -> Iterator[Process]:
    """Simulated processes, `count` for each duration of a step."""
    for step_s in STEPS_S:
        source = np.random.default_rng([int(10 * step_s), len(kind)])
        for _ in range(count):
            t: Array = np.arange(LENGTH_S / step_s) * step_s
            noise = correlated(source, len(t), source.choice([0.01, 0.02, 0.03]), 0.3)
            script = Script(float(value) for value in step_s * np.exp(level(source, kind, t) + noise))
            steps = measure_steps(script.step, script, policy)
            yield Process(abs(median(steps.block_s) / step_s - 1), steps.steady, sum(steps.warmup_block_s))


def print_warm_up(count: int) -> None:
    print("| windows | kind | off in the median | within 5 % | steady and within | not steady | warm-up |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, policy in WINDOWS.items():
        for kind in ("steady", "decays", "drops", "never settles"):
            simulated = list(processes(kind, policy, count))
            steady = [process for process in simulated if process.steady]
            shares = [
                float(np.median([process.error for process in simulated])),
                float(np.mean([process.error <= 0.05 for process in simulated])),
                float(np.mean([process.error <= 0.05 for process in steady])) if steady else math.nan,
                1 - len(steady) / len(simulated),
            ]
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            print(
                f"| {name} | {kind} | {cells} | {np.mean([process.warm_s for process in simulated]):.1f} s |"
            )


def stop_rates(policy: Policy, deviation: float, phi: float, count: int) -> tuple[float, float, float]:
    """Share of processes that stop for precision, share of these within it, and their mean block count."""
    source, within, blocks = np.random.default_rng([int(1000 * deviation), int(100 * phi)]), 0, list[int]()
    for _ in range(count):
        values = 0.01 * np.exp(correlated(source, 1000, deviation, phi))
        script = Script(float(value) for value in values)
        blocks_s, reason = sample(script.step, script, replace(policy, max_s=math.inf), 1, 0.01)
        if reason == "precision":
            within += abs(median(blocks_s) / 0.01 - 1) <= policy.precision
            blocks.append(len(blocks_s))
    return len(blocks) / count, within / max(len(blocks), 1), float(np.mean(blocks)) if blocks else 0.0


def print_stops(count: int) -> None:
    print("\n| preset | noise | φ | stops for precision | truly within | blocks |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in ("default", "rigorous"):
        for deviation in (0.01, 0.02, 0.05):
            for phi in (0.0, 0.5, 0.8):
                stops, within, blocks = stop_rates(POLICIES[name], deviation, phi, count)
                cells = f"{100 * stops:.0f} % | {100 * within:.1f} % | {blocks:.0f}"
                print(f"| {name} | {100 * deviation:.0f} % | {phi} | {cells} |", flush=True)


def main(count: int) -> None:
    print_warm_up(count)
    print_stops(5 * count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
