"""Rows added into a table at the places that an index names, as messages to the nodes of a graph are."""

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
class Scatter(Operation):
    """`count` rows into `rows` of zeros, each place equally likely; rows that meet are summed."""

    rows: int = 2**18
    width: int = 128
    count: int = 2**20

    summary = "rows added into a table by index"

    def cost(self, dtype: Dtype) -> Cost:
        """Rows are read, and the table is written once; their places, far smaller, are not counted.

        No FLOPs; an item is a row.
        """
        moved = (self.count + self.rows) * self.width * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, items=self.count, item="row")

    @property
    def reduction(self) -> int:
        """Each element takes part in one sum."""
        return self._met

    @property
    def roundings(self) -> int:
        """A sum is kept in the table, and rounded with each row that is added."""
        return self._met

    @property
    def _met(self) -> int:
        """Rows in a sum, where an element of the output is weighed by how many it has."""
        return self.count // self.rows + 1

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.rows, self.width

    def tiny(self) -> Self:
        """Odd sizes, none equal; a fourth of the rows, about, stay zero."""
        return type(self)(rows=29, width=11, count=37)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {
            "x": draw.normal("x", self.count, self.width),
            "index": draw.integers("index", self.count, below=self.rows),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Sums of the places that are asked for."""
        import numpy as np

        def total(row: int, column: int) -> Any:
            return arrays["x"][arrays["index"] == row, column].sum(dtype=np.float64)

        return np.array([total(*at) for at in index])

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.index_add_ into zeros."""

        def step(x: Any, index: Any) -> Any:
            return x.new_zeros(self.rows, self.width).index_add(0, index, x)

        return Program(step, (context.put(arrays["x"]), context.put(arrays["index"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls tf.math.unsorted_segment_sum."""
        import tensorflow as tf

        def step(x: Any, index: Any) -> Any:
            return tf.math.unsorted_segment_sum(x, index, self.rows)

        return Program(step, (context.put(arrays["x"]), context.put(arrays["index"])))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.ops.segment_sum."""
        import jax

        def step(x: Any, index: Any) -> Any:
            return jax.ops.segment_sum(x, index, self.rows)

        return Program(step, (context.put(arrays["x"]), context.put(arrays["index"])))
