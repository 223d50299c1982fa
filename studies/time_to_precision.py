"""How long until a tool is right? `python -m studies.time_to_precision FOLDER [TURNS]` prints figures.

Not a test: it times. gemm 512³ and convnet_train with torch on the CPU. A shared machine drifts, so tools
that take turns see different machines; here all of them see the same one. Each of ten turns, or TURNS,
notes in FOLDER every step of a fresh process of each workload, from its first. Then every tool measures
each of those processes, by its own code on a clock that the noted steps move. So the callable is the same
to all, and what is true of it is known: the median of its steps in the long run, which begins a third
into the recording.

It is done twice: with the steps as they were, and with the host's drift divided out, since tools cannot
be told apart at 1 % by processes that themselves differ by more from one second to the next.

A tool at its own settings, or asked to measure for longer, tells a value of each process, and of several
processes their median; a trial draws them. What counts is the wall time of the fewest processes with
which 90 % of trials are within 1 % (2, 5 %) of the truth. A process costs the seconds measured and those
around them, which are known from the tools' own programs, run in every tenth turn: accelbench and pyperf
start processes themselves, at a fixed cost and a cost for each; the others measure in the process they
are called in, so their command is repeated by hand.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchbench.model.run import Policy
from benchbench.timing.policy import POLICIES
from studies import rivals
from studies.recorded import MANY, Made, record, recorded
from studies.steps import WORKLOADS
from tests.script import Script

WITHIN, SHARE = (0.01, 0.02, 0.05), 0.9
COUNTS = np.arange(1, 2002, 2)  # processes of a trial
RESAMPLED = 500
TICK_S = 1e-7  # of a replayed clock, per reading
LONGER_S = (1.0, 3.0, 10.0)  # measured in a process, by a user who asks for it
STARTING_S, DRIFT_S = 0.75, 1.0  # what is left as it was at the start of a process, and a window after it

Steps = NDArray[np.float64]  # seconds, of a process from its first step


class Replay(Script):
    """A recorded process from its start; where a tool goes on for longer, its long run once more."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(chain(steps.tolist(), cycle(long_run(steps).tolist())), cost=2 * TICK_S)

    def read(self) -> float:
        """The clock, as tools are given it: a reading takes time."""
        self._clock += TICK_S
        return self._clock


def long_run(steps: Steps) -> Steps:
    return steps[len(steps) // 3 :]


def steadied(steps: Steps) -> Steps:
    """With the host's drift divided out: running medians after the start, the first of them for the start."""
    ends = np.cumsum(steps)
    middles = np.arange(STARTING_S + DRIFT_S / 2, ends[-1] - DRIFT_S / 2, DRIFT_S / 4)
    windows = [np.searchsorted(ends, [each - DRIFT_S / 2, each + DRIFT_S / 2]) for each in middles]
    drift = np.interp(ends, middles, [np.median(steps[first:last]) for first, last in windows])
    return steps * np.median(long_run(steps)) / drift


class Way(NamedTuple):
    """How a tool is used: at a setting of its own, or at one that a user asks for."""

    tool: str
    setting: str
    own: bool
    measure: Callable[[Replay], float]


def ways(first: Steps) -> Iterator[Way]:
    """Of each tool first the setting that its program's cost was noted at. In `first` pyperf calibrates."""
    calibrating = Replay(first)
    loops = rivals.pyperf_loops(calibrating.step, calibrating.read)
    for preset in ("quick", "default"):
        yield Way("accelbench", preset, True, by_policy(POLICIES[preset]))
    for seconds in (0.3, *LONGER_S):
        yield Way("pyperf", f"{10 * seconds:g} values", seconds == 0.3, by_pyperf(seconds, loops))
    for tool, measure, usual in (
        ("pytest-benchmark", rivals.pytest_benchmark, 1.0),
        ("torch blocked_autorange", rivals.torch_blocked, 0.2),
        ("torch adaptive_autorange", rivals.torch_adaptive, 10.0),
    ):
        for seconds in dict.fromkeys((usual, *LONGER_S)):
            yield Way(tool, f"{seconds:g} s", seconds == usual, by_other(measure, seconds))


def by_policy(policy: Policy) -> Callable[[Replay], float]:
    return lambda process: rivals.accelbench_by(policy, process.step, process)


def by_pyperf(seconds: float, loops: int) -> Callable[[Replay], float]:
    return lambda process: rivals.pyperf_values(process.step, seconds, loops, process.read)


def by_other(tool: Callable[..., float], seconds: float) -> Callable[[Replay], float]:
    return lambda process: tool(process.step, seconds, process.read)


class Cost(NamedTuple):
    """Wall seconds: of a command, and of each process it starts."""

    fixed_s: float
    each_s: float


class Shown(NamedTuple):
    """What is told of each process over what is true of it, the median seconds measured, and the cost."""

    way: Way
    told: Steps
    measured_s: float
    cost: Cost


def shown(processes: Sequence[Steps], made: Sequence[Made]) -> list[Shown]:
    """Every way on every process."""
    found, noted = list[Shown](), dict[str, tuple[Cost, float]]()
    for way in ways(processes[0]):
        replays = [Replay(steps) for steps in processes]
        told = [
            way.measure(each) / np.median(long_run(steps))
            for each, steps in zip(replays, processes, strict=True)
        ]
        measured_s = float(np.median([each.now() for each in replays]))
        price, usual_s = noted.setdefault(
            way.tool, (cost(each for each in made if each.tool == way.tool), measured_s)
        )
        longer = price._replace(each_s=price.each_s + measured_s - usual_s)
        found.append(Shown(way, np.array(told), measured_s, longer))
    return found


def cost(made: Iterable[Made]) -> Cost:
    """Medians of one tool's commands; without a fixed part where none started several."""
    walls: dict[int, list[float]] = {}
    for each in made:
        walls.setdefault(len(each.values), []).append(each.wall_s)
    one = float(np.median(walls[1]))
    if MANY not in walls:
        return Cost(0.0, one)
    each_s = (float(np.median(walls[MANY])) - one) / (MANY - 1)
    return Cost(one - each_s, each_s)


def share_within(limit: float, told: Steps, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the trials that take the median of so many processes, odd numbers.

    How many of those lie below a bound is binomial.
    """
    from scipy.stats import binom

    below, above = np.mean(told < 1 - limit), np.mean(told <= 1 + limit)
    found: NDArray[np.float64] = binom.sf(counts // 2, counts, above) - binom.sf(counts // 2, counts, below)
    return found


def wall_s(limit: float, each: Shown, told: Steps) -> float:
    """Until within the limit; infinite where no number of processes is enough."""
    enough = np.flatnonzero(share_within(limit, told, COUNTS) >= SHARE)
    return each.cost.fixed_s + each.cost.each_s * float(COUNTS[enough[0]]) if len(enough) else math.inf


def ranked(limit: float, found: Sequence[Shown], *, own: bool) -> dict[str, Any]:
    """The time of accelbench over the best other's, had other processes been recorded.

    `own`: the others at their own settings, or at any. Draws in which nobody is right say nothing.
    """
    source, ratios = np.random.default_rng(4), []
    count = len(found[0].told)
    for _ in range(RESAMPLED):
        drawn = source.integers(count, size=count)
        walls = {each.way: wall_s(limit, each, each.told[drawn]) for each in found}
        ours = min(wall for way, wall in walls.items() if way.tool == "accelbench")
        best = min(wall for way, wall in walls.items() if way.tool != "accelbench" and (way.own or not own))
        if min(ours, best) < math.inf:
            ratios.append(ours / best)
    first = sum(ratio <= 1 for ratio in ratios) / max(len(ratios), 1)
    return {
        "within": limit,
        "others": "own" if own else "any",
        "draws": len(ratios),
        "first": round(first, 2),
    } | {f"q{tenth}0": round(sorted(ratios)[len(ratios) * tenth // 10], 2) for tenth in (1, 5, 9) if ratios}


def table(processes: Sequence[Steps], made: Sequence[Made]) -> None:
    found = shown(processes, made)
    for each in found:
        line: dict[str, Any] = {"tool": each.way.tool, "setting": each.way.setting, "own": each.way.own}
        line |= {f"q{tenth}0": round(float(np.quantile(each.told, tenth / 10)), 3) for tenth in (1, 5, 9)}
        line |= {"measured_s": round(each.measured_s, 2), "process_s": round(each.cost.each_s, 2)}
        walls = {f"{limit:.0%}": wall_s(limit, each, each.told) for limit in WITHIN}
        print(
            json.dumps(
                line | {limit: round(wall) if wall < math.inf else None for limit, wall in walls.items()}
            )
        )
    for limit in WITHIN:
        for own in (True, False):
            print(json.dumps(ranked(limit, found, own=own)), flush=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    record(folder, int((sys.argv[2:] or ["10"])[0]))
    for workload in WORKLOADS:
        processes, made = recorded(folder, workload)
        for host, seen in {
            "as it was": processes,
            "steadied": [steadied(steps) for steps in processes],
        }.items():
            print(json.dumps({"workload": workload, "host": host, "processes": len(seen)}))
            table(seen, made)
