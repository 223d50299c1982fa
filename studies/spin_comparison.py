"""Who recovers a spin of known length? `python -m studies.spin_comparison`.

Arguments: [REPEATS] [SECONDS]. It prints errors.

Not a test: it times. In each repeat every tool measures the same spin for about as many seconds, in shuffled
order. The truth is the median of what the spin itself noted of its calls meanwhile, by a clock that is no
tool's. The last line is what a call of an empty function costs in a bare loop and in a block of ours, in ns.
"""

import json
import os
import random
import statistics
import sys
from collections.abc import Callable
from time import CLOCK_MONOTONIC_RAW, clock_gettime, perf_counter
from typing import Any

from benchbench.backends.base import HostTimer
from benchbench.timing.policy import POLICIES
from studies.rivals import TOOLS, Tool, accelbench_by

LENGTHS_S = (1e-5, 1e-4, 1e-3, 1e-2)
CALLS = 200_000


class Spin:
    """Step that lasts `length_s` by a clock of its own; `spent_s` has the actual lengths of its calls.

    No time service adjusts the clock, and no tool uses it (clock_gettime(2)).
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self.spent_s: list[float] = []

    def __call__(self) -> None:
        start = clock_gettime(CLOCK_MONOTONIC_RAW)
        end = start + self._length_s
        while (now := clock_gettime(CLOCK_MONOTONIC_RAW)) < end:
            pass
        self.spent_s.append(now - start)


def tools() -> dict[str, Tool]:
    presets: dict[str, Tool] = {
        "accelbench quick": lambda step, seconds: accelbench_by(POLICIES["quick"], step),
        "accelbench default": lambda step, seconds: accelbench_by(POLICIES["default"], step),
    }
    return {**presets, **{name: tool for name, tool in TOOLS.items() if name != "accelbench"}}


def error(tool: Tool, length_s: float, seconds: float) -> tuple[float, float]:
    """Relative to what the spins lasted, and to what was asked of them."""
    spin = Spin(length_s)
    value = tool(spin, seconds)
    return value / statistics.median(spin.spent_s) - 1, value / length_s - 1


def compare(repeats: int, seconds: float) -> None:
    source = random.Random(1)
    found: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for _ in range(repeats):
        trials = [(length, name, tool) for length in LENGTHS_S for name, tool in tools().items()]
        source.shuffle(trials)
        for length, name, tool in trials:
            found.setdefault((length, name), []).append(error(tool, length, seconds))
    for (length, name), errors in sorted(found.items()):
        noted, asked = (statistics.median(map(abs, side)) for side in zip(*errors, strict=True))
        line = {"spin_s": length, "tool": name, "median_error": noted, "median_error_to_asked": asked}
        print(json.dumps(line | {"repeats": repeats, "load": os.getloadavg()[0]}), flush=True)


def nothing() -> None:
    return None


def bare(calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        nothing()
    return perf_counter() - start


def harness(repeats: int) -> None:
    """Row 2: at most 1.15 times a bare loop, and 50 ns more. Alternated; medians."""
    timer = HostTimer(lambda output: None)
    loops: dict[str, Callable[[], float]] = {
        "bare loop": lambda: bare(CALLS),
        "accelbench block": lambda: timer.blocks(nothing, CALLS, 1)[0],
    }
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(5 * repeats):
        for name, loop in loops.items():
            found[name].append(loop() / CALLS * 1e9)
    ns: dict[str, Any] = {name: statistics.median(values) for name, values in found.items()}
    pairs = zip(found["accelbench block"], found["bare loop"], strict=True)
    print(json.dumps({"ns_per_call": ns, "median_ratio": statistics.median(a / b for a, b in pairs)}))


if __name__ == "__main__":
    wanted = sys.argv[1:] + ["5", "0.5"][len(sys.argv) - 1 :]
    compare(int(wanted[0]), float(wanted[1]))
    harness(int(wanted[0]))
