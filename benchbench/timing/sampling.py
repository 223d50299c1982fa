"""Measure a step in one process: warm up, choose a block size, sample until the median is precise.

The timer and its clock are passed in; this module is independent of frameworks. A process consists of
blocks, which are all stored, also those of the warm-up (docs/measuring.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic, process_time
from typing import Any, Literal, Protocol

from benchbench.model.measurement import OVERHEAD, Batch, Turn, Window
from benchbench.model.placement import World
from benchbench.model.run import Policy
from benchbench.stats import MAD_TO_DEVIATION, effective_count, mad, median, median_interval, quantile

MIN_BLOCK_S = 1e-3  # shorter blocks show interrupts and the clock's granularity
MAX_MIN_BLOCK_S = 0.25  # for expensive timers, which a note reports: on a busy GPU, JAX would need 3 s
RESIZE_FACTOR = 4  # blocks shorter than intended by this factor get a new size
MAX_SIZINGS = 3
MAX_ITERATIONS = 2**30  # steps in a block, if a step seems to take no time
MAX_BATCHED = 50  # blocks per synchronisation; `batch_s` holds about as many of the shortest ones
MAX_READBACK_RATIO = 2.0  # time until a block can be read, relative to its timed length
MIN_READBACK_PAIRS = 6  # pairs of blocks compared before a timer is called wrong
MIN_READBACK_S = 1.0  # and for as long: other programs may slow six short blocks
MAX_READBACK_PAIRS = 1000
CLOCK_S = 1e-9  # smallest length of a block: one tick
LEAD_IN_SHARE = 0.25  # of a turn, whose steps are not timed
LOOK_GROWTH = 1.5  # looks at n = 30, 45, 68, …: each look costs coverage
CONFIDENCE = 0.99  # of the interval at each look; repeated looks and correlated blocks cost some of it
AGREEMENTS = 3  # consecutive pairs of windows that must agree
THIRDS = 3  # of the timed blocks, which must agree
MIN_THIRD_BLOCKS = 4  # fewer blocks do not show their own noise
MAX_LEVEL_DIFFERENCE = 0.03  # of the median; exceeded by one steady process in a hundred, with LEVEL_ERRORS
LEVEL_ERRORS = 5.0  # standard errors
WINDOW_S = 1.0  # length of windows for wandering: shorter ones wander on any shared machine
MIN_WINDOW_BLOCKS = 3
MIN_WINDOWS = 4  # in a row: fewer do not distinguish wandering from a single change
LONG_WINDOW_BLOCKS = 8  # blocks, enough to show autocorrelation
WANDER_ERRORS = 4.0  # standard errors
WINDOW_TAIL = 0.15  # share of windows on either side that may differ: a burst does not move the median
MEDIAN_ERROR = 1.2533  # standard error of a median divided by that of a mean, for normal data


class Turns(Protocol):
    """Source of a case's turns."""

    def take(self, block_s: float) -> Iterator[float]:
        """Seconds of each turn, for a warm step with blocks of `block_s`.

        The next turn is requested when the previous one has ended.
        """


class Stopwatch(Protocol):
    """Part of a backend's timer that measuring needs."""

    batch_s: float

    @property
    def batches(self) -> Sequence[Batch]:
        """Batches so far, one per call of `blocks`; empty if each block is waited for."""

    def now(self) -> float:
        """Seconds on the clock for time limits."""

    def no_op(self) -> Any:
        """Smallest possible step on this device, queued like any step."""

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Seconds of each of `count` blocks of `iterations` steps."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one process, in seconds of whole blocks."""

    iterations: int
    warmup_block_s: tuple[float, ...]
    block_s: tuple[float, ...]
    steady: bool
    stop_reason: Literal["precision", "time", "count", "turns"]
    timer_cost_s: float
    window: Window
    recompiled: int = 0  # number of programs compiled while blocks were timed
    batches: tuple[Batch, ...] = ()
    entry_s: tuple[float, ...] = ()  # of a rank (see RankSamples)
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
    """Sample blocks of `step`, after warm-up, until the median's interval is narrow or a limit is reached.

    With `turns`, blocks are timed during these turns instead.

    `compilations`: number of programs compiled so far, if known. `clock`, `cpu`: time and CPU time of this
    process in seconds. `mark`: marks the warm-up and the timed part for a profiler. `most`: largest number
    of steps in a block; 1 if each must start like a block.
    """
    if turns:
        return measure_in_turns(step, timer, policy, turns, compilations, clock, cpu, mark, most)
    cost = timer_cost(timer)
    for _ in range(MAX_SIZINGS):
        with mark("warm-up"):
            iterations, first = block_size(step, timer, cost, most)
            warm, steady = warm_up(step, timer, policy, iterations, first)
        compiled, cpu_start, start = compilations() or 0, cpu(), clock()
        batch_start = len(timer.batches)
        with mark("timed"):
            blocks, reason = sample(step, timer, policy, iterations, warm[-1])
        window = Window(began_s=start, ended_s=clock(), cpu_s=cpu() - cpu_start)
        if is_long_enough(blocks, cost, iterations, most):
            break
    steady = steady and keeps_level(warm[-max(window_blocks(policy, warm) // 2, MIN_WINDOW_BLOCKS) :], blocks)
    recompiled = (compilations() or 0) - compiled
    batches = tuple(timer.batches[batch_start:])
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
    """Sample blocks of `step`, after warm-up, during turns.

    After a rest, the caches contain data of other cases, so the first quarter of a turn is not timed. A step
    that fills a turn has no lead-in; it refills the caches in a small part of its time.
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
    past_turns: list[Turn] = []
    for cycle, seconds in enumerate(turns.take(block)):
        count = max(round(seconds / max(block, CLOCK_S)), 1)
        step_s = max(block / iterations, CLOCK_S)
        if step_s <= seconds / 2:
            timer.blocks(step, clamp(LEAD_IN_SHARE * seconds / step_s, 1, count * iterations), 1)
        batch_start, cpu_start, start = len(timer.batches), cpu(), clock()
        with mark("timed"):
            timed = timer.blocks(step, iterations, count)
        turn = Turn(cycle=cycle, began_s=start, ended_s=clock(), blocks=len(timed), cpu_s=cpu() - cpu_start)
        past_turns.append(turn)
        batches += timer.batches[batch_start:]
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
            began_s=past_turns[0].began_s,
            ended_s=past_turns[-1].ended_s,
            cpu_s=sum(turn.cpu_s for turn in past_turns),
        ),
        recompiled=(compilations() or 0) - compiled,
        batches=tuple(batches),
        turns=tuple(past_turns),
    )


def is_long_enough(blocks: Sequence[float], cost: float, iterations: int, most: int) -> bool:
    """True if blocks last as long as required, or cannot be longer.

    A busy machine, or code that was not compiled yet, may have been slow while the size was chosen.
    """
    return iterations >= most or median(blocks) >= shortest_block(cost) / RESIZE_FACTOR


def timer_cost(timer: Stopwatch) -> float:
    """Seconds of a block beyond its steps: the median of blocks of the smallest step, with their wait.

    On a device that runs beside the host, an empty block would not wait, and so would not include the time to
    start the device and to be woken by it.
    """
    return max(median(timer.blocks(timer.no_op, 1, 21)), 0.0)


def block_size(
    step: Callable[[], Any], timer: Stopwatch, cost: float, most: int = MAX_ITERATIONS
) -> tuple[int, list[float]]:
    """Smallest power of two of steps that lasts long enough, and the measured blocks of that size.

    Short blocks are best: long ones average over interruptions that the median of many short ones ignores. A
    block much longer than required decides at once; otherwise a second one has to confirm it.
    """
    required_s = shortest_block(cost)
    iterations = 1
    while True:
        blocks = timer.blocks(step, iterations, 1)
        if blocks[0] < 10 * required_s:
            blocks += timer.blocks(step, iterations, 1)
        if min(blocks) >= required_s or iterations >= most:
            return iterations, blocks
        iterations *= 2


def shortest_block(cost: float) -> float:
    """Seconds that a block has to last, given the timer's cost."""
    return min(max(OVERHEAD * cost, MIN_BLOCK_S), MAX_MIN_BLOCK_S)


def warm_up(
    step: Callable[[], Any], timer: Stopwatch, policy: Policy, iterations: int, first: Sequence[float]
) -> tuple[list[float], bool]:
    """Blocks until adjacent windows agree three times in a row, and whether they did before the time limit.

    `first`: blocks measured before, at least one.
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
    """Number of blocks in a window of the warm-up, from the last blocks: the first may be slow."""
    return clamp(policy.window_s / median(blocks[-3:]), 3, 20)


def sample(
    step: Callable[[], Any], timer: Stopwatch, policy: Policy, iterations: int, block: float
) -> tuple[list[float], Literal["precision", "time", "count"]]:
    """Blocks until the interval of their median is within `policy.precision`, or time or count is exhausted.

    A minimum number of blocks is measured in any time: slow steps have few, and statistics use the processes.
    """
    start = timer.now()
    next_look = min_blocks = clamp(policy.slow_s / block, policy.least_blocks, policy.min_blocks)
    blocks: list[float] = []
    while True:
        blocks += timer.blocks(
            step, iterations, min(batch_size(timer, block), policy.max_blocks - len(blocks))
        )
        elapsed = timer.now() - start
        if len(blocks) >= next_look and elapsed >= policy.min_s:
            if is_precise(blocks, policy.precision):
                return blocks, "precision"
            next_look = math.ceil(len(blocks) * LOOK_GROWTH)
        if len(blocks) >= policy.max_blocks:
            return blocks, "precision" if is_precise(blocks, policy.precision) else "count"
        if elapsed >= policy.max_s and len(blocks) >= min_blocks:
            return blocks, "time"


def is_precise(blocks: Sequence[float], precision: float) -> bool:
    """True if half the width of the median's 99 % interval is within `precision` of the median."""
    low, high = median_interval(blocks, CONFIDENCE)
    return (high - low) / 2 <= precision * median(blocks)


def readback_ratio(
    step: Callable[[], Any],
    finish: Callable[[Any], Any],
    timer: Stopwatch,
    iterations: int,
    finished: Callable[[Any], Any] = lambda output: output,
) -> float:
    """Time until the result of a block can be read, divided by the timed length of a block.

    `finish(output)` has to return only when `output` is computed. It reads it, and has read before, since
    the first read may compile something. `finished(output)`: an equally large object that is already
    computed. The cost of reading it is subtracted; reading `output` itself again would hide the work of an
    output that is computed on each read. The result is the smallest ratio over pairs of a timed block and a
    block that is read.
    """

    def read() -> float:
        start = timer.now()
        for _ in range(iterations):
            output = step()
        finish(output)
        elapsed = timer.now() - start
        computed = finished(output)
        start = timer.now()
        finish(computed)
        return elapsed - (timer.now() - start)

    def pair() -> float:
        return read() / max(timer.blocks(step, iterations, 1)[0], CLOCK_S)

    return smallest_ratio(pair, timer, MAX_READBACK_RATIO)


def smallest_ratio(pair: Callable[[], float], timer: Stopwatch, enough: float) -> float:
    """Smallest of the ratios from `pair`; the first one of at most `enough` ends the search.

    Other programs would have to disturb every second block for `MIN_READBACK_S`, and at least
    `MIN_READBACK_PAIRS` of them.
    """
    ratio, start = math.inf, timer.now()
    for count in range(MAX_READBACK_PAIRS):
        if count >= MIN_READBACK_PAIRS and timer.now() - start >= MIN_READBACK_S:
            break
        ratio = min(ratio, pair())
        if ratio <= enough:
            break
    return ratio


def batch_size(timer: Stopwatch, block: float) -> int:
    """Number of blocks that share one synchronisation on this timer."""
    return clamp(timer.batch_s / block, 1, MAX_BATCHED) if block > 0 else 1


def clamp(value: float, least: int, most: int) -> int:
    """`value` as a whole number between `least` and `most`."""
    return int(min(max(value, least), most))


def is_settled(blocks: Sequence[float], window: int) -> bool:
    """True if the last windows agree: |mⱼ − mⱼ₊₁| ≤ max(1 % of mⱼ, 1.5 standard errors of the difference).

    `AGREEMENTS` pairs of adjacent windows are compared, each shifted by a third of a window, so that slow
    steps need little more than 2 windows instead of 4.
    """
    shift = max(1, window // AGREEMENTS)
    count = 2 * window + (AGREEMENTS - 1) * shift
    if len(blocks) < count:
        return False
    recent = blocks[-count:]
    return all(_windows_agree(recent[i * shift : i * shift + 2 * window], window) for i in range(AGREEMENTS))


def _windows_agree(pair: Sequence[float], window: int) -> bool:
    before, after = median(pair[:window]), median(pair[window:])
    if abs(before - after) <= 0.01 * before:
        return True
    return abs(before - after) <= 1.5 * MEDIAN_ERROR * MAD_TO_DEVIATION * mad(pair) * math.sqrt(2 / window)


def keeps_level(before: Sequence[float], blocks: Sequence[float]) -> bool:
    """True if the timed `blocks` kept their level; `before`: settled blocks just before them.

    Warm-up may end between two changes of speed. Then thirds of the blocks differ, or windows wander.
    """
    return _thirds_agree(blocks) and not _wanders([*before, *blocks])


def _thirds_agree(blocks: Sequence[float]) -> bool:
    size = len(blocks) // THIRDS
    if size < MIN_THIRD_BLOCKS:
        return True
    thirds = _parts(blocks, size)[:THIRDS]
    medians = [median(third) for third in thirds]
    noise = LEVEL_ERRORS * math.sqrt(2) * _median_error(thirds)
    return max(medians) - min(medians) <= max(MAX_LEVEL_DIFFERENCE * median(blocks), noise)


def _wanders(blocks: Sequence[float]) -> bool:
    """True if medians of windows of a second differ by more than noise, and not only a few of them.

    The noise is estimated from the steps between blocks, which changes of level are too rare to affect. In
    long windows, autocorrelation is included.
    """
    size = max(MIN_WINDOW_BLOCKS, int(WINDOW_S / median(blocks)))
    if len(blocks) < MIN_WINDOWS * size:
        return False
    starts = range(0, len(blocks) - size + 1, size // MIN_WINDOW_BLOCKS)
    medians = [median(blocks[start : start + size]) for start in starts]
    noise = _step_error(blocks, size)
    if size >= LONG_WINDOW_BLOCKS:
        noise = max(noise, _median_error(_parts(blocks, size)))
    difference = quantile(medians, 1 - WINDOW_TAIL) - quantile(medians, WINDOW_TAIL)
    return difference > max(MAX_LEVEL_DIFFERENCE * median(blocks), WANDER_ERRORS * noise)


def _step_error(blocks: Sequence[float], size: int) -> float:
    """Standard error of a median of `size` blocks, from the steps between blocks."""
    steps = [abs(after - before) for before, after in pairwise(blocks)]
    return MEDIAN_ERROR * MAD_TO_DEVIATION * median(steps) / math.sqrt(2 * size)


def _parts(blocks: Sequence[float], size: int) -> list[Sequence[float]]:
    return [blocks[start : start + size] for start in range(0, len(blocks) - size + 1, size)]


def _median_error(parts: Sequence[Sequence[float]]) -> float:
    """Standard error of the median of one of `parts` of equal length, from the residuals of all medians."""
    residuals = [block - part_median for part in parts for part_median in (median(part),) for block in part]
    count = len(parts[0]) * effective_count(residuals) / len(residuals)
    return MEDIAN_ERROR * MAD_TO_DEVIATION * mad(residuals) / math.sqrt(count)


class AgreedTimer:
    """A rank's timer, with the same blocks as the timers of all other ranks."""

    batch_s = 0.0  # each block starts together, so blocks are not batched

    def __init__(
        self,
        timer: Stopwatch,
        world: World,
        *,
        same_host: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock`: seconds, shared by the processes of a host."""
        self._timer = timer
        self._world = world
        self._same_host = same_host
        self._clock = clock
        self._own_blocks_s: list[float] = []
        self._entries_s: list[float] = []

    @property
    def name(self) -> str:
        return getattr(self._timer, "name", "")

    @property
    def batches(self) -> Sequence[Batch]:
        """Batches of this rank."""
        return self._timer.batches

    def now(self) -> float:
        """Clock of the first rank, so that all ranks see the same time."""
        return float(self._world.gather(self._timer.now())[0])

    def no_op(self) -> Any:
        return self._timer.no_op()

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Seconds of each block in the slowest rank."""
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        self._world.gather(None)
        entry_s = self._clock()
        own_s = self._timer.blocks(step, iterations, 1)[0]
        gathered = self._world.gather([entry_s, own_s])
        self._own_blocks_s.append(own_s)
        self._entries_s.append(entry_s - min(entry for entry, _ in gathered))
        return float(max(block for _, block in gathered))

    def own(self, samples: Samples) -> Samples:
        """The part of `samples`, which must be of the last blocks so far, that this rank measured."""
        timed_start = len(self._own_blocks_s) - len(samples.block_s)
        warmup_start = timed_start - len(samples.warmup_block_s)
        return replace(
            samples,
            warmup_block_s=tuple(self._own_blocks_s[warmup_start:timed_start]),
            block_s=tuple(self._own_blocks_s[timed_start:]),
            entry_s=tuple(self._entries_s[timed_start:]) if self._same_host else (),
        )
