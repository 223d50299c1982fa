"""Spins: work of known length by an independent clock, to test the measuring pipeline.

On the host, a spin lasts until its own clock reaches the end; on a device, for a number of cycles
calibrated by that clock. Other programs lengthen a spin on the host, which records its actual length.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, Protocol

from benchbench.backends.base import Backend, HostTimer
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.run import Policy
from benchbench.stats import median
from benchbench.timing.sampling import Samples, Stopwatch, measure_steps

Clock = Callable[[], float]
SECOND_MODE, SECOND_SHARE = 1.5, 0.3  # bimodal durations: relative length and share of the long ones
CALIBRATION_S = 0.02  # length of the shorter of two spins whose difference counts
MAX_CYCLES = 2**36  # half a minute at 2 GHz
WARM_S, TRIES = 0.5, 5  # spinning before the calibration, since clocks rise; number of compared pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Distribution of the lengths of spins: constant, bimodal or log-normal, around `seconds`."""

    kind: Literal["constant", "bimodal", "log-normal"] = "constant"
    seconds: float
    spread: float = 0.0  # standard deviation / mean, if log-normal
    seed: int = 0

    @property
    def mean_s(self) -> float:
        """Mean of the distribution."""
        if self.kind == "bimodal":
            return self.seconds * (1 + (SECOND_MODE - 1) * SECOND_SHARE)
        return self.seconds * math.sqrt(1 + self.spread**2)

    @property
    def sd_s(self) -> float:
        """Standard deviation of the distribution."""
        if self.kind == "bimodal":
            return self.seconds * (SECOND_MODE - 1) * math.sqrt(SECOND_SHARE * (1 - SECOND_SHARE))
        return self.mean_s * self.spread


def durations(shape: Shape) -> Iterator[float]:
    """Seconds of successive spins, without end; equal for equal shapes."""
    source = random.Random(f"{shape.kind}/{shape.seed}")
    if shape.kind == "constant":
        yield from repeat(shape.seconds)
    sigma = math.sqrt(math.log1p(shape.spread**2))
    while True:
        if shape.kind == "bimodal":
            yield shape.seconds * (SECOND_MODE if source.random() < SECOND_SHARE else 1)
        else:
            yield shape.seconds * math.exp(sigma * source.gauss(0, 1))


def raw_clock() -> Clock:
    """Clock in seconds that no time service adjusts (clock_gettime(2)), or else Python's best clock."""
    identity = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    if identity is None:
        return time.perf_counter
    return lambda: time.clock_gettime(identity)


class Spin:
    """Step whose calls last the next durations; `spent_s` has their actual lengths."""

    def __init__(self, lengths: Iterator[float], clock: Clock) -> None:
        self._lengths = lengths
        self._clock = clock
        self.spent_s: list[float] = []

    def __call__(self) -> None:
        """Spin until the time is over."""
        clock = self._clock
        start = clock()
        end = start + next(self._lengths)
        while (now := clock()) < end:
            pass
        self.spent_s.append(now - start)

    def blocks_s(self, iterations: int, count: int) -> list[float]:
        """Actual seconds of the last `count` blocks of `iterations` calls."""
        spent = self.spent_s[-iterations * count :]
        return [math.fsum(spent[i : i + iterations]) for i in range(0, len(spent), iterations)]


def measure_on_host(
    shape: Shape, policy: Policy, timer: Stopwatch, clock: Clock
) -> tuple[Samples, list[float], float]:
    """Samples of the pipeline, actual seconds of each block, and their relative uncertainty (here 0)."""
    spin = Spin(durations(shape), clock)
    samples = measure_steps(spin, timer, policy)
    return samples, spin.blocks_s(samples.iterations, len(samples.block_s)), 0.0


class Spinner(Protocol):
    """Part of a session that is needed to spin on a device."""

    def spin(self, cycles: int) -> None:
        """Keep the device busy for a number of cycles of its clock, without waiting."""

    def wait(self, output: Any) -> None:
        """Wait until the device is done."""


def measure_on_device(
    seconds: float, policy: Policy, timer: Stopwatch, device: Spinner, clock: Clock
) -> tuple[Samples, list[float], float]:
    """As `measure_on_host`, on a device; the uncertainty is the relative change of the device's clock."""
    before = seconds_per_cycle(device, clock)
    cycles = round(seconds / before)
    samples = measure_steps(lambda: device.spin(cycles), timer, policy)
    after = seconds_per_cycle(device, clock)
    block = cycles * (before + after) / 2 * samples.iterations
    return samples, [block] * len(samples.block_s), abs(after - before) / before


def seconds_per_cycle(device: Spinner, clock: Clock) -> float:
    """Seconds per cycle, from the difference of spins of one and two lengths. Raises Unsupported.

    Launching and waiting cancel out.
    """

    def lasted(cycles: int) -> float:
        start = clock()
        device.spin(cycles)
        device.wait(None)
        return clock() - start

    cycles, warm = 1024, clock() + WARM_S
    while lasted(cycles) < CALIBRATION_S:
        cycles *= 2
        if cycles > MAX_CYCLES:
            raise Unsupported("its kernel that only spins returns at once")
    while clock() < warm:
        lasted(cycles)
    return median([(lasted(2 * cycles) - lasted(cycles)) / cycles for _ in range(TRIES)])


def measure_spin(backend: Backend, job: dict[str, Any]) -> dict[str, Any]:
    """A worker's answer: measured and actual seconds of each block. Raises Unsupported."""
    shape, policy, clock = Shape(**job["shape"]), Policy(**job["policy"]), raw_clock()
    if job["device"] is None:
        samples, true_s, drift = measure_on_host(shape, policy, HostTimer(lambda _: None), clock)
    else:
        session = backend.open(job["device"], Dtype.FLOAT32, backend.modes[0], job["threads"])
        if not session.spins:
            raise Unsupported("it has no kernel that only spins")
        samples, true_s, drift = measure_on_device(shape.seconds, policy, session.timer(), session, clock)
    return {
        "iterations": samples.iterations,
        "block_s": samples.block_s,
        "true_block_s": true_s,
        "drift": drift,
    }
