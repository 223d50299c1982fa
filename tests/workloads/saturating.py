"""A product whose time hardly grows with the batch until the device is full."""

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
    full: int = 32  # larger batches take proportionally longer
    most: int = 1024  # the largest batch that fits

    summary = "A product whose time hardly grows until the device is full"

    def cost(self, dtype: Dtype) -> Cost:
        return replace(super().cost(dtype), items=self.batch, item="sample")

    def tiny(self) -> Self:
        return self

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:

        def step(a: Any, b: Any) -> Any:
            if self.batch > self.most:
                raise MemoryError(f"batch={self.batch}")
            context.spend(1e-3 * max(1.0, self.batch / self.full))
            return a @ b

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))
