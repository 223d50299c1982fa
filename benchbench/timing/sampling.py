"""Warm up, choose a block size, sample until the median is known.

The timer, and with it the clock, is passed in; this module knows no framework.

Block → process → session (docs/measuring.md): this module makes the blocks of one process. Every block
is kept, the warm-up's too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic, process_time
from typing import Any, Literal, Protocol

from benchbench.model.measurement import OVERHEAD, Batch, Turn, Window
from benchbench.model.run import Policy
from benchbench.stats import effective_count, mad, median, median_interval, quantile

MIN_BLOCK_S = 1e-3  # below this, interrupts and clock granularity show
MAX_MIN_BLOCK_S = 0.25  # a costlier timer is told in a note: on a busy GPU, blocks would last 3 s for JAX
RESIZE_FACTOR = 4  # a block this many times shorter than it has to last: its size is chosen anew
MAX_SIZINGS = 3  # so often at most
MAX_ITERATIONS = 2**30  # of a step that seems to take no time at all
MAX_BATCHED = 50  # blocks that share a synchronisation: what `batch_s` holds of the shortest usual ones
MAX_READBACK_RATIO = 2.0  # times its timed length until a block can be read: then it was not waited for
MIN_READBACK_PAIRS = 6  # of blocks compared at least, before a timer is called wrong
MIN_READBACK_S = 1.0  # and for as long: a busy neighbour may slow six short ones
MAX_READBACK_PAIRS = 1000
CLOCK_S = 1e-9  # a block lasts at least a tick
LEAD_IN_SHARE = 0.25  # of a turn: steps that are not timed
LOOK_GROWTH = 1.5  # looks at n = 30, 45, 68, …: each look costs coverage
CONFIDENCE = 0.99  # of the interval a look goes by: several looks, and blocks that drift together, cost some
AGREEMENTS = 3  # consecutive windows that must agree
THIRDS = 3  # of the timed blocks that must agree
MIN_THIRD_BLOCKS = 4  # blocks: fewer do not tell their own noise
MAX_LEVEL_DIFFERENCE = 0.03  # of the median, and 5 standard errors: one steady process in a hundred (studies)
LEVEL_ERRORS = 5.0
WINDOW_S = 1.0  # of the windows that must not wander: shorter ones do on any machine that others use
MIN_WINDOW_BLOCKS = 3  # blocks
MIN_WINDOWS = 4  # in a row: fewer do not tell wandering from one change
LONG_WINDOW_BLOCKS = 8  # blocks, which tell how they hang together
WANDER_ERRORS = 4.0
WINDOW_TAIL = (
    0.15  # of the windows on either side may be off: a burst of somebody else's does not move the median
)
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, for normal data
MAD_TO_DEVIATION = 1.4826  # of a MAD, for normal data (Iglewicz & Hoaglin 1993)


class Turns(Protocol):
    """The source of a case's turns."""

    def take(self, block_s: float) -> Iterator[float]:
        """Seconds of each turn, for a warm step whose blocks last `block_s`.

        The next turn is requested when the turn before is finished.
        """


class Stopwatch(Protocol):
    """The part of a backend's timer that measuring needs."""

    batch_s: float

    @property
    def batches(self) -> Sequence[Batch]:
        """Batches so far, one per call of `blocks`; empty where each block is waited for."""

    def now(self) -> float:
        """Seconds on the clock that limits are judged by."""

    def no_op(self) -> Any:
        """The least that a step can be on this device, queued as any step is."""

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Seconds of each of `count` blocks of `iterations` steps."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What one process measured; seconds are of whole blocks."""

    iterations: int
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]
    steady: bool
    stop_reason: Literal["precision", "time", "count", "turns"]
    timer_cost_s: float
    window: Window
    recompiled: int = 0  # programs compiled while blocks were timed
    batches: tuple[Batch, ...] = ()
    entry_s: tuple[float, ...] = ()  # of a rank: see RankSamples
    turns: tuple[Turn, ...] = ()


def measure_steps(
    step: Callable[[], Any],
    timer: Stopwatch,
    policy: Policy,
    compilations: Callable[[], int | None] = lambda: None,
    clock: Callable[[], float] = monotonic,
    cpu: Callable[[], float] = process_time,
    mark: Callable[[str], AbstractContextManager[object]] = nullcontext,
    most: int = MAX_ITERATIONS,
    turns: Turns | None = None,
) -> Samples:
    """Blocks of `step`, after warm-up, until the median's interval is narrow or a limit is reached.

    With `turns`, blocks are timed in these instead, as many as there are.

    `compilations` counts the programs compiled so far, where that is known; `clock` and `cpu` tell, in
    seconds, when that was and what this process computed meanwhile; `mark` shows the two parts to a profiler;
    `most`: steps in a block, 1 where each must begin as a block does.
    """
    if turns:
        return measure_in_turns(step, timer, policy, turns, compilations, clock, cpu, mark, most)
    cost = timer_cost(timer)
    for _ in range(MAX_SIZINGS):
        with mark("warm-up"):
            iterations, first = block_size(step, timer, cost, most)
            warm, steady = warm_up(step, timer, policy, iterations, first)
        compiled, used, began = compilations() or 0, cpu(), clock()
        batched = len(timer.batches)
        with mark("timed"):
            blocks, reason = sample(step, timer, policy, iterations, warm[-1])
        window = Window(began_s=began, ended_s=clock(), cpu_s=cpu() - used)
        if is_long_enough(blocks, cost, iterations, most):
            break
    steady = steady and keeps_level(warm[-max(window_blocks(policy, warm) // 2, MIN_WINDOW_BLOCKS) :], blocks)
    recompiled = (compilations() or 0) - compiled
    batches = tuple(timer.batches[batched:])
    return Samples(iterations, tuple(warm), tuple(blocks), steady, reason, cost, window, recompiled, batches)


def measure_in_turns(
    step: Callable[[], Any],
    timer: Stopwatch,
    policy: Policy,
    turns: Turns,
    compilations: Callable[[], int | None],
    clock: Callable[[], float],
    cpu: Callable[[], float],
    mark: Callable[[str], AbstractContextManager[object]],
    most: int,
) -> Samples:
    """Blocks of `step`, after warm-up, in turns for as long as there are any.

    The first steps after a rest find the caches full of other cases' data: a quarter of a turn is not timed.
    A step that fills a turn by itself has none to spare; it refills the caches in a small part of its time.
    """
    cost = timer_cost(timer)
    for _ in range(MAX_SIZINGS):
        with mark("warm-up"):
            iterations, first = block_size(step, timer, cost, most)
            warm, steady = warm_up(step, timer, policy, iterations, first)
        if is_long_enough(warm[-MIN_THIRD_BLOCKS:], cost, iterations, most):
            break
    compiled, block = compilations() or 0, median(warm[-MIN_THIRD_BLOCKS:])
    blocks: list[float] = []
    batches: list[Batch] = []
    taken: list[Turn] = []
    for cycle, seconds in enumerate(turns.take(block)):
        count = max(round(seconds / max(block, CLOCK_S)), 1)
        step_s = max(block / iterations, CLOCK_S)
        if step_s <= seconds / 2:
            timer.blocks(step, clamp(LEAD_IN_SHARE * seconds / step_s, 1, count * iterations), 1)
        batched, used, began = len(timer.batches), cpu(), clock()
        with mark("timed"):
            timed = timer.blocks(step, iterations, count)
        turn = Turn(cycle=cycle, began_s=began, ended_s=clock(), blocks=len(timed), cpu_s=cpu() - used)
        taken.append(turn)
        batches += timer.batches[batched:]
        blocks += timed
        block = median(timed)
    return Samples(
        iterations=iterations,
        warmup_block_s=tuple(warm),
        block_s=tuple(blocks),
        steady=steady,
        stop_reason="turns",
        timer_cost_s=cost,
        window=Window(
            began_s=taken[0].began_s, ended_s=taken[-1].ended_s, cpu_s=sum(turn.cpu_s for turn in taken)
        ),
        recompiled=(compilations() or 0) - compiled,
        batches=tuple(batches),
        turns=tuple(taken),
    )


def is_long_enough(blocks: Sequence[float], cost: float, iterations: int, most: int) -> bool:
    """Whether blocks last as long as they have to, or cannot be longer.

    A busy machine, or code not yet compiled, may have been slow while their size was chosen.
    """
    return iterations >= most or median(blocks) >= shortest_block(cost) / RESIZE_FACTOR


def timer_cost(timer: Stopwatch) -> float:
    """Seconds a block costs beyond its steps: the median of blocks of the least step, and the wait for it.

    On a device that runs beside the host an empty block would wait for nothing: what it takes to start the
    device, and to be woken by it, would not be counted.
    """
    return max(median(timer.blocks(timer.no_op, 1, 21)), 0.0)


def block_size(
    step: Callable[[], Any], timer: Stopwatch, cost: float, most: int = MAX_ITERATIONS
) -> tuple[int, list[float]]:
    """The smallest power of two of steps that lasts long enough, and the blocks of that size it took.

    The shortest is best: long blocks average over interruptions that a median of many would set aside.
    A block much longer than needed settles it at once; a close one is confirmed by a second.
    """
    least = shortest_block(cost)
    iterations = 1
    while True:
        blocks = timer.blocks(step, iterations, 1)
        if blocks[0] < 10 * least:
            blocks += timer.blocks(step, iterations, 1)
        if min(blocks) >= least or iterations >= most:
            return iterations, blocks
        iterations *= 2


def shortest_block(cost: float) -> float:
    """Seconds that a block has to last, by what the timer costs."""
    return min(max(OVERHEAD * cost, MIN_BLOCK_S), MAX_MIN_BLOCK_S)


def warm_up(
    step: Callable[[], Any], timer: Stopwatch, policy: Policy, iterations: int, first: Sequence[float]
) -> tuple[list[float], bool]:
    """Blocks until adjacent windows agree three times in a row; False when the cap came first.

    `first`: the blocks already made, at least one.
    """
    blocks = list(first)
    start = timer.now() - sum(blocks)
    while True:
        elapsed = timer.now() - start
        window = window_blocks(policy, blocks)
        if len(blocks) >= policy.warmup_min_blocks and elapsed >= policy.warmup_min_s:
            if is_settled(blocks, window):
                return blocks, True
            if elapsed >= policy.warmup_max_s:
                return blocks, False
        blocks += timer.blocks(step, iterations, batch_size(timer, blocks[-1]))


def window_blocks(policy: Policy, blocks: Sequence[float]) -> int:
    """How many blocks a window of the warm-up has, by the last ones: the first may be slow."""
    return clamp(policy.window_s / median(blocks[-3:]), 3, 20)


def sample(
    step: Callable[[], Any], timer: Stopwatch, policy: Policy, iterations: int, block: float
) -> tuple[list[float], Literal["precision", "time", "count"]]:
    """Blocks until the interval of their median is within `policy.precision`, or time or count is up.

    The fewest blocks are measured whatever the time: slow steps have few, and the inference stands on
    the processes.
    """
    start = timer.now()
    look = least = clamp(policy.slow_s / block, policy.least_blocks, policy.min_blocks)
    blocks: list[float] = []
    while True:
        blocks += timer.blocks(
            step, iterations, min(batch_size(timer, block), policy.max_blocks - len(blocks))
        )
        elapsed = timer.now() - start
        if len(blocks) >= look and elapsed >= policy.min_s:
            if is_precise(blocks, policy.precision):
                return blocks, "precision"
            look = math.ceil(len(blocks) * LOOK_GROWTH)
        if len(blocks) >= policy.max_blocks:
            return blocks, "precision" if is_precise(blocks, policy.precision) else "count"
        if elapsed >= policy.max_s and len(blocks) >= least:
            return blocks, "time"


def is_precise(blocks: Sequence[float], precision: float) -> bool:
    """Whether half the width of the median's 99 % interval is within `precision` of the median."""
    low, high = median_interval(blocks, CONFIDENCE)
    return (high - low) / 2 <= precision * median(blocks)


def readback_ratio(
    step: Callable[[], Any],
    finish: Callable[[Any], Any],
    timer: Stopwatch,
    iterations: int,
    finished: Callable[[Any], Any] = lambda output: output,
) -> float:
    """How many times longer a block takes until its result can be read than the timer says it takes.

    `finish(output)` must return only when `output` has been computed: it reads it, not for the first time,
    which may compile something. `finished(output)`: something as large that has been computed. What reading
    that costs is not counted; the cost of another look at `output` itself would hide the work of one that is
    computed whenever it is read. The smallest ratio of pairs of a timed block and one that is read.
    """

    def read() -> float:
        start = timer.now()
        for _ in range(iterations):
            output = step()
        finish(output)
        took = timer.now() - start
        computed = finished(output)
        start = timer.now()
        finish(computed)
        return took - (timer.now() - start)

    def pair() -> float:
        return read() / max(timer.blocks(step, iterations, 1)[0], CLOCK_S)

    return smallest_ratio(pair, timer, MAX_READBACK_RATIO)


def smallest_ratio(pair: Callable[[], float], timer: Stopwatch, enough: float) -> float:
    """Smallest of the ratios from `pair`; the first one of at most `enough` ends the search.

    Other programs would have to disturb every second block for `MIN_READBACK_S`, and at least
    `MIN_READBACK_PAIRS` of them.
    """
    ratio, began = math.inf, timer.now()
    for count in range(MAX_READBACK_PAIRS):
        if count >= MIN_READBACK_PAIRS and timer.now() - began >= MIN_READBACK_S:
            break
        ratio = min(ratio, pair())
        if ratio <= enough:
            break
    return ratio


def batch_size(timer: Stopwatch, block: float) -> int:
    """Blocks that share one synchronisation on this timer."""
    return clamp(timer.batch_s / block, 1, MAX_BATCHED) if block > 0 else 1


def clamp(value: float, least: int, most: int) -> int:
    """`value` as a whole number between the two."""
    return int(min(max(value, least), most))


def is_settled(blocks: Sequence[float], window: int) -> bool:
    """Whether the last windows agree: |mⱼ − mⱼ₊₁| ≤ max(1 % of mⱼ, 1.5 standard errors of the difference).

    A sliding comparison of `AGREEMENTS` pairs of adjacent windows, each shifted by a third of a window, so
    that slow steps need 2 windows and a little more instead of 4.
    """
    shift = max(1, window // AGREEMENTS)
    needed = 2 * window + (AGREEMENTS - 1) * shift
    if len(blocks) < needed:
        return False
    recent = blocks[-needed:]
    return all(_windows_agree(recent[i * shift : i * shift + 2 * window], window) for i in range(AGREEMENTS))


def _windows_agree(pair: Sequence[float], window: int) -> bool:
    before, after = median(pair[:window]), median(pair[window:])
    if abs(before - after) <= 0.01 * before:
        return True
    return abs(before - after) <= 1.5 * MEDIAN_ERROR * MAD_TO_DEVIATION * mad(pair) * math.sqrt(2 / window)


def keeps_level(before: Sequence[float], blocks: Sequence[float]) -> bool:
    """Whether the timed `blocks` kept their level; `before`: those just before, which had settled.

    Warm-up can end between two changes of speed. Then thirds of the blocks differ, or windows wander.
    """
    return _thirds_agree(blocks) and not _wanders([*before, *blocks])


def _thirds_agree(blocks: Sequence[float]) -> bool:
    size = len(blocks) // THIRDS
    if size < MIN_THIRD_BLOCKS:
        return True
    thirds = _parts(blocks, size)[:THIRDS]
    middles = [median(third) for third in thirds]
    noise = LEVEL_ERRORS * math.sqrt(2) * _median_error(thirds)
    return max(middles) - min(middles) <= max(MAX_LEVEL_DIFFERENCE * median(blocks), noise)


def _wanders(blocks: Sequence[float]) -> bool:
    """Whether medians of a second differ by more than noise does, and not only a few of them.

    Noise is told by the steps from block to block, which changes of level are too few to move, and in long
    windows by what they leave, where blocks hang together.
    """
    size = max(MIN_WINDOW_BLOCKS, int(WINDOW_S / median(blocks)))
    if len(blocks) < MIN_WINDOWS * size:
        return False
    starts = range(0, len(blocks) - size + 1, size // MIN_WINDOW_BLOCKS)
    middles = [median(blocks[start : start + size]) for start in starts]
    noise = _step_error(blocks, size)
    if size >= LONG_WINDOW_BLOCKS:
        noise = max(noise, _median_error(_parts(blocks, size)))
    apart = quantile(middles, 1 - WINDOW_TAIL) - quantile(middles, WINDOW_TAIL)
    return apart > max(MAX_LEVEL_DIFFERENCE * median(blocks), WANDER_ERRORS * noise)


def _step_error(blocks: Sequence[float], size: int) -> float:
    """Standard error of a median of `size` blocks, by the steps from one to the next."""
    steps = [abs(after - before) for before, after in pairwise(blocks)]
    return MEDIAN_ERROR * MAD_TO_DEVIATION * median(steps) / math.sqrt(2 * size)


def _parts(blocks: Sequence[float], size: int) -> list[Sequence[float]]:
    return [blocks[start : start + size] for start in range(0, len(blocks) - size + 1, size)]


def _median_error(parts: Sequence[Sequence[float]]) -> float:
    """Standard error of the median of one of `parts`, all as long, by what their medians leave."""
    rest = [block - middle for part in parts for middle in (median(part),) for block in part]
    count = len(parts[0]) * effective_count(rest) / len(rest)
    return MEDIAN_ERROR * MAD_TO_DEVIATION * mad(rest) / math.sqrt(count)
