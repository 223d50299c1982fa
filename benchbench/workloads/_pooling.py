"""What pooling of images shares: sizes, and what they make of an image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from benchbench.errors import UsageError
from benchbench.workloads._memory_bound import MemoryBound


@dataclass(frozen=True)
class Pool2d(MemoryBound):
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
        """Raise UsageError also for a window that is larger than the padded image, or all padding."""
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

    def tiny(self) -> Self:
        """Odd sizes; kernel, stride and padding as they are."""
        side = 2 * self.kernel + 3
        return replace(self, batch=3, channels=7, height=side, width=side + 2)
