"""Ways to do the same, timed in turn in one process: their ratios with intervals, of wall and of CPU time.

Blocks of all ways alternate in shuffled order, so that what else runs on the machine meets them alike. A
ratio is the geometric mean over the rounds; ± is the half width of its 95 % interval by Student's t.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from time import perf_counter, process_time

from benchbench.stats import t_quantile

Ways = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Block:
    """Seconds of a call, of the wall clock and of all threads of the process."""

    wall_s: float
    cpu_s: float


def alternated(ways: Ways, rounds: int = 15, block_s: float = 0.05) -> dict[str, list[Block]]:
    """A block of each way in each round; each call waits for its result. The first calls warm up."""
    counts = {name: _calls(way, block_s) for name, way in ways.items()}
    blocks: dict[str, list[Block]] = {name: [] for name in ways}
    order, shuffle = list(ways), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            blocks[name].append(_block(ways[name], counts[name]))
    return blocks


def ratio(values: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """The geometric mean of the pairs' ratios, and the half width of its interval as a fraction."""
    logs = [math.log(one / other) for one, other in zip(values, base, strict=True)]
    half = t_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs)), half


def lines(blocks: Mapping[str, Sequence[Block]], base: str) -> Iterator[str]:
    """Rows of a Markdown table: milliseconds, and the ratios to `base`."""
    yield "| | ms | CPU ms | ratio | CPU ratio |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, own in blocks.items():
        wall, cpu = [each.wall_s for each in own], [each.cpu_s for each in own]
        by_wall = ratio(wall, [each.wall_s for each in blocks[base]])
        by_cpu = ratio(cpu, [each.cpu_s for each in blocks[base]])
        times = f"{1e3 * median(wall):.3f} | {1e3 * median(cpu):.3f}"
        yield f"| {name} | {times} | {_shown(*by_wall)} | {_shown(*by_cpu)} |"


def _shown(found: float, half: float) -> str:
    return f"{found:.2f} ± {100 * half:.0f} %" if half else "1"


def _calls(way: Callable[[], object], block_s: float) -> int:
    for _ in range(2):
        way()
    start = perf_counter()
    way()
    return max(1, int(block_s / max(perf_counter() - start, 1e-6)))


def _block(way: Callable[[], object], calls: int) -> Block:
    way()  # what ran before has left its own in the caches
    wall, cpu = perf_counter(), process_time()
    for _ in range(calls):
        way()
    return Block((perf_counter() - wall) / calls, (process_time() - cpu) / calls)
