"""y = x for an array that fits no cache: what the device's memory gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import Vectors
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Copy(Vectors):
    """A vector of n elements.

    A bare copy is none in a framework that shares buffers or compiles: there it is multiplied by a one that
    only the run knows, which moves the same bytes.
    """

    summary = "copy of a large array: memory bandwidth"
    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def cost(self, dtype: Dtype) -> Cost:
        """x is read and y is written; no FLOPs, an item is one copy."""
        return Cost(flops=0, bytes=2 * self.n * dtype.storage.itemsize, items=1, item="copy")

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(arrays["x"][index[:, 0]], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.mul: torch_xla and ONNX Runtime would leave a copy out."""
        import torch

        return Program(torch.mul, (context.put(arrays["x"]), context.put(_one(arrays))))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.multiply: tf.identity gives the same buffer, and DeepCopy has no XLA kernel."""
        import tensorflow as tf

        return Program(tf.multiply, (context.put(arrays["x"]), context.put(_one(arrays))))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jnp.copy: what is not donated cannot be given back, so XLA copies it."""
        import jax.numpy as jnp

        return Program(jnp.copy, (context.put(arrays["x"]),))


def _one(arrays: Arrays) -> Array:
    import numpy as np

    return np.ones((), arrays["x"].dtype)
