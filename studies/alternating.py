"""Time functions in turn in one process, for studies of different programs of the same computation.

Blocks of all functions alternate in shuffled order, so other programs slow all of them equally. Ratios are
geometric means over the rounds, of wall time and of CPU time. ± is the half width of the 95 % interval by
Student's t.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from time import perf_counter, process_time

from benchbench.stats import t_quantile

Functions = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Block:
    """Mean duration of a call in a block: wall time, and CPU time of all threads."""

    wall_s: float
    cpu_s: float


def alternated(functions: Functions, rounds: int = 15, block_s: float = 0.05) -> dict[str, list[Block]]:
    """Time a block of each function in each round. Functions wait for their results."""
    counts = {name: _calls(function, block_s) for name, function in functions.items()}
    blocks: dict[str, list[Block]] = {name: [] for name in functions}
    order, shuffle = list(functions), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            blocks[name].append(_block(functions[name], counts[name]))
    return blocks


def ratio(values: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Return the geometric mean of the pairs' ratios, and the half width of its interval as a fraction."""
    logs = [math.log(value / base_value) for value, base_value in zip(values, base, strict=True)]
    half = t_quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs)), half


def lines(blocks: Mapping[str, Sequence[Block]], base: str) -> Iterator[str]:
    """Yield the lines of a Markdown table of milliseconds and of ratios to the function `base`."""
    yield "| | ms | CPU ms | ratio | CPU ratio |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, function_blocks in blocks.items():
        wall, cpu = [block.wall_s for block in function_blocks], [block.cpu_s for block in function_blocks]
        by_wall = ratio(wall, [block.wall_s for block in blocks[base]])
        by_cpu = ratio(cpu, [block.cpu_s for block in blocks[base]])
        times = f"{1e3 * median(wall):.3f} | {1e3 * median(cpu):.3f}"
        yield f"| {name} | {times} | {_ratio_cell(*by_wall)} | {_ratio_cell(*by_cpu)} |"


def _ratio_cell(estimate: float, half: float) -> str:
    return f"{estimate:.2f} ± {100 * half:.0f} %" if half else "1"


def _calls(function: Callable[[], object], block_s: float) -> int:
    for _ in range(2):
        function()
    start = perf_counter()
    function()
    return max(1, int(block_s / max(perf_counter() - start, 1e-6)))


def _block(function: Callable[[], object], calls: int) -> Block:
    function()  # replaces the data of the previous function in the caches
    wall, cpu = perf_counter(), process_time()
    for _ in range(calls):
        function()
    return Block((perf_counter() - wall) / calls, (process_time() - cpu) / calls)
