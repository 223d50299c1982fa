"""Rows of a table, looked up by token: the first layer of a language model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import MemoryBound, MemoryBoundBackward

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step
    from benchbench.workloads.base import Draw


@dataclass(frozen=True)
class Embedding(MemoryBound):
    """GPT-2's table, unless said otherwise; any token is as likely as any other."""

    batch: int = 8
    length: int = 1024
    vocabulary: int = 50257
    width: int = 768

    summary = "rows of a table, looked up by token"
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
        """No FLOPs; the rows that are looked up are read and written. Tokens are not counted."""
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

    def torch(self) -> Step:
        import torch.nn.functional as F

        return lambda table, tokens: F.embedding(tokens, table)

    def tensorflow(self) -> Step:
        import tensorflow as tf

        return tf.gather  # type: ignore[no-any-return]

    def jax(self) -> Step:
        return lambda table, tokens: table[tokens]


@dataclass(frozen=True)
class EmbeddingBackward(MemoryBoundBackward, Embedding):
    """The gradient of the table, dense, as optimizers take it: mostly zeros."""

    summary = "gradient of an embedding's table"
    batched = ()

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; the gradient of the output is read, the table's written."""
        elements = prod(self.output_shape) + self.vocabulary * self.width
        return replace(super().cost(dtype), bytes=elements * dtype.storage.itemsize)
