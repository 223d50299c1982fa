"""A batch of clips, or of volumes, convolved with a bank of filters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.workloads._convolution import Convolution, ConvolutionBackward
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Conv3d(Convolution):
    """Cubic filters. The default is a layer of R3D-18's first stage (Tran et al. 2018) at half its sides."""

    batch: int = 1
    channels: int = 64
    depth: int = 8
    height: int = 28
    width: int = 28
    filters: int = 64
    kernel: int = 3
    stride: int = 1
    padding: int = 1

    summary = "3-D convolution of a batch of clips"
    item = "clip"

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.batch, self.channels, self.depth, self.height, self.width

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Filters, channels, and the three sides of the kernel."""
        return self.filters, self.channels, *[self.kernel] * 3

    def tiny(self) -> Self:
        """Odd sizes; kernel, stride and padding as they are."""
        side = self.kernel + 2
        return replace(self, batch=2, channels=5, depth=side, height=side + 1, width=side + 3, filters=7)

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.conv3d(arrays["images"], arrays["filters"], stride=self.strides, padding=self.edges)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv3d; it takes no explicit padding, so tf.pad adds what SAME would not add evenly."""
        import tensorflow as tf

        is_same = self.stride == 1 and 2 * self.padding == self.kernel - 1
        edges = [[0, 0], *([self.padding] * 2 for _ in range(3)), [0, 0]]
        strides = [1, *self.strides, 1]

        def step(images: Any, filters: Any) -> Any:
            if is_same:
                return tf.nn.conv3d(images, filters, strides, "SAME")
            return tf.nn.conv3d(tf.pad(images, edges), filters, strides, "VALID")

        return self.channels_last(step, context, arrays)


@dataclass(frozen=True)
class Conv3dBackward(ConvolutionBackward, Conv3d):
    """Gradients of clips and filters."""

    summary = "gradients of a 3-D convolution"
