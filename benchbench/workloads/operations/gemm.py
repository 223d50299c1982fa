"""Matrix products: one, a batch of them, a dense layer with its gradients, and float8 operands (E4M3)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import FunctionOperation, Program, wide
from benchbench.workloads.program import DeviceContext

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw, StepFunction

STEP = 16  # n and k of a float8 product must be multiples of this (documentation of cublasLtMatmul)


def torch_product(context: DeviceContext, a: Array, b: Array, bias: Array | None = None) -> Program:
    """a[m, k] b[k, n] + bias[n] by torch._scaled_mm, with `a` in rows and `b` in columns.

    Fast accumulation is off, since its partial sums stay in the tensor cores' few bits. Raises Unsupported.
    """
    import numpy as np
    import torch

    if b.shape[0] % STEP or b.shape[1] % STEP:
        k, n = b.shape
        raise Unsupported(
            f"torch needs n and k to be multiples of {STEP} for float8, but they are {n} and {k}"
        )
    scale = torch.ones((), device=context.device)
    a_tensor = context.put(np.ascontiguousarray(a)).to(context.compute)
    b_tensor = context.put(np.ascontiguousarray(b.T)).to(context.compute)
    bias_tensors = () if bias is None else (context.put(bias),)

    def step(a_tensor: Any, b_tensor: Any, *bias_tensors: Any) -> Any:
        return torch._scaled_mm(
            a_tensor,
            b_tensor.T,
            scale_a=scale,
            scale_b=scale,
            bias=bias_tensors[0] if bias_tensors else None,
            out_dtype=context.dtype,
        )

    return Program(step, (a_tensor, b_tensor, *bias_tensors))


def jax_product(context: DeviceContext, a: Array, b: Array, bias: Array | None = None) -> Program:
    """a[m, k] b[k, n] + bias[n] by lax.dot_general, which XLA passes to cuBLASLt, with padding if needed."""
    import jax
    import numpy as np
    from jax import lax

    a_array, b_array = (
        jax.device_put(context.put(np.ascontiguousarray(operand)).astype(context.compute), context.device)
        for operand in (a, b)
    )
    bias_arrays = () if bias is None else (context.put(bias),)

    def step(a_array: Any, b_array: Any, *bias_arrays: Any) -> Any:
        axes = ((1,), (0,)), ((), ())
        product = lax.dot_general(a_array, b_array, axes, preferred_element_type=context.dtype)
        return product + bias_arrays[0] if bias_arrays else product

    return Program(step, (a_array, b_array, *bias_arrays))


def is_float8(context: DeviceContext) -> bool:
    """True if the case multiplies in float8."""
    return "float8" in str(context.compute)


class Products(FunctionOperation):
    """Products of row-major matrices: A (…, m, k) times B (…, k, n), plus a bias (n) or nothing."""

    multiplications_saved = 1.0
    projects = True
    item: ClassVar[str] = "product"
    has_bias: ClassVar[bool] = False

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int, int]:
        """Number of products, and m, n and k."""

    @property
    def items(self) -> int:
        """By default the number of products."""
        return self.sizes[0]

    def operands(self, arrays: Any) -> tuple[Any, Any]:
        """A and B of these shapes."""
        return arrays["a"], arrays["b"]

    def cost(self, dtype: Dtype) -> Cost:
        """2·m·n·k FLOPs per product, the bias's additions not counted; operands and results move once."""
        count, m, n, k = self.sizes
        elements = count * (m * k + k * n + m * n) + n * self.has_bias
        flops = 2 * count * m * n * k
        return Cost(flops=flops, bytes=elements * dtype.itemsize, items=self.items, item=self.item)

    @property
    def reduction(self) -> int:
        """Each element of a result sums k products, and the bias."""
        return self.sizes[3] + self.has_bias

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.sizes[1:3]

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Rows of A times columns of B, in the sampled products."""
        import numpy as np

        a, b = self.operands(arrays)
        *product, row, column = index.T
        rows = a[(*product, row)].astype(np.float64)
        columns = b.swapaxes(-1, -2)[(*product, column)].astype(np.float64)
        sums = np.einsum("sk,sk->s", rows, columns)
        return np.asarray(sums + arrays["bias"][column] if self.has_bias else sums)

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        import numpy as np

        a, b = self.operands({name: wide(array) for name, array in arrays.items()})
        projected = np.matmul(a, np.matmul(b, vector)[..., None])[..., 0]
        return np.asarray(projected + np.matmul(vector, wide(arrays["bias"])) if self.has_bias else projected)

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.matmul(*self.operands(arrays))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        if is_float8(context):
            return torch_product(context, *self.operands(arrays), arrays.get("bias"))
        return super().build_torch(context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        if is_float8(context):
            return jax_product(context, *self.operands(arrays), arrays.get("bias"))
        return super().build_jax(context, arrays)


@dataclass(frozen=True)
class Gemm(Products):
    """Row-major operands. A transposed operand is stored as A (k, m) or B (n, k)."""

    m: int = 1024
    n: int = 1024
    k: int = 1024
    transpose_a: bool = False
    transpose_b: bool = False

    summary = "matrix product C[m,n] = A[m,k] B[k,n], of A or B as stored or transposed"
    functions: ClassVar = {"tensorflow": "tensorflow:matmul"}
    added = frozenset({"transpose_a", "transpose_b"})
    multiplies_float8 = True

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return 1, self.m, self.n, self.k

    def tiny(self) -> Self:
        """Odd sizes, none equal, so that a swapped axis shows."""
        return replace(self, m=48, n=33, k=65)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """A and B, transposed where stored so."""
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return {"a": draw.normal("a", *a), "b": draw.normal("b", *b)}

    def operands(self, arrays: Any) -> tuple[Any, Any]:
        a, b = arrays["a"], arrays["b"]
        return a.T if self.transpose_a else a, b.T if self.transpose_b else b

    def torch(self) -> StepFunction:
        """torch.matmul; a transposed operand is a view, which BLAS takes by its flag."""
        import torch

        return lambda a, b: torch.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        return {"tensorflow": {"transpose_a": self.transpose_a, "transpose_b": self.transpose_b}}

    def jax(self) -> StepFunction:
        """jnp.matmul; XLA makes a transposed operand part of the product."""
        import jax.numpy as jnp

        return lambda a, b: jnp.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)


@dataclass(frozen=True)
class BatchedGemm(Products):
    """C[i] = A[i] · B[i], as the heads of attention; row-major, no operand shared."""

    batch: int = 32
    m: int = 256
    n: int = 256
    k: int = 256

    summary = "a batch of matrix products C[i,m,n] = A[i,m,k] B[i,k,n]"
    functions: ClassVar = {"torch": "torch:bmm", "tensorflow": "tensorflow:matmul", "jax": "jax.numpy:matmul"}

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.batch, self.m, self.n, self.k

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.sizes[:3]

    def tiny(self) -> Self:
        return replace(self, batch=5, m=23, n=33, k=17)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {
            "a": draw.normal("a", self.batch, self.m, self.k),
            "b": draw.normal("b", self.batch, self.k, self.n),
        }


@dataclass(frozen=True)
class Linear(Products):
    """x · Wᵀ + b, a dense layer; `batch` rows are a Transformer's tokens or a network's samples."""

    batch: int = 256
    inputs: int = 1024
    outputs: int = 4096

    summary = "a dense layer with bias"
    functions: ClassVar = {"torch": "torch.nn.functional:linear"}
    item = "row"
    has_bias = True
    multiplies_float8 = True

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return 1, self.batch, self.outputs, self.inputs

    @property
    def items(self) -> int:
        return self.batch

    @property
    def roundings(self) -> int:
        """The product, and its sum with the bias, if in two kernels."""
        return 2

    def tiny(self) -> Self:
        return replace(self, batch=13, inputs=37, outputs=29)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """x, the weight as PyTorch lays it out, (outputs, inputs), and a bias as large as the product."""
        return {
            "x": draw.normal("x", self.batch, self.inputs),
            "weight": draw.normal("weight", self.outputs, self.inputs, scale=self.inputs**-0.5),
            "bias": draw.normal("bias", self.outputs),
        }

    def operands(self, arrays: Any) -> tuple[Any, Any]:
        return arrays["x"], arrays["weight"].T

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.linear(arrays["x"], arrays["weight"], arrays["bias"])

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.matmul and tf.nn.bias_add, which Grappler fuses; the weight is (inputs, outputs), as Keras'."""
        import tensorflow as tf

        def step(x: Any, weight: Any, bias: Any) -> Any:
            return tf.nn.bias_add(tf.matmul(x, weight), bias)

        return self._with_kernel(step, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """x @ weight + bias; the weight (inputs, outputs), as Flax has it."""
        if is_float8(context):
            return super().build_jax(context, arrays)
        return self._with_kernel(lambda x, weight, bias: x @ weight + bias, context, arrays)

    def _with_kernel(self, step: Any, context: DeviceContext, arrays: Arrays) -> Program:
        import numpy as np

        kernel = np.ascontiguousarray(arrays["weight"].T)
        inputs = (context.put(arrays["x"]), context.put(kernel), context.put(arrays["bias"]))
        return Program(step, inputs, input_axes={"weight": (1, 0)})


@dataclass(frozen=True)
class LinearBackward(Backward, Linear):
    """Gradients of x, weight and bias, none of which depends on the output."""

    summary = "gradients of a dense layer"
    needs_forward = False
    forward_unused = 0.5  # the two gradients cost a forward pass each
