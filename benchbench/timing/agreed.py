"""Timer whose blocks start together in all ranks and last as long as the slowest rank's.

So every rank makes the same decisions about block size, warm-up and stopping. A different number of steps
in one rank would leave the others waiting in a collective forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from benchbench.model.measurement import Batch
from benchbench.model.world import World
from benchbench.timing.sampling import Samples, Stopwatch


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
