"""Accuracy of measurements, row by row, on scripted clocks and seeded series."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, islice, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchbench.backends.base import HostTimer
from benchbench.model.measurement import OVERHEAD, Batch
from benchbench.stats import deviation, mean, median, median_interval
from benchbench.timing.policy import POLICIES
from benchbench.timing.sampling import Samples, measure_steps
from tests.script import Script
from tests.test_summaries import calls

DEFAULT = POLICIES["default"]


@pytest.mark.parametrize(
    ("steps_ms", "iterations"),
    [([10.0, 11.0, 12.0, 11.0], 1), ([20.0] * 7 + [20.1] * 7, 1), ([0.3, 0.31], 4), ([0.9, 0.9, 1.2], 2)],
)
def test_row_1_size_count_median_interval_and_stop_are_exact(steps_ms: list[float], iterations: int) -> None:
    steps = [value / 1e3 for value in steps_ms]
    script = Script(cycle(steps))
    samples = measure_steps(script.step, script, DEFAULT)
    steps_in_blocks = iterations * len(samples.warmup_block_s + samples.block_s)
    durations = list(islice(cycle(steps), script.calls))[-steps_in_blocks:]  # earlier blocks were too short
    blocks = [math.fsum(durations[i : i + iterations]) for i in range(0, steps_in_blocks, iterations)]
    timed = blocks[len(samples.warmup_block_s) :]
    assert samples.iterations == iterations
    assert list(samples.block_s) == pytest.approx(timed)
    assert len(timed) == first_look(timed)
    assert median(samples.block_s) == pytest.approx(float(np.median(timed)))
    low, high = median_interval(timed)
    assert (high - low) / 2 <= DEFAULT.precision * median(timed)
    assert (samples.stop_reason, samples.steady) == ("precision", True)


def first_look(blocks: list[float]) -> int:
    """The number of blocks after at least thirty blocks and half a second."""
    return next(n for n, seconds in enumerate(accumulate(blocks), 1) if n >= 30 and seconds >= DEFAULT.min_s)


@pytest.mark.parametrize(("every_step", "count"), [(False, 1), (True, 2)])
def test_row_2_a_step_costs_one_call_and_a_second_if_it_is_waited_for(every_step: bool, count: int) -> None:
    timer = HostTimer(lambda output: None, every_step=every_step)

    def block(iterations: int) -> int:
        return calls(lambda _: timer.blocks(lambda: None, iterations, 1), None)

    assert block(1000) - block(100) == 900 * count


@settings(max_examples=30)
@given(st.floats(1e-5, 0.1), st.floats(0, 2e-5))
def test_row_3_the_timer_takes_at_most_a_thousandth_of_a_block(step_s: float, cost_s: float) -> None:
    script = Script(repeat(step_s), cost_s)
    samples = measure_steps(script.step, script, POLICIES["quick"])
    assert samples.timer_cost_s == pytest.approx(cost_s, abs=1e-12)
    assert min(samples.block_s) >= OVERHEAD * samples.timer_cost_s * (1 - 1e-6)


class Processor:
    """A processor: a clock reading takes 60 ns, a step's frame 300 ns.

    Another program uses a share `busy` of it, in slices of 4 ms.
    """

    batch_s = 0.0
    batches: Sequence[Batch] = ()
    name = "virtual"

    def __init__(self, busy: float = 0.0, seed: int = 0) -> None:
        self._source = np.random.default_rng(seed)
        self._gap_s = 4e-3 * (1 - busy) / busy if busy else math.inf
        self._now_s = 0.0
        self._next_s = self._gap()

    def _gap(self) -> float:
        return float(self._source.exponential(self._gap_s)) if self._gap_s < math.inf else math.inf

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds
        while self._now_s >= self._next_s:
            self._now_s += 4e-3
            self._next_s = self._now_s + self._gap()

    def clock(self) -> float:
        self.pass_s(60e-9)
        return self._now_s

    def now(self) -> float:
        return self.clock()

    def no_op(self) -> None:
        """Do nothing."""

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        start = self.clock()
        for _ in range(iterations):
            self.pass_s(300e-9)
            step()
        return self.clock() - start


def spun(seconds: float, busy: float, seed: int = 0) -> Samples:
    processor = Processor(busy, seed)

    def spin() -> None:
        end = processor.clock() + seconds
        processor.pass_s(seconds - 200e-9)  # most of it at once, so that the test does not spin
        while processor.clock() < end:
            pass

    return measure_steps(spin, processor, replace(DEFAULT, max_s=2.0))


@pytest.mark.parametrize(("seconds", "limit"), [(1e-4, 0.01), (1e-3, 0.002), (1e-2, 0.001)])
def test_row_4_known_spins_are_recovered(seconds: float, limit: float) -> None:
    samples = spun(seconds, busy=0.0)
    assert 0 < median(samples.block_s) / samples.iterations / seconds - 1 <= limit


@pytest.mark.parametrize("seed", range(5))
def test_row_4_a_noisy_neighbour_changes_a_millisecond_by_at_most_a_per_cent(seed: int) -> None:
    samples = spun(1e-3, busy=0.3, seed=seed)
    assert max(samples.block_s) > 2e-3  # the neighbour had an effect
    assert 0 < median(samples.block_s) / samples.iterations / 1e-3 - 1 <= 0.01


@pytest.mark.real
@pytest.mark.parametrize("spread", [0.001, 0.05, 0.25])
@pytest.mark.parametrize("seed", range(3))
def test_row_5_mean_and_spread_of_noisy_work_are_recovered(spread: float, seed: int) -> None:
    processor, source = Processor(), np.random.default_rng(seed)
    sigma = math.sqrt(math.log1p(spread**2))  # of the logarithms
    policy = replace(DEFAULT, precision=0.0, max_blocks=3000, max_s=1e9)
    samples = measure_steps(lambda: processor.pass_s(2e-3 * source.lognormal(sigma=sigma)), processor, policy)
    mean_s = 2e-3 * math.exp(sigma**2 / 2)
    assert samples.iterations == 1
    assert abs(mean(samples.block_s) - mean_s) <= max(0.025 * mean_s, 8e-6)
    assert abs(deviation(samples.block_s) - mean_s * spread) <= max(0.05 * mean_s * spread, 5e-6)
