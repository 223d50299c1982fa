"""Many matrix products of one size at once, as the heads of attention are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program, wide

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class BatchedGemm(Operation):
    """C[i] = A[i] · B[i]; row-major, no operand shared."""

    batch: int = 32
    m: int = 256
    n: int = 256
    k: int = 256

    summary = "a batch of matrix products C[i,m,n] = A[i,m,k] B[i,k,n]"
    multiplications_saved = 1.0
    projects = True

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·m·n·k FLOPs; the operands and results move once; an item is one product."""
        moved = self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)
        return Cost(
            flops=2 * self.batch * self.m * self.n * self.k,
            bytes=moved * dtype.itemsize,
            items=self.batch,
            item="product",
        )

    @property
    def reduction(self) -> int:
        """Each element of a result sums k products."""
        return self.k

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.m, self.n

    def tiny(self) -> Self:
        return replace(self, batch=5, m=23, n=33, k=17)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {
            "a": draw.normal("a", self.batch, self.m, self.k),
            "b": draw.normal("b", self.batch, self.k, self.n),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Rows of A times columns of B, in the product asked for."""
        import numpy as np

        product, row, column = index.T
        rows = arrays["a"][product, row].astype(np.float64)
        columns = arrays["b"][product, :, column].astype(np.float64)
        return np.asarray(np.einsum("sk,sk->s", rows, columns))

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        import numpy as np

        inner = np.matmul(wide(arrays["b"]), vector)
        return np.asarray(np.matmul(wide(arrays["a"]), inner[..., None])[..., 0])

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.matmul(arrays["a"], arrays["b"])

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.bmm."""
        import torch

        return Program(torch.bmm, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.matmul, which takes leading axes for a batch."""
        import tensorflow as tf

        return Program(tf.matmul, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jnp.matmul, likewise."""
        import jax.numpy as jnp

        return Program(jnp.matmul, (context.put(arrays["a"]), context.put(arrays["b"])))
