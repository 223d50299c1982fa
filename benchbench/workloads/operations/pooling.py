"""The mean or the largest value of each window of an image, with their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._memory_bound import MemoryBound, MemoryBoundBackward

if TYPE_CHECKING:
    from benchbench.workloads.base import StepFunction


@dataclass(frozen=True)
class _Pool2d(MemoryBound):
    """Square windows of every channel."""

    batch: int = 8
    channels: int = 64
    height: int = 112
    width: int = 112
    kernel: int = 2
    stride: int = 2
    padding: int = 0

    may_be_zero = frozenset({"padding"})
    item = "image"
    images = frozenset({"x"})
    version = 2  # torch's gradients of outputs lie as images do

    def __post_init__(self) -> None:
        super().__post_init__()
        if 2 * self.padding > self.kernel:
            raise UsageError(f"padding={self.padding} must be at most half of kernel={self.kernel}.")
        if self.kernel > min(self.height, self.width) + 2 * self.padding:
            raise UsageError(
                f"kernel={self.kernel} is larger than the padded image: height={self.height}, "
                f"width={self.width}, padding={self.padding}."
            )

    @property
    def items(self) -> int:
        return self.batch

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"x": (self.batch, self.channels, self.height, self.width)}

    @property
    def output_shape(self) -> tuple[int, ...]:
        rows, columns = (
            (side + 2 * self.padding - self.kernel) // self.stride + 1 for side in (self.height, self.width)
        )
        return self.batch, self.channels, rows, columns

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        sizes = {"kernel_size": self.kernel, "stride": self.stride, "padding": self.padding}
        return {"torch": sizes}

    def tiny(self) -> Self:
        """Odd sizes, with the same kernel, stride and padding."""
        side = 2 * self.kernel + 3
        return replace(self, batch=3, channels=7, height=side, width=side + 2)


@dataclass(frozen=True)
class AvgPool2d(_Pool2d):
    """Padded zeros count, as in PyTorch."""

    summary = "average pooling of images"
    functions: ClassVar = {"torch": "torch.nn.functional:avg_pool2d"}

    @property
    def reduction(self) -> int:
        return self.kernel**2

    @property
    def roundings(self) -> int:
        """The sum, and its share, where unfused."""
        return 2

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.avg_pool2d(arrays["x"], self.kernel, stride=self.stride, padding=self.padding)

    def tensorflow(self) -> StepFunction:
        """tf.nn.avg_pool2d, padded apart: its own padding does not count."""
        import tensorflow as tf

        pad = [self.padding, self.padding]

        def step(x: Any) -> Any:
            padded = tf.pad(x, [[0, 0], pad, pad, [0, 0]]) if self.padding else x
            return tf.nn.avg_pool2d(padded, self.kernel, self.stride, "VALID")

        return step

    def jax(self) -> StepFunction:
        from jax import lax

        window, strides = (1, self.kernel, self.kernel, 1), (1, self.stride, self.stride, 1)
        edges = ((0, 0), (self.padding,) * 2, (self.padding,) * 2, (0, 0))
        return lambda x: lax.reduce_window(x, 0.0, lax.add, window, strides, edges) / self.kernel**2


@dataclass(frozen=True)
class AvgPool2dBackward(MemoryBoundBackward, AvgPool2d):
    """Each element's gradient is its share of every window."""

    summary = "gradient of average pooling"


@dataclass(frozen=True)
class MaxPool2d(_Pool2d):
    """Max-pooling; the defaults are those after ResNet's first convolution."""

    kernel: int = 3
    padding: int = 1

    summary = "max-pooling of images"
    functions: ClassVar = {"torch": "torch.nn.functional:max_pool2d"}

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.max_pool2d(arrays["x"], self.kernel, stride=self.stride, padding=self.padding)

    def tensorflow(self) -> StepFunction:
        """tf.nn.max_pool2d, padded apart: with explicit padding it has no kernel for the CPU."""
        import tensorflow as tf

        pad = [self.padding, self.padding]

        def step(x: Any) -> Any:
            if self.padding:
                x = tf.pad(x, [[0, 0], pad, pad, [0, 0]], constant_values=x.dtype.min)
            return tf.nn.max_pool2d(x, self.kernel, self.stride, "VALID")

        return step

    def jax(self) -> StepFunction:
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
