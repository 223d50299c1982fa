"""The sum of a matrix over its rows or over its columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class Reduction(Operation):
    """A row-major matrix; axis 1 sums neighbours in memory, axis 0 elements that are a row apart."""

    rows: int = 8192
    columns: int = 8192
    axis: int = 1

    summary = "sum of a matrix over one axis"
    may_be_zero = frozenset({"axis"})

    def __post_init__(self) -> None:
        """Raise UsageError also for an axis that no matrix has."""
        super().__post_init__()
        if self.axis > 1:
            raise UsageError(f"axis={self.axis}: a matrix has the axes 0 and 1.")

    def cost(self, dtype: Dtype) -> Cost:
        """The matrix is read, the sums are written; no FLOPs; an item is a sum."""
        moved = (self.rows * self.columns + self._sums) * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, items=self._sums, item="sum")

    @property
    def _sums(self) -> int:
        return (self.rows, self.columns)[1 - self.axis]

    @property
    def reduction(self) -> int:
        return (self.rows, self.columns)[self.axis]

    @property
    def output_shape(self) -> tuple[int]:
        return (self._sums,)

    def tiny(self) -> Self:
        return type(self)(rows=37, columns=1031, axis=self.axis)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", self.rows, self.columns)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Sums of the rows or columns that are asked for."""
        import numpy as np

        asked = np.take(arrays["x"], index[:, 0], axis=1 - self.axis)
        return np.asarray(asked.sum(axis=self.axis, dtype=np.float64))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.sum."""
        import torch

        def step(x: Any) -> Any:
            return torch.sum(x, dim=self.axis)

        return Program(step, (context.put(arrays["x"]),))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls tf.reduce_sum."""
        import tensorflow as tf

        def step(x: Any) -> Any:
            return tf.reduce_sum(x, axis=self.axis)

        return Program(step, (context.put(arrays["x"]),))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jnp.sum."""
        import jax.numpy as jnp

        def step(x: Any) -> Any:
            return jnp.sum(x, axis=self.axis)

        return Program(step, (context.put(arrays["x"]),))
