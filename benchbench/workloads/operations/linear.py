"""A dense layer: x · Wᵀ + b."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads import _float8
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Operation, Program, wide

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class Linear(Operation):
    """A linear layer without activation; `batch` rows are a Transformer's tokens or a network's samples."""

    batch: int = 256
    inputs: int = 1024
    outputs: int = 4096

    summary = "a dense layer with bias"
    multiplications_saved = 1.0
    projects = True
    multiplies_float8 = True

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·I·O FLOPs, the bias's additions not counted; x, weight, bias and result move once."""
        moved = self.batch * (self.inputs + self.outputs) + self.outputs * (self.inputs + 1)
        return Cost(
            flops=2 * self.batch * self.inputs * self.outputs,
            bytes=moved * dtype.itemsize,
            items=self.batch,
            item="row",
        )

    @property
    def reduction(self) -> int:
        """Each output sums I products and the bias."""
        return self.inputs + 1

    @property
    def roundings(self) -> int:
        """The product, and its sum with the bias: where these are two kernels."""
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
        """A program that calls F.linear."""
        import torch.nn.functional as F

        if _float8.is_float8(context):
            return _float8.torch_product(context, arrays["x"], arrays["weight"].T, arrays["bias"])

        return Program(F.linear, tuple(context.put(arrays[name]) for name in ("x", "weight", "bias")))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.matmul and tf.nn.bias_add, which Grappler fuses; the weight is (inputs, outputs), as Keras'."""
        import tensorflow as tf

        def step(x: Any, weight: Any, bias: Any) -> Any:
            return tf.nn.bias_add(tf.matmul(x, weight), bias)

        return self._with_kernel(step, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """x @ weight + bias; the weight (inputs, outputs), as Flax has it."""
        if _float8.is_float8(context):
            return _float8.jax_product(context, arrays["x"], arrays["weight"].T, arrays["bias"])
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
