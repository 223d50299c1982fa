"""The smallest operation, on one element: what it costs to have anything done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class Launch(Operation):
    """y = x + 1. Its latency is of the call, the framework's dispatch and the kernel's launch.

    On an accelerator calls are queued: it is how often one can be launched, not how long one takes.
    """

    summary = "the smallest operation, on one element: its latency is that of a launch"

    def cost(self, dtype: Dtype) -> Cost:
        """x is read and y is written; an item is a launch."""
        return Cost(flops=0, bytes=2 * dtype.storage.itemsize, items=1, item="launch")

    @property
    def reduction(self) -> int:
        return 1

    @property
    def output_shape(self) -> tuple[int]:
        return (1,)

    def tiny(self) -> Self:
        """The smallest size."""
        return self

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", 1)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The element, as often as it is asked for."""
        import numpy as np

        return np.add(arrays["x"][index[:, 0]], 1.0, dtype=np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """x + 1."""
        return _plus_one(context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """x + 1."""
        return _plus_one(context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """x + 1."""
        return _plus_one(context, arrays)


def _plus_one(context: DeviceContext, arrays: Arrays) -> Program:
    def step(x: Any) -> Any:
        return x + 1

    return Program(step, (context.put(arrays["x"]),))
