"""A transposed convolution, which enlarges a batch of images: the step up of generators and decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._conv_layers import saved_by_algorithms
from benchbench.workloads._convolution import AXIS_NAMES, TO_LAST, explicit_padding, torch_images
from benchbench.workloads.backward import UPSTREAM, Backward
from benchbench.workloads.base import Operation, Program
from benchbench.workloads.program import images_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

NHWC, HWOI = TO_LAST[4], (2, 3, 1, 0)


@dataclass(frozen=True)
class ConvTranspose2d(Operation):
    """A transposed convolution without bias.

    The default is a step of DCGAN's generator (Radford et al. 2015): 512 channels to 256.
    """

    batch: int = 8
    channels: int = 512
    height: int = 8
    width: int = 8
    filters: int = 256
    kernel: int = 4
    stride: int = 2
    padding: int = 1

    summary = "2-D transposed convolution of a batch of images"
    may_be_zero = frozenset({"padding"})
    version = 2  # torch's gradients of outputs lie as images do

    def __post_init__(self) -> None:
        """Raise UsageError also where the padding cuts off the whole result."""
        super().__post_init__()
        if min(self.output_shape) < 1:
            height, width = self.output_shape[2:]
            raise UsageError(
                f"padding={self.padding} leaves a result of {height} × {width}.",
                "Choose a smaller padding or a larger kernel.",
            )

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·C·H·W·K·R·S FLOPs: every input meets every filter; images, filters and result move once."""
        images = self.batch * self.channels * self.height * self.width
        per_input = self.filters * self.kernel**2
        moved = images + self.channels * per_input + prod(self.output_shape)
        return Cost(
            flops=2 * images * per_input, bytes=moved * dtype.itemsize, items=self.batch, item="image"
        )

    @property
    def multiplications_saved(self) -> float:
        """The multiplications saved, as many as of the convolution whose gradient this is."""
        sides = self.output_shape[2:]
        return saved_by_algorithms((side, self.kernel, self.stride, self.padding) for side in sides)

    @property
    def reduction(self) -> int:
        """An output gets C products of each element of the kernel that meets it, one in `stride` by side."""
        return self.channels * ceil(self.kernel / self.stride) ** 2

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """NCHW (Dumoulin & Visin 2016, "A guide to convolution arithmetic for deep learning", chapter 4)."""
        height, width = (
            (side - 1) * self.stride - 2 * self.padding + self.kernel for side in (self.height, self.width)
        )
        return self.batch, self.filters, height, width

    def tiny(self) -> Self:
        """Odd sizes; kernel, stride and padding as they are."""
        side = self.padding + 3
        return replace(self, batch=2, channels=5, height=side, width=side + 2, filters=7)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Images NCHW; filters as in PyTorch, (channels, filters, kernel, kernel)."""
        return {
            "images": draw.normal("images", self.batch, self.channels, self.height, self.width),
            "filters": draw.normal("filters", self.channels, self.filters, self.kernel, self.kernel),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        from benchbench.workloads._reference.elements import spread

        strides, edges = (self.stride, self.stride), (self.padding, self.padding)
        return spread(arrays["images"], arrays["filters"], index, strides, edges)

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.conv_transpose2d(
            arrays["images"], arrays["filters"], stride=self.stride, padding=self.padding
        )

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """F.conv_transpose2d, channels last where that is faster."""
        import torch.nn.functional as F

        def step(images: Any, filters: Any) -> Any:
            return F.conv_transpose2d(images, filters, stride=self.stride, padding=self.padding)

        inputs = torch_images(context, arrays, "images", "filters")
        return Program(step, inputs, layout=images_layout(context))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv2d_transpose, NHWC; its filters are (kernel, kernel, filters, channels)."""
        import tensorflow as tf

        shape = [self.output_shape[axis] for axis in NHWC]
        edges = explicit_padding((self.padding, self.padding))

        def step(images: Any, filters: Any) -> Any:
            return tf.nn.conv2d_transpose(images, filters, shape, self.stride, edges)

        return self._channels_last(step, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.conv_transpose, NHWC, with the filters of the convolution that it transposes."""
        from jax import lax

        strides = self.stride, self.stride
        edge = self.kernel - 1 - self.padding

        def step(images: Any, filters: Any) -> Any:
            return lax.conv_transpose(
                images,
                filters,
                strides,
                [(edge, edge)] * 2,
                dimension_numbers=AXIS_NAMES[4],
                transpose_kernel=True,
            )

        return self._channels_last(step, context, arrays)

    def _channels_last(self, step: Any, context: DeviceContext, arrays: Arrays) -> Program:
        images = context.put(arrays["images"].transpose(NHWC))
        filters = context.put(arrays["filters"].transpose(HWOI))
        axes = {"images": NHWC, "filters": HWOI}
        return Program(step, (images, filters), axes=NHWC, input_axes=axes, layout=images_layout(context))


@dataclass(frozen=True)
class ConvTranspose2dBackward(Backward, ConvTranspose2d):
    """Gradients of images and filters, neither of which depends on the output."""

    summary = "gradients of a 2-D transposed convolution"
    needs_forward = False
    forward_unused = 0.5  # the two gradients cost a forward pass each

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """The sampled elements alone: the gradient of the images is a convolution."""
        from benchbench.workloads._reference.elements import convolved, filter_gradient

        if ops is not None:
            return super().references(arrays, indices, ops)
        dy, sizes = arrays[UPSTREAM], ((self.stride, self.stride), (self.padding, self.padding))
        return {
            "images": convolved(dy, arrays["filters"], indices["images"], *sizes),
            "filters": filter_gradient(dy, arrays["images"], indices["filters"], *sizes),
        }
