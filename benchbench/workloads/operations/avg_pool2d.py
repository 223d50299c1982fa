"""The mean of each window of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._memory_bound import MemoryBoundBackward, Pool2d

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class AvgPool2d(Pool2d):
    """Padded zeros count, as in PyTorch."""

    summary = "average pooling of images"

    @property
    def reduction(self) -> int:
        return self.kernel**2

    @property
    def roundings(self) -> int:
        """The sum, and its share, where unfused."""
        return 2

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.avg_pool2d(arrays["x"], self.kernel, stride=self.stride, padding=self.padding)

    def torch(self) -> Step:
        import torch.nn.functional as F

        return lambda x: F.avg_pool2d(x, self.kernel, self.stride, self.padding)

    def tensorflow(self) -> Step:
        """tf.nn.avg_pool2d, padded apart: its own padding does not count."""
        import tensorflow as tf

        pad = [self.padding, self.padding]

        def step(x: Any) -> Any:
            padded = tf.pad(x, [[0, 0], pad, pad, [0, 0]]) if self.padding else x
            return tf.nn.avg_pool2d(padded, self.kernel, self.stride, "VALID")

        return step

    def jax(self) -> Step:
        from jax import lax

        window, strides = (1, self.kernel, self.kernel, 1), (1, self.stride, self.stride, 1)
        edges = ((0, 0), (self.padding,) * 2, (self.padding,) * 2, (0, 0))
        return lambda x: lax.reduce_window(x, 0.0, lax.add, window, strides, edges) / self.kernel**2


@dataclass(frozen=True)
class AvgPool2dBackward(MemoryBoundBackward, AvgPool2d):
    """Each element's gradient is its share of every window."""

    summary = "gradient of average pooling"
