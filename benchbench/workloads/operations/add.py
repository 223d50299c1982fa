"""z = x + y, the least that a residual connection does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.arrays import Floats, Indices
from benchbench.workloads._memory_bound import Vectors
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Add(Vectors):
    """Two vectors of n elements."""

    summary = "elementwise sum of two large arrays"
    operands = ("x", "y")

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        x, y = (arrays[name][index[:, 0]] for name in self.operands)
        return np.add(x, y, dtype=np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.add."""
        import torch

        return Program(torch.add, (context.put(arrays["x"]), context.put(arrays["y"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls tf.add."""
        import tensorflow as tf

        return Program(tf.add, (context.put(arrays["x"]), context.put(arrays["y"])))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jnp.add."""
        import jax.numpy as jnp

        return Program(jnp.add, (context.put(arrays["x"]), context.put(arrays["y"])))
