"""Warm-up, block size and stop rule on a scripted clock, so that every number is exact."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, cycle, repeat
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from benchbench.model.measurement import Batch, Window
from benchbench.model.placement import World
from benchbench.stats import effective_count
from benchbench.timing.policy import (
    POLICIES,
    budget_policy,
    for_accelerator,
    half_width,
    looks,
    profiled_steps,
    with_rounds,
)
from benchbench.timing.sampling import (
    MAX_READBACK_RATIO,
    AgreedTimer,
    Samples,
    batch_size,
    block_size,
    is_precise,
    is_settled,
    keeps_level,
    measure_steps,
    readback_ratio,
    sample,
    timer_cost,
    warm_up,
)
from tests.factories import a_measurement
from tests.script import Script

DEFAULT = POLICIES["default"]


def constant(seconds: float, cost: float = 0.0) -> Script:
    return Script(repeat(seconds), cost)


def test_the_timer_cost_is_the_time_of_an_empty_block() -> None:
    assert timer_cost(constant(1.0, cost=2e-7)) == pytest.approx(2e-7)


@pytest.mark.parametrize(
    ("step_s", "cost_s", "iterations"),
    [
        (10e-6, 0.0, 128),
        (1e-3, 0.0, 1),
        (0.1, 0.0, 1),
        (3.0, 0.0, 1),
        (10e-6, 20e-6, 2048),
        (1e-3, 1.6e-3, 256),
    ],
)
def test_a_block_is_the_smallest_power_of_two_that_hides_the_timer_cost(
    step_s: float, cost_s: float, iterations: int
) -> None:
    script = constant(step_s, cost_s)
    count, blocks = block_size(script.step, script, cost_s)
    assert count == iterations
    assert min(blocks) >= min(max(1e-3, 1000 * cost_s), 0.25)


def test_both_blocks_of_a_size_have_to_be_long_enough() -> None:
    script = Script(chain([5e-4], repeat(2e-3)))
    assert block_size(script.step, script, 0.0)[0] == 2


@pytest.mark.parametrize(("precision", "precise"), [(0.09, False), (0.11, True)])
def test_half_the_interval_of_the_median_is_compared_with_the_precision(
    precision: float, precise: bool
) -> None:
    assert is_precise([0.9] * 50 + [1.1] * 50, precision) is precise


@pytest.mark.parametrize(
    ("step_s", "warmup", "samples"), [(10e-6, 391, 391), (1e-3, 500, 500), (0.1, 52, 30), (3.0, 8, 5)]
)
def test_steady_steps_of_any_length_end_in_precision(step_s: float, warmup: int, samples: int) -> None:
    script = constant(step_s)
    measured_samples = measure_steps(script.step, script, DEFAULT)
    assert measured_samples.steady
    assert measured_samples.stop_reason == "precision"
    assert len(measured_samples.warmup_block_s) == pytest.approx(warmup, abs=1)
    assert len(measured_samples.block_s) == pytest.approx(samples, abs=1)
    assert measured_samples.block_s[0] / measured_samples.iterations == pytest.approx(step_s)


def test_warm_up_lasts_until_a_slow_start_is_over() -> None:
    script = Script(0.01 * (1 + 2 * math.exp(-i / 40)) for i in itertools.count())
    blocks, steady = warm_up(script.step, script, DEFAULT, 1, [0.01])
    assert steady
    assert len(blocks) > 100
    assert blocks[-1] == pytest.approx(0.01, rel=0.05)


def test_steps_that_never_settle_are_unsteady() -> None:
    script = Script(0.01 * 1.02**i for i in range(10_000))
    blocks, steady = warm_up(script.step, script, replace(DEFAULT, warmup_max_s=5.0), 1, [0.01])
    assert not steady
    assert sum(blocks) >= 5.0


@pytest.mark.parametrize(
    ("mean_s", "limits", "reason"), [(0.05, {"max_s": 5.0}, "time"), (1e-3, {"max_blocks": 50}, "count")]
)
def test_noise_too_wide_stops_at_the_limit(mean_s: float, limits: dict[str, Any], reason: str) -> None:
    source = np.random.default_rng(3)
    script = Script(float(value) for value in source.lognormal(math.log(mean_s), 1.0, 100_000))
    blocks, stop_reason = sample(script.step, script, replace(DEFAULT, min_s=0.0, **limits), 1, mean_s)
    assert stop_reason == reason
    assert reason == "time" or len(blocks) == 50


def test_many_equal_short_blocks_stop_early_for_precision() -> None:
    script = constant(1e-5)
    blocks, reason = sample(script.step, script, DEFAULT, 1, 1e-5)
    assert sum(blocks) < DEFAULT.min_s
    assert (len(blocks), reason) == (DEFAULT.max_blocks, "precision")


@pytest.mark.parametrize("slow", [1, 6, 20])
def test_slow_first_steps_do_not_determine_the_block_size(slow: int) -> None:
    script = Script(chain(repeat(0.03, slow), repeat(6e-6)))
    samples = measure_steps(script.step, script, POLICIES["quick"])
    assert samples.iterations == 256
    assert samples.steady
    assert [*samples.warmup_block_s, *samples.block_s] == pytest.approx(
        [256 * 6e-6] * (len(samples.warmup_block_s) + len(samples.block_s))
    )


def test_blocks_can_be_limited_to_one_step() -> None:
    script = constant(1e-5)
    assert measure_steps(script.step, script, DEFAULT, most=1).iterations == 1


def test_the_number_of_blocks_of_a_batch_is_limited() -> None:
    assert batch_size(Script(repeat(1.0), batch_s=0.05), 1e-3) == 50
    assert batch_size(Script(repeat(1.0), batch_s=0.05), 1e-6) == 50
    assert batch_size(Script(repeat(1.0), batch_s=0.05), 1.0) == 1


def test_only_batches_of_timed_blocks_are_stored() -> None:
    class Batched(Script):
        def __init__(self) -> None:
            super().__init__(repeat(0.01), batch_s=0.05)
            self.batches: list[Batch] = []

        def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
            timed = super().blocks(step, iterations, count)
            self.batches.append(Batch(blocks=count, enqueue_s=0, device_s=0, host_s=self.now()))
            return timed

    script = Batched()
    samples = measure_steps(script.step, script, DEFAULT)
    assert sum(batch.blocks for batch in samples.batches) == len(samples.block_s)
    assert min(batch.host_s for batch in samples.batches) > sum(samples.warmup_block_s)


def test_the_interval_is_checked_after_30_45_and_68_blocks_only() -> None:
    source = np.random.default_rng(5)
    script = Script(float(value) for value in source.lognormal(-3, 0.03, 100_000))
    blocks, reason = sample(script.step, script, replace(DEFAULT, min_s=0.0), 1, 0.05)
    assert reason == "precision"
    assert len(blocks) in (30, 45, 68, 102, 153)


def test_batches_share_a_synchronisation_and_never_exceed_the_limit() -> None:
    script = Script(repeat(0.001), batch_s=0.05)
    blocks, _ = sample(script.step, script, replace(DEFAULT, max_blocks=70, precision=0.0), 1, 0.001)
    assert len(blocks) == 70


def test_the_window_covers_the_timed_blocks_and_their_cpu_time() -> None:
    script = constant(0.1)
    samples = measure_steps(
        script.step, script, DEFAULT, clock=lambda: 100 + script.now(), cpu=lambda: 2 * script.now()
    )
    assert samples.window.began_s == pytest.approx(100 + sum(samples.warmup_block_s))
    assert samples.window.ended_s - samples.window.began_s == pytest.approx(sum(samples.block_s))
    assert samples.window.cpu_s == pytest.approx(2 * sum(samples.block_s))


def test_every_step_belongs_to_warm_up_or_timed_blocks() -> None:
    script, diary = constant(0.01), list[tuple[str, int]]()

    @contextmanager
    def mark(name: str) -> Iterator[None]:
        diary.append((f"{name} begins", script.calls))
        yield
        diary.append((f"{name} ends", script.calls))

    samples = measure_steps(script.step, script, DEFAULT, mark=mark)
    warm = len(samples.warmup_block_s)
    timed = warm + len(samples.block_s)
    assert diary == [
        ("warm-up begins", 0),
        ("warm-up ends", warm),
        ("timed begins", warm),
        ("timed ends", timed),
    ]


def test_timed_blocks_that_change_level_are_unsteady() -> None:
    source = np.random.default_rng(2)
    noise = np.exp(source.normal(0, 0.02, 60))
    assert keeps_level([], noise.tolist())
    assert not keeps_level([], (noise * np.repeat([1.0, 1.0, 1.1], 20)).tolist())
    assert keeps_level([], [1.0] * 5)  # too few to decide
    script = Script(chain(repeat(0.1, 68), repeat(0.12, 1000)))
    assert not measure_steps(script.step, script, replace(DEFAULT, precision=0.2)).steady


def median_error(parts: list[Any]) -> float:
    """Standard error of the median of one part, by the residuals of all."""
    residuals = np.concatenate([part - np.median(part) for part in parts])
    spread = 1.4826 * oracle.median_abs_deviation(residuals)
    return float(
        1.2533 * spread / math.sqrt(len(parts[0]) * effective_count(residuals.tolist()) / len(residuals))
    )


def level_is_kept(before: Any, blocks: Any) -> bool:
    """`keeps_level` by NumPy, with the constants of its docstring and of the module."""
    size = len(blocks) // 3
    if size >= 4:
        thirds = [blocks[start : start + size] for start in (0, size, 2 * size)]
        limit = max(0.03 * np.median(blocks), 5 * math.sqrt(2) * median_error(thirds))
        if np.ptp([np.median(third) for third in thirds]) > limit:
            return False
    together = np.concatenate([before, blocks])
    size = max(3, int(1 / np.median(together)))
    if len(together) < 4 * size:
        return True
    windows = np.lib.stride_tricks.sliding_window_view(together, size)[:: size // 3]
    noise = 1.2533 * 1.4826 * np.median(np.abs(np.diff(together))) / math.sqrt(2 * size)
    if size >= 8:
        parts = [together[start : start + size] for start in range(0, len(together) - size + 1, size)]
        noise = max(noise, median_error(parts))
    low, high = np.quantile(np.median(windows, axis=1), [0.15, 0.85])
    return bool(high - low <= max(0.03 * np.median(together), 4 * noise))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1000),
    st.sampled_from((0.05, 0.1, 0.3, 1.0)),
    st.integers(5, 120),
    st.sampled_from(([1.0], [1.0, 1.05], [1.0, 1.03, 1.06], [1.0, 1.1] * 3, [1.0, 1.04, 1.0])),
    st.sampled_from((1e-4, 0.01, 0.03)),
    st.integers(0, 10),
)
def test_a_level_is_kept_if_thirds_and_windows_differ_by_no_more_than_noise(
    seed: int, step_s: float, count: int, levels: list[float], spread: float, before: int
) -> None:
    noise = np.exp(np.random.default_rng(seed).normal(0, spread, count + before))
    level = np.array(levels)[np.arange(count) * len(levels) // count]
    blocks = step_s * noise[before:] * level
    earlier = step_s * noise[:before]
    assert keeps_level(earlier.tolist(), blocks.tolist()) is level_is_kept(earlier, blocks)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from((1.0, 1.004, 1.012, 1.03, 1.2)), min_size=5, max_size=40),
    st.integers(3, 12),
)
def test_warm_up_ends_when_three_pairs_of_windows_agree(blocks: list[float], window: int) -> None:
    shift = window // 3
    start = len(blocks) - 2 * window - 2 * shift
    expected = start >= 0
    for first in range(start, start + 2 * shift + 1, shift) if expected else ():
        pair = blocks[first : first + 2 * window]
        change = abs(np.median(pair[:window]) - np.median(pair[window:]))
        noise = 1.5 * 1.2533 * 1.4826 * oracle.median_abs_deviation(pair) * math.sqrt(2 / window)
        expected = expected and bool(change <= max(0.01 * np.median(pair[:window]), noise))
    assert is_settled(blocks, window) is expected


class Queue(Script):
    """A device to which a step only submits work: each step occupies the host for a tenth of its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(repeat(seconds / 10))
        self._seconds = seconds
        self._until = 0.0

    def step(self) -> None:
        super().step()
        self._until = max(self._until, self._clock) + self._seconds

    def finish(self, output: Any) -> None:
        self._clock = max(self._clock, self._until) + 0.003

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        timed = super().blocks(step, iterations, count)
        self._clock = max(self._clock, self._until)  # earlier blocks do not affect later ones
        return timed


@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 0.5])
def test_reading_a_block_that_was_not_waited_for_takes_ten_times_longer(seconds: float) -> None:
    device = Queue(seconds)
    ratio = readback_ratio(device.step, device.finish, device, 8)
    assert ratio == pytest.approx(10 * (8 + 0.1) / 8, rel=0.1)
    assert ratio > MAX_READBACK_RATIO


@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 0.5])
def test_lazy_outputs_are_detected_by_their_readback_time(seconds: float) -> None:
    class Lazy(Script):
        def finish(self, output: str) -> None:
            self._clock += {"lazy": seconds, "computed": 0.0}[output] + 0.003

        def step(self) -> Any:
            super().step()
            return "lazy"

    device = Lazy(repeat(seconds / 100))
    assert readback_ratio(device.step, device.finish, device, 1) == pytest.approx(1.0)
    ratio = readback_ratio(device.step, device.finish, device, 1, lambda _: "computed")
    assert ratio == pytest.approx(101, rel=0.01)


def test_a_temporarily_slow_readback_is_not_a_fault_of_the_timer() -> None:
    read_s, block = [3e-3] * 8, [1e-3] * 8
    script = Script(chain((read_s + block) * 15, repeat(1e-3)))
    assert readback_ratio(script.step, lambda output: None, script, 8) == pytest.approx(1.0)
    always = Script(cycle(read_s + block))
    assert readback_ratio(always.step, lambda output: None, always, 8) == pytest.approx(3.0)


def test_only_compilations_during_timed_blocks_are_counted() -> None:
    script = constant(1e-3)
    calls = 0

    def compilations() -> int:
        nonlocal calls
        calls += 1
        return {1: 2}.get(calls, 5)  # two compilations before the timed blocks, three in them

    assert measure_steps(script.step, script, DEFAULT, compilations).recompiled == 3
    assert measure_steps(script.step, script, DEFAULT).recompiled == 0


def test_other_rounds_replace_extra_rounds_and_a_budget() -> None:
    quick = POLICIES["quick"]
    budget = budget_policy(60.0)
    assert budget == replace(quick, name=budget.name, most_rounds=None, budget_s=60.0)
    assert budget.name != quick.name
    assert with_rounds(budget, 4) == replace(quick, name=budget.name, rounds=4, most_rounds=None)
    assert (looks(quick), looks(budget), looks(with_rounds(quick, 4))) == ([3, 5, 8], [3], [4])
    assert [for_accelerator(policy).warmup_min_s for policy in (quick, replace(quick, warmup_min_s=2.0))] == [
        1.0,
        2.0,
    ]


def test_a_profile_has_half_a_second_of_steps_within_limits() -> None:
    assert [profiled_steps(step_s) for step_s in (1.0, 0.1, 0.03, 1e-4, 1e-3)] == [5, 5, 17, 1000, 500]


def test_the_half_width_is_that_of_a_t_interval_of_logarithms() -> None:
    steps = (0.001, 0.0012, 0.0011)
    processes = [a_measurement(block_s=(10 * step,) * 3) for step in steps]
    logs = np.log(steps)
    ends = np.exp(oracle.t.interval(0.95, 2, logs.mean(), oracle.sem(logs)))
    assert half_width(processes) == pytest.approx(np.diff(ends)[0] / 2 / math.exp(logs.mean()))
    assert half_width(processes[:1]) == math.inf
    assert half_width([*processes[:2], a_measurement(block_s=(0.0,))]) == math.inf
    assert half_width(processes, 2) > half_width(processes)


def test_ranks_agree_on_the_slowest_block_and_keep_their_own() -> None:
    """The other rank takes 3 ms for each block, and enters it 1 ms before or 2 ms after this one."""
    script, entries = Script(chain([0.001], repeat(0.002))), iter((-0.001, 0.002, -0.001, -0.001))

    def gather(value: Any) -> list[Any]:
        if isinstance(value, list):
            return [value, [value[0] + next(entries), 0.003]]
        return [value, value]

    timer = AgreedTimer(script, World(processes=2, gather=gather), clock=script.now)
    assert timer.blocks(script.step, 1, 4) == pytest.approx([0.003] * 4)
    assert timer.now() == script.now()
    window = Window(began_s=0.0, ended_s=1.0, cpu_s=1.0)
    samples = Samples(1, (0.003,), (0.003, 0.003), True, "count", 0.0, window)
    own = timer.own(samples)
    assert own.warmup_block_s == pytest.approx((0.002,))
    assert own.block_s == pytest.approx((0.002, 0.002))
    assert own.entry_s == pytest.approx((0.001, 0.001))
    assert replace(own, warmup_block_s=(0.003,), block_s=(0.003, 0.003), entry_s=()) == samples
    apart = AgreedTimer(script, World(processes=2, gather=lambda value: [value]), same_host=False)
    apart.blocks(script.step, 1, 3)
    assert (apart.own(samples).entry_s, len(apart.own(samples).block_s)) == ((), 2)
