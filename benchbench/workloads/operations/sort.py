"""Each row of a matrix sorted, from the smallest value to the largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import OrderedRows
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Sort(OrderedRows):
    """Rows of N(0, 1). PyTorch sorts their indices along with them, whether used or not."""

    rows: int = 64
    columns: int = 2**20

    summary = "every row of a matrix sorted"

    def cost(self, dtype: Dtype) -> Cost:
        """Rows are read and written once, which no algorithm reaches; no FLOPs; an item is an element."""
        elements = self.rows * self.columns
        return Cost(flops=0, bytes=2 * elements * dtype.storage.itemsize, items=elements, item="element")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def tiny(self) -> Self:
        return type(self)(rows=5, columns=129)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.sort."""
        import torch

        def step(x: Any) -> Any:
            return torch.sort(x, dim=1).values

        return Program(step, (context.put(arrays["x"]),))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls tf.sort."""
        import tensorflow as tf

        def step(x: Any) -> Any:
            return tf.sort(x, axis=1)

        return Program(step, (context.put(arrays["x"]),))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jnp.sort."""
        import jax.numpy as jnp

        def step(x: Any) -> Any:
            return jnp.sort(x, axis=1)

        return Program(step, (context.put(arrays["x"]),))
