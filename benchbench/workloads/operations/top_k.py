"""The k largest values of each row, the largest first: how a sampler or a router of experts chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Floats
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import OrderedRows
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class TopK(OrderedRows):
    """Rows of N(0, 1), by default as long as GPT-2's vocabulary.

    Values are given and verified, not where they stood: in 16 bits many are equal.
    """

    rows: int = 512
    columns: int = 50_257
    k: int = 50

    summary = "the k largest values of every row of a matrix"

    def __post_init__(self) -> None:
        """Raise UsageError also for more values than a row has."""
        super().__post_init__()
        if self.k > self.columns:
            raise UsageError(f"k={self.k} is more than a row has: columns={self.columns}.")

    def cost(self, dtype: Dtype) -> Cost:
        """Rows are read, k values of each written; no FLOPs; an item is a row."""
        moved = self.rows * (self.columns + self.k) * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, items=self.rows, item="row")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.rows, self.k

    def tiny(self) -> Self:
        return type(self)(rows=5, columns=129, k=7)

    def placed(self, ordered: Floats) -> Floats:
        return ordered[:, : -self.k - 1 : -1]

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.topk."""
        import torch

        def step(x: Any) -> Any:
            return torch.topk(x, self.k, dim=1).values

        return Program(step, (context.put(arrays["x"]),))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls tf.math.top_k."""
        import tensorflow as tf

        def step(x: Any) -> Any:
            return tf.math.top_k(x, self.k).values

        return Program(step, (context.put(arrays["x"]),))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.lax.top_k."""
        import jax

        def step(x: Any) -> Any:
            return jax.lax.top_k(x, self.k)[0]

        return Program(step, (context.put(arrays["x"]),))
