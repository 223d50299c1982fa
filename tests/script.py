"""A scripted step and its clock, so that measurements are exact and take no time."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchbench.model.measurement import Batch


class Script:
    """A step and its timer. A call lasts the next of `durations`; a block costs `cost` in addition."""

    batches: Sequence[Batch] = ()

    def __init__(self, durations: Iterator[float], cost: float = 0.0, batch_s: float = 0.0) -> None:
        self._durations = durations
        self._cost = cost
        self._clock = 0.0
        self.batch_s = batch_s
        self.calls = 0

    def now(self) -> float:
        return self._clock

    def step(self) -> None:
        self.calls += 1
        self._clock += next(self._durations)

    def no_op(self) -> None:
        """Do nothing."""

    def blocks(self, step: Callable[[], Any], iterations: int, count: int) -> list[float]:
        return [self._block(step, iterations) for _ in range(count)]

    def _block(self, step: Callable[[], Any], iterations: int) -> float:
        start = self._clock
        for _ in range(iterations):
            step()
        self._clock += self._cost
        return self._clock - start
