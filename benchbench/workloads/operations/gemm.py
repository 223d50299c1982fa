"""C[m×n] = op(A)[m×k] · op(B)[k×n], the product every dense layer comes down to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads import _float8
from benchbench.workloads.base import Operation, Program, wide

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class Gemm(Operation):
    """Row-major operands. One that is transposed is stored so: A as (k, m), B as (n, k)."""

    m: int = 1024
    n: int = 1024
    k: int = 1024
    transpose_a: bool = False
    transpose_b: bool = False

    summary = "matrix product C[m,n] = A[m,k] B[k,n], of A or B as stored or transposed"
    added = frozenset({"transpose_a", "transpose_b"})
    multiplications_saved = 1.0
    projects = True
    multiplies_float8 = True

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
        return self.m, self.n

    def tiny(self) -> Self:
        """Odd sizes, none equal, so that a swapped axis shows."""
        return replace(self, m=48, n=33, k=65)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """A and B, as they are stored."""
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return {"a": draw.normal("a", *a), "b": draw.normal("b", *b)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Rows of op(A) times columns of op(B)."""
        import numpy as np

        a = arrays["a"].T if self.transpose_a else arrays["a"]
        b = arrays["b"].T if self.transpose_b else arrays["b"]
        rows, columns = a[index[:, 0]].astype(np.float64), b[:, index[:, 1]].T.astype(np.float64)
        return np.asarray(np.einsum("sk,sk->s", rows, columns))

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        import numpy as np

        a, b = wide(arrays["a"]), wide(arrays["b"])
        inner = np.matmul(b.T if self.transpose_b else b, vector)
        return np.asarray(np.matmul(a.T if self.transpose_a else a, inner))

    def _operands(self, arrays: Arrays) -> tuple[Array, Array]:
        """A of (m, k) and B of (k, n)."""
        a, b = arrays["a"], arrays["b"]
        return a.T if self.transpose_a else a, b.T if self.transpose_b else b

    def forward(self, ops: Any, arrays: Any) -> Any:
        a, b = arrays["a"], arrays["b"]
        return ops.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.matmul; a transposed operand is a view, which BLAS takes by its flag."""
        import torch

        if _float8.is_float8(context):
            return _float8.torch_product(context, *self._operands(arrays))

        def step(a: Any, b: Any) -> Any:
            return torch.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.matmul, with its flags."""
        import tensorflow as tf

        def step(a: Any, b: Any) -> Any:
            return tf.matmul(a, b, transpose_a=self.transpose_a, transpose_b=self.transpose_b)

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jnp.matmul; XLA makes a transposed operand part of the product."""
        import jax.numpy as jnp

        if _float8.is_float8(context):
            return _float8.jax_product(context, *self._operands(arrays))

        def step(a: Any, b: Any) -> Any:
            return jnp.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))
