"""A timer whose blocks begin together in all ranks, and last as long as the slowest rank's.

So every rank decides alike how many steps make a block, when it is warm and when it has enough: another
number of steps in one of them would leave the others waiting in a collective for ever.
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
    """A rank's timer, asked for the same blocks as every other's."""

    batch_s = 0.0  # each block begins together

    def __init__(
        self,
        timer: Stopwatch,
        world: World,
        *,
        same_host: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`clock`: seconds, which the processes of a host share."""
        self._timer = timer
        self._world = world
        self._same_host = same_host
        self._clock = clock
        self._own: list[float] = []
        self._entries: list[float] = []

    @property
    def name(self) -> str:
        return getattr(self._timer, "name", "")

    @property
    def batches(self) -> Sequence[Batch]:
        """This rank's own."""
        return self._timer.batches

    def now(self) -> float:
        """The first rank's clock, so that all see the same time pass."""
        return float(self._world.gather(self._timer.now())[0])

    def no_op(self) -> Any:
        return self._timer.no_op()

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        """Seconds of each block, of the rank that took longest."""
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        self._world.gather(None)
        entered = self._clock()
        own = self._timer.blocks(step, iterations, 1)[0]
        told = self._world.gather([entered, own])
        self._own.append(own)
        self._entries.append(entered - min(entry for entry, _ in told))
        return float(max(block for _, block in told))

    def own(self, samples: Samples) -> Samples:
        """What this rank had of `samples`, which must be of the last blocks so far."""
        timed = len(self._own) - len(samples.block_s)
        warm = timed - len(samples.warmup_block_s)
        return replace(
            samples,
            warmup_block_s=tuple(self._own[warm:timed]),
            block_s=tuple(self._own[timed:]),
            entry_s=tuple(self._entries[timed:]) if self._same_host else (),
        )
