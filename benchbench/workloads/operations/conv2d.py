"""A batch of images convolved with a bank of filters, and both gradients of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._convolution import ConvolutionBackward, Sizes2d, explicit_padding
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Conv2d(Sizes2d):
    """A convolution of images without bias, dilation or groups."""

    summary = "2-D convolution of a batch of images"

    def forward(self, ops: Any, arrays: Any) -> Any:
        return self.convolved(ops, arrays["images"], arrays["filters"])

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv2d, NHWC and HWIO; explicit padding, since SAME is lopsided under a stride."""
        import tensorflow as tf

        def step(images: Any, filters: Any) -> Any:
            return tf.nn.conv2d(images, filters, self.stride, explicit_padding(self.edges))

        return self.channels_last(step, context, arrays)


@dataclass(frozen=True)
class Conv2dBackward(ConvolutionBackward, Conv2d):
    """Gradients of images and filters."""

    summary = "gradients of a 2-D convolution"
