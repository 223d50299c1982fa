"""C[m×n] = A[m×k] · B[k×n], the product every dense layer comes down to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class Gemm(Operation):
    """Row-major operands, neither transposed."""

    m: int = 1024
    n: int = 1024
    k: int = 1024

    summary = "matrix product C[m,n] = A[m,k] B[k,n]"
    multiplications_saved = 1.0

    def cost(self, dtype: Dtype) -> Cost:
        """2mnk FLOPs; A, B and C move once; an item is one product."""
        moved = self.m * self.k + self.k * self.n + self.m * self.n
        return Cost(flops=2 * self.m * self.n * self.k, bytes=moved * dtype.itemsize, items=1, item="product")

    @property
    def reduction(self) -> int:
        """Each element of C sums k products."""
        return self.k

    @property
    def output_shape(self) -> tuple[int, int]:
        """Of C."""
        return self.m, self.n

    def tiny(self) -> Gemm:
        """Odd sizes, none equal, so that a swapped axis shows."""
        return Gemm(m=48, n=33, k=65)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """A and B."""
        return {"a": draw.normal("a", self.m, self.k), "b": draw.normal("b", self.k, self.n)}

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Rows of A times columns of B."""
        import numpy as np

        rows = arrays["a"][index[:, 0]].astype(np.float64)
        columns = arrays["b"][:, index[:, 1]].T.astype(np.float64)
        return np.asarray(np.einsum("sk,sk->s", rows, columns))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.matmul."""
        import torch

        return Program(torch.matmul, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.matmul."""
        import tensorflow as tf

        return Program(tf.matmul, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jnp.matmul."""
        import jax.numpy as jnp

        return Program(jnp.matmul, (context.put(arrays["a"]), context.put(arrays["b"])))
