"""A product whose batch costs little more until the device is full, and which fits only up to a size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Program
from benchbench.workloads.honest import Honest

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Saturating(Honest):
    batch: int = 4
    full: int = 32  # the batch from which on twice as many items take twice as long
    most: int = 1024  # the largest batch that fits

    summary = "A product whose batch costs little more until the device is full"

    def cost(self, dtype: Dtype) -> Cost:
        """An item is one of the batch."""
        return replace(super().cost(dtype), items=self.batch, item="sample")

    def tiny(self) -> Self:
        """The same."""
        return self

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A millisecond, and one more for each further `full` of the batch."""

        def step(a: Any, b: Any) -> Any:
            if self.batch > self.most:
                raise MemoryError(f"batch={self.batch}")
            context.spend(1e-3 * max(1.0, self.batch / self.full))
            return a @ b

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))
