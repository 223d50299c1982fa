"""Rows of a table looked up, picked, or added to by index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import MemoryBound, MemoryBoundBackward
from benchbench.workloads.base import FunctionOperation

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Draw, StepFunction


@dataclass(frozen=True)
class Embedding(MemoryBound):
    """Rows of a table, looked up by token: the first layer of a language model, by default GPT-2's.

    All tokens are equally likely.
    """

    batch: int = 8
    length: int = 1024
    vocabulary: int = 50257
    width: int = 768

    summary = "rows of a table, looked up by token"
    functions: ClassVar = {"tensorflow": "tensorflow:gather", "jax": "operator:getitem"}
    item = "token"
    batched: ClassVar[tuple[str, ...]] = ("tokens",)

    @property
    def items(self) -> int:
        return self.batch * self.length

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"table": (self.vocabulary, self.width)}

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.batch, self.length, self.width

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; the looked-up rows are read and written. Tokens are not counted."""
        rows = 2 * prod(self.output_shape)
        return replace(super().cost(dtype), bytes=rows * dtype.storage.itemsize)

    def tiny(self) -> Self:
        """Some tokens occur twice."""
        return replace(self, batch=2, length=13, vocabulary=31, width=7)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        tokens = draw.integers("tokens", self.batch, self.length, below=self.vocabulary)
        return {**super().arrays(draw), "tokens": tokens}

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.embedding(arrays["table"], arrays["tokens"])

    def torch(self) -> StepFunction:
        import torch.nn.functional as F

        return lambda table, tokens: F.embedding(tokens, table)


@dataclass(frozen=True)
class EmbeddingBackward(MemoryBoundBackward, Embedding):
    """The gradient of the table, dense, as optimizers take it: mostly zeros."""

    summary = "gradient of an embedding's table"
    batched = ()

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; the gradient of the output is read, the table's written."""
        elements = prod(self.output_shape) + self.vocabulary * self.width
        return replace(super().cost(dtype), bytes=elements * dtype.storage.itemsize)


@dataclass(frozen=True)
class Gather(FunctionOperation):
    """`count` rows of `rows`, each equally likely: neighbours of a graph's nodes, replayed samples."""

    rows: int = 2**20
    width: int = 128
    count: int = 2**20

    summary = "rows of a table picked by index"
    # JAX's indexing clamps an index that is too large.
    functions: ClassVar = {"tensorflow": "tensorflow:gather", "jax": "operator:getitem"}
    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def cost(self, dtype: Dtype) -> Cost:
        """A row is read and written each time it is picked; its index, far smaller, is not counted.

        No FLOPs; an item is a row.
        """
        moved_bytes = 2 * self.count * self.width * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved_bytes, items=self.count, item="row")

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
        import numpy as np

        return np.asarray(arrays["table"][arrays["index"][index[:, 0]], index[:, 1]], np.float64)

    def torch(self) -> StepFunction:
        import torch

        return lambda table, index: torch.index_select(table, 0, index)


@dataclass(frozen=True)
class Scatter(FunctionOperation):
    """`count` rows added to `rows` of zeros, each place equally likely, as messages to a graph's nodes are.

    Rows with the same place are summed.
    """

    rows: int = 2**18
    width: int = 128
    count: int = 2**20

    summary = "rows added into a table by index"

    def cost(self, dtype: Dtype) -> Cost:
        """Rows are read, and the table is written once; places, far smaller, are not counted.

        No FLOPs; an item is a row.
        """
        moved_bytes = (self.count + self.rows) * self.width * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved_bytes, items=self.count, item="row")

    @property
    def reduction(self) -> int:
        """Rows in a sum, averaged over the input's rows: each element takes part in one sum."""
        return self.count // self.rows + 1

    @property
    def roundings(self) -> int:
        """A sum is rounded with each added row, since the table stores it."""
        return self.reduction

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.rows, self.width

    def tiny(self) -> Self:
        """Odd sizes, none equal; about a fourth of the rows stay zero."""
        return type(self)(rows=29, width=11, count=37)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {
            "x": draw.normal("x", self.count, self.width),
            "index": draw.integers("index", self.count, below=self.rows),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Sums at the sampled places."""
        import numpy as np

        def total(row: int, column: int) -> Any:
            return arrays["x"][arrays["index"] == row, column].sum(dtype=np.float64)

        return np.array([total(*at) for at in index])

    def torch(self) -> StepFunction:
        return lambda x, index: x.new_zeros(self.rows, self.width).index_add(0, index, x)

    def tensorflow(self) -> StepFunction:
        import tensorflow as tf

        return lambda x, index: tf.math.unsorted_segment_sum(x, index, self.rows)

    def jax(self) -> StepFunction:
        import jax

        return lambda x, index: jax.ops.segment_sum(x, index, self.rows)
