"""What a 2-D convolution and its gradients share: their parameters and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from benchbench.workloads._convolution import Convolution

AS_PADDING = -1


@dataclass(frozen=True)
class Sizes2d(Convolution):
    """Square filters, evenly padded, but for a side with a kernel or padding of its own; 0 and −1: none."""

    batch: int = 8
    channels: int = 64
    height: int = 28
    width: int = 28
    filters: int = 64
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    kernel_h: int = 0
    kernel_w: int = 0
    pad_h: int = AS_PADDING
    pad_w: int = AS_PADDING

    added = frozenset({"kernel_h", "kernel_w", "pad_h", "pad_w"})
    may_be_zero = frozenset({"padding", "kernel_h", "kernel_w"})
    least: ClassVar[Mapping[str, int]] = {"pad_h": AS_PADDING, "pad_w": AS_PADDING}

    @property
    def filter_shape(self) -> tuple[int, ...]:
        return self.filters, self.channels, self.kernel_h or self.kernel, self.kernel_w or self.kernel

    @property
    def edges(self) -> tuple[int, ...]:
        return tuple(self.padding if edge == AS_PADDING else edge for edge in (self.pad_h, self.pad_w))

    def tiny(self) -> Self:
        """Odd sizes; kernel, stride and padding as they are."""
        height, width = (2 * kernel + 3 for kernel in self.filter_shape[2:])
        return replace(self, batch=2, channels=5, height=height, width=width + 2, filters=7)

    def convolved(self, ops: Any, images: Any, filters: Any) -> Any:
        """The convolution by the operations of a reference."""
        return ops.conv2d(images, filters, stride=self.strides, padding=self.edges)


def explicit_padding(edges: tuple[int, ...]) -> list[list[int]]:
    """Padding as TensorFlow takes it of NHWC images."""
    return [[0, 0], *([edge, edge] for edge in edges), [0, 0]]
