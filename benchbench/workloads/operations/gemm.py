"""Matrix products: one, a batch of them, a dense layer with its gradients, and float8 operands (E4M3)."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Gemm(FunctionOperation):
    """Row-major operands. A transposed operand is stored as A (k, m) or B (n, k)."""

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
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return Cost(
            flops=2 * self.m * self.n * self.k, bytes=elements * dtype.itemsize, items=1, item="product"
        )

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
        """A and B, transposed where stored so."""
        a = (self.k, self.m) if self.transpose_a else (self.m, self.k)
        b = (self.n, self.k) if self.transpose_b else (self.k, self.n)
        return {"a": draw.normal("a", *a), "b": draw.normal("b", *b)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Rows of op(A) times columns of op(B)."""
        import numpy as np

        a, b = self._operands(arrays)
        rows, columns = a[index[:, 0]].astype(np.float64), b[:, index[:, 1]].T.astype(np.float64)
        return np.asarray(np.einsum("sk,sk->s", rows, columns))

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        import numpy as np

        a, b = self._operands({name: wide(array) for name, array in arrays.items()})
        return np.asarray(np.matmul(a, np.matmul(b, vector)))

    def _operands(self, arrays: Any) -> tuple[Any, Any]:
        """A of (m, k) and B of (k, n)."""
        a, b = arrays["a"], arrays["b"]
        return a.T if self.transpose_a else a, b.T if self.transpose_b else b

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.matmul(*self._operands(arrays))

    def torch(self) -> StepFunction:
        """torch.matmul; a transposed operand is a view, which BLAS takes by its flag."""
        import torch

        return lambda a, b: torch.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

    def tensorflow(self) -> StepFunction:
        """tf.matmul, with its flags."""
        import tensorflow as tf

        return lambda a, b: tf.matmul(a, b, transpose_a=self.transpose_a, transpose_b=self.transpose_b)

    def jax(self) -> StepFunction:
        """jnp.matmul; XLA makes a transposed operand part of the product."""
        import jax.numpy as jnp

        return lambda a, b: jnp.matmul(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        if is_float8(context):
            return torch_product(context, *self._operands(arrays))
        return super().build_torch(context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        if is_float8(context):
            return jax_product(context, *self._operands(arrays))
        return super().build_jax(context, arrays)


@dataclass(frozen=True)
class BatchedGemm(FunctionOperation):
    """C[i] = A[i] · B[i], as the heads of attention; row-major, no operand shared."""

    batch: int = 32
    m: int = 256
    n: int = 256
    k: int = 256

    summary = "a batch of matrix products C[i,m,n] = A[i,m,k] B[i,k,n]"
    functions: ClassVar = {"torch": "torch:bmm", "tensorflow": "tensorflow:matmul", "jax": "jax.numpy:matmul"}
    multiplications_saved = 1.0
    projects = True

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·m·n·k FLOPs; the operands and results move once; an item is one product."""
        elements = self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)
        return Cost(
            flops=2 * self.batch * self.m * self.n * self.k,
            bytes=elements * dtype.itemsize,
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
        """Rows of A times columns of B, in the sampled products."""
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


@dataclass(frozen=True)
class Linear(FunctionOperation):
    """x · Wᵀ + b, a dense layer; `batch` rows are a Transformer's tokens or a network's samples."""

    batch: int = 256
    inputs: int = 1024
    outputs: int = 4096

    summary = "a dense layer with bias"
    functions: ClassVar = {"torch": "torch.nn.functional:linear"}
    multiplications_saved = 1.0
    projects = True
    multiplies_float8 = True

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·I·O FLOPs, the bias's additions not counted; x, weight, bias and result move once."""
        elements = self.batch * (self.inputs + self.outputs) + self.outputs * (self.inputs + 1)
        return Cost(
            flops=2 * self.batch * self.inputs * self.outputs,
            bytes=elements * dtype.itemsize,
            items=self.batch,
            item="row",
        )

    @property
    def reduction(self) -> int:
        """Each output sums I products and the bias."""
        return self.inputs + 1

    @property
    def roundings(self) -> int:
        """The product, and its sum with the bias, if in two kernels."""
        return 2

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, self.outputs

    def tiny(self) -> Self:
        return replace(self, batch=13, inputs=37, outputs=29)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """x, the weight as PyTorch lays it out, (outputs, inputs), and a bias as large as the product."""
        return {
            "x": draw.normal("x", self.batch, self.inputs),
            "weight": draw.normal("weight", self.outputs, self.inputs, scale=self.inputs**-0.5),
            "bias": draw.normal("bias", self.outputs),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Rows of x times rows of the weight, and the bias."""
        import numpy as np

        rows, columns = index.T
        x, weight = arrays["x"][rows].astype(np.float64), arrays["weight"][columns].astype(np.float64)
        return np.asarray(np.einsum("si,si->s", x, weight) + arrays["bias"][columns])

    def projection(self, arrays: Arrays, vector: Floats) -> Floats:
        import numpy as np

        x, weight, bias = (wide(arrays[name]) for name in ("x", "weight", "bias"))
        inner = np.matmul(vector, weight)
        return np.asarray(np.matmul(x, inner) + np.matmul(vector, bias))

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.linear(arrays["x"], arrays["weight"], arrays["bias"])

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        if is_float8(context):
            return torch_product(context, arrays["x"], arrays["weight"].T, arrays["bias"])
        return super().build_torch(context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.matmul and tf.nn.bias_add, which Grappler fuses; the weight is (inputs, outputs), as Keras'."""
        import tensorflow as tf

        def step(x: Any, weight: Any, bias: Any) -> Any:
            return tf.nn.bias_add(tf.matmul(x, weight), bias)

        return self._with_kernel(step, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """x @ weight + bias; the weight (inputs, outputs), as Flax has it."""
        if is_float8(context):
            return jax_product(context, arrays["x"], arrays["weight"].T, arrays["bias"])
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
