"""A batch of images of which each channel is convolved with a filter of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.workloads._convolution import TO_LAST, Convolution, ConvolutionBackward
from benchbench.workloads.base import Program
from benchbench.workloads.program import images_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

NHWC, HWC1 = TO_LAST[4], (2, 3, 0, 1)


@dataclass(frozen=True)
class DepthwiseConv2d(Convolution):
    """One filter per channel, as in MobileNet (Howard et al. 2017), whose middle layers are the default."""

    batch: int = 8
    channels: int = 512
    height: int = 14
    width: int = 14
    kernel: int = 3
    stride: int = 1
    padding: int = 1

    summary = "2-D convolution of each channel by itself"

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Filters of a convolution in as many groups as there are channels."""
        return self.channels, 1, self.kernel, self.kernel

    def tiny(self) -> Self:
        """Odd sizes; kernel, stride and padding as they are."""
        side = 2 * self.kernel + 3
        return replace(self, batch=2, channels=5, height=side, width=side + 2)

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.conv2d(
            arrays["images"],
            arrays["filters"],
            stride=self.strides,
            padding=self.edges,
            groups=self.channels,
        )

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.depthwise_conv2d; its filters are HWC1, the transpose of a grouped convolution's HW1C."""
        import tensorflow as tf

        strides = [1, self.stride, self.stride, 1]
        edges = [[0, 0], *([self.padding] * 2 for _ in range(2)), [0, 0]]

        def step(images: Any, filters: Any) -> Any:
            return tf.nn.depthwise_conv2d(images, filters, strides, edges)

        images = context.put(arrays["images"].transpose(NHWC))
        filters = context.put(arrays["filters"].transpose(HWC1))
        axes = {"images": NHWC, "filters": HWC1}
        return Program(step, (images, filters), axes=NHWC, input_axes=axes, layout=images_layout(context))


@dataclass(frozen=True)
class DepthwiseConv2dBackward(ConvolutionBackward, DepthwiseConv2d):
    """Gradients of images and filters."""

    summary = "gradients of a 2-D convolution of each channel by itself"
