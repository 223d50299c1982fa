"""Rows of a table, picked by their numbers."""

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
class Gather(Operation):
    """`count` rows of `rows`, each equally likely: neighbours of a graph's nodes, replayed samples."""

    rows: int = 2**20
    width: int = 128
    count: int = 2**20

    summary = "rows of a table picked by index"
    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def cost(self, dtype: Dtype) -> Cost:
        """A row is read and written each time it is picked; its number, far smaller, is not counted.

        No FLOPs; an item is a row.
        """
        moved = 2 * self.count * self.width * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, items=self.count, item="row")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.count, self.width

    def tiny(self) -> Self:
        return type(self)(rows=29, width=11, count=37)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {
            "table": draw.normal("table", self.rows, self.width),
            "index": draw.integers("index", self.count, below=self.rows),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Elements of the rows that were picked."""
        import numpy as np

        return np.asarray(arrays["table"][arrays["index"][index[:, 0]], index[:, 1]], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.index_select."""
        import torch

        def step(table: Any, index: Any) -> Any:
            return torch.index_select(table, 0, index)

        return Program(step, (context.put(arrays["table"]), context.put(arrays["index"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls tf.gather."""
        import tensorflow as tf

        return Program(tf.gather, (context.put(arrays["table"]), context.put(arrays["index"])))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Indexing, which keeps a number that is too large within the table."""

        def step(table: Any, index: Any) -> Any:
            return table[index]

        return Program(step, (context.put(arrays["table"]), context.put(arrays["index"])))
