"""How often does `history` report a change in unchanged series, and how often does it find a step?

    python -m studies.series [SERIES] > studies/output/series.md

For simulated series without a change, the program prints how often a change or recurring levels are reported.
For series with a step, it prints how often a change is found within three runs of it. The tests run reduced
versions.
"""

import math
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

from benchbench.judging.change_points import change_points
from tests.simulator import Array

Source = np.random.Generator
Logs = Callable[[Source, int], Array]


def independent(source: Source, count: int, deviation: float = 0.01) -> Array:
    return deviation * source.standard_normal(count)


def heavy(source: Source, count: int) -> Array:
    return np.asarray(0.02 * source.standard_t(3, count))


def correlated(source: Source, count: int, phi: float, deviation: float = 0.03) -> Array:
    """AR(1) noise."""
    values = deviation * source.standard_normal(count)
    for index in range(1, count):
        values[index] = phi * values[index - 1] + math.sqrt(1 - phi**2) * values[index]
    return values


def spiky(source: Source, count: int) -> Array:
    return independent(source, count) + math.log(1.3) * (source.random(count) < 0.03)


def machines(source: Source, count: int, levels: int, stay: float, gap: float = 0.1) -> Array:
    """Runs on machines whose levels differ by `gap`; a machine keeps `stay` runs on average."""
    offsets, machine = np.zeros(count), int(source.integers(levels))
    for index in range(count):
        if source.random() < 1 / stay:
            machine = int(source.integers(levels))
        offsets[index] = math.log1p(gap) * machine
    return offsets + independent(source, count)


def seldom(source: Source, count: int, share: float) -> Array:
    """Runs of which a share is 15 % slower."""
    return independent(source, count) + math.log(1.15) * (source.random(count) < share)


UNCHANGED: dict[str, tuple[Logs, int]] = {
    "independent, 1 %": (independent, 100),
    "log-normal, 10 %": (partial(independent, deviation=0.1), 100),
    "t₃, scale 2 %": (heavy, 100),
    "1 % with 3 % of spikes × 1.3": (spiky, 100),
    "AR(1), φ = 0.5, 3 %": (partial(correlated, phi=0.5), 100),
    "the same, 20 runs": (partial(correlated, phi=0.5), 20),
    "AR(1), φ = 0.8": (partial(correlated, phi=0.8), 100),
    "the same, 20 runs ": (partial(correlated, phi=0.8), 20),
    "AR(1), φ = 0.9": (partial(correlated, phi=0.9), 100),
    "the same, 20 runs  ": (partial(correlated, phi=0.9), 20),
    "three machines, a new draw each run": (partial(machines, levels=3, stay=1.0), 100),
    "three machines, 3 runs on each": (partial(machines, levels=3, stay=3.0), 100),
    "three machines, 10 runs on each": (partial(machines, levels=3, stay=10.0), 100),
    "two machines, 5 runs on each": (partial(machines, levels=2, stay=5.0), 100),
    "a fifth of the runs 15 % slower": (partial(seldom, share=0.2), 100),
    "a third of the runs 15 % slower": (partial(seldom, share=1 / 3), 100),
}
STEPS: dict[str, tuple[float, float, int, int]] = {  # step, noise, runs, runs after the step
    "5 %, 1 % noise, three runs after it": (0.05, 0.01, 100, 3),
    "5 %, 3 % noise, in the middle": (0.05, 0.03, 100, 50),
    "5 %, 1 % noise, the middle of 12": (0.05, 0.01, 12, 6),
    "5 %, 1 % noise, the middle of 20": (0.05, 0.01, 20, 10),
    "10 %, 3 % noise, the middle of 20": (0.1, 0.03, 20, 10),
}


def reports(logs: Array) -> tuple[bool, bool]:
    """Whether a change is reported, and whether recurring levels are."""
    history = change_points(np.exp(logs).tolist())
    return bool(history.changes), bool(history.recurring)


def located(source: Source, step: float, noise: float, count: int, after: int) -> bool:
    logs = independent(source, count, noise)
    logs[count - after :] += math.log1p(step)
    history = change_points(np.exp(logs).tolist())
    return any(abs(change.index - count + after) <= 3 for change in history.changes)


def there_and_back(source: Source) -> bool:
    """Whether a step of 10 % and its repair after 30 runs are both found."""
    logs = independent(source, 90)
    logs[30:60] += math.log(1.1)
    return len(change_points(np.exp(logs).tolist()).changes) == 2


def among_spikes(source: Source, spikes: int, step: float = 0.15) -> bool:
    """Whether a step in the middle of 100 runs is found although `spikes` runs before it were as slow."""
    logs = independent(source, 100)
    logs[50:] += math.log1p(step)
    logs[source.choice(np.arange(5, 45), spikes, replace=False)] += math.log1p(step)
    history = change_points(np.exp(logs).tolist())
    return any(abs(change.index - 50) <= 3 for change in history.changes)


def main(count: int) -> None:
    print("| unchanged | runs | changes told | recurring levels |\n| --- | ---: | ---: | ---: |")
    for name, (logs, runs) in UNCHANGED.items():
        source = np.random.default_rng([runs, 5])
        shares = np.mean([reports(logs(source, runs)) for _ in range(count)], axis=0)
        print(f"| {name.strip()} | {runs} | {100 * shares[0]:.1f} % | {100 * shares[1]:.1f} % |", flush=True)
    print("\n| step | found |\n| --- | ---: |")
    for name, arguments in STEPS.items():
        source = np.random.default_rng(arguments[2])
        share = np.mean([located(source, *arguments) for _ in range(count)])
        print(f"| {name} | {100 * share:.1f} % |", flush=True)
    for spikes in (1, 2, 3, 5, 10, 20):
        source = np.random.default_rng(spikes)
        share = np.mean([among_spikes(source, spikes) for _ in range(count)])
        print(f"| 15 %, and {spikes} of the 50 runs before it as slow | {100 * share:.1f} % |")
    source = np.random.default_rng(90)
    share = np.mean([there_and_back(source) for _ in range(count)])
    print(f"| 10 % and its repair, 1 % noise | {100 * share:.1f} % |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
