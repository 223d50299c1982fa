"""The largest of each window of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._memory_bound import MemoryBoundBackward, Pool2d

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class MaxPool2d(Pool2d):
    """Max-pooling; the defaults are those after ResNet's first convolution."""

    kernel: int = 3
    padding: int = 1

    summary = "max-pooling of images"

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.max_pool2d(arrays["x"], self.kernel, stride=self.stride, padding=self.padding)

    def torch(self) -> Step:
        import torch.nn.functional as F

        return lambda x: F.max_pool2d(x, self.kernel, self.stride, self.padding)

    def tensorflow(self) -> Step:
        """tf.nn.max_pool2d, padded apart: with explicit padding it has no kernel for the CPU."""
        import tensorflow as tf

        pad = [self.padding, self.padding]

        def step(x: Any) -> Any:
            if self.padding:
                x = tf.pad(x, [[0, 0], pad, pad, [0, 0]], constant_values=x.dtype.min)
            return tf.nn.max_pool2d(x, self.kernel, self.stride, "VALID")

        return step

    def jax(self) -> Step:
        import jax.numpy as jnp
        from jax import lax

        window, strides = (1, self.kernel, self.kernel, 1), (1, self.stride, self.stride, 1)
        edges = ((0, 0), (self.padding,) * 2, (self.padding,) * 2, (0, 0))
        return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, window, strides, edges)


@dataclass(frozen=True)
class MaxPool2dBackward(MemoryBoundBackward, MaxPool2d):
    """The gradient goes to the first of the largest of each window."""

    summary = "gradient of max-pooling"

    @property
    def reduction(self) -> int:
        """The number of windows that an element is in."""
        return self.kernel**2
