"""Convolutions of images and clips, depthwise and transposed ones, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype, Phase
from benchbench.model.measurement import Cost
from benchbench.workloads._convolution import (
    AXIS_NAMES,
    FILTER_LAST,
    TO_LAST,
    Convolution,
    ConvolutionBackward,
    Sizes2d,
    channels_last,
    explicit_padding,
    torch_images,
)
from benchbench.workloads._layers import saved_by_algorithms
from benchbench.workloads.backward import UPSTREAM, Backward
from benchbench.workloads.base import Operation, Program
from benchbench.workloads.program import images_layout, torch_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

NHWC, HWOI, HWC1 = TO_LAST[4], (2, 3, 1, 0), (2, 3, 0, 1)
GRADIENT_AXES = {"images": NHWC, "filters": FILTER_LAST[4], UPSTREAM: NHWC}


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
    summary = "gradients of a 2-D convolution"


class _Gradient(Sizes2d):
    """One gradient of a 2-D convolution, by its images or by its filters, without the forward pass."""

    phase = Phase.BACKWARD
    variable: ClassVar[str]  # name of the input whose gradient is computed
    operand: ClassVar[str]  # name of the other input

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the convolution's inputs and output by name."""
        return {
            "images": self.image_shape,
            "filters": self.filter_shape,
            UPSTREAM: self.convolved_shape,
        }

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.shapes[self.variable]

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """The other input, and the gradient of the output."""
        return {name: draw.normal(name, *self.shapes[name]) for name in (self.operand, UPSTREAM)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Differentiates the convolution at any value, since it is linear."""
        from autograd import grad

        def along_upstream(value: Any) -> Any:
            inputs = {**arrays, self.variable: value}
            return (self.convolved(ops, inputs["images"], inputs["filters"]) * arrays[UPSTREAM]).sum()

        return grad(along_upstream)(ops.np.ones(self.output_shape))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The call that autograd makes, for one gradient; torch.nn.grad copies to another layout.

        It reads only shape and layout of the input whose gradient it computes.
        """
        import torch

        value = torch.empty(self.output_shape, dtype=context.dtype, device=context.device)
        value = value.contiguous(memory_format=torch_layout(context))
        by_images = self.variable == "images"
        wanted = by_images, not by_images, False  # gradients of images, filters and bias
        options = None, self.strides, self.edges, (1, 1), False, (0, 0), 1, wanted

        def step(operand: Any, upstream: Any) -> Any:
            inputs = (value, operand) if by_images else (operand, value)
            gradients = torch.ops.aten.convolution_backward(upstream, *inputs, *options)
            return gradients[0 if by_images else 1]

        inputs = torch_images(context, arrays, self.operand, UPSTREAM)
        return Program(step, inputs, layout=images_layout(context))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.linear_transpose of the convolution: what differentiating makes of it."""
        import jax

        shape, convolve = self.last_shape, self.jax_function()

        def step(operand: Any, upstream: Any) -> Any:
            def convolved(value: Any) -> Any:
                inputs = {self.operand: operand, self.variable: value}
                return convolve(inputs["images"], inputs["filters"])

            value = jax.ShapeDtypeStruct(shape, upstream.dtype)
            return jax.linear_transpose(convolved, value)(upstream)[0]

        return self.gradient(step, context, arrays)

    @property
    def last_shape(self) -> tuple[int, ...]:
        """Shape of the gradient with channels last."""
        return tuple(self.output_shape[axis] for axis in GRADIENT_AXES[self.variable])

    def gradient(self, step: Any, context: DeviceContext, arrays: Arrays) -> Program:
        """Program of a `step` with arrays that have channels last."""
        import numpy as np

        inputs = [
            context.put(np.ascontiguousarray(arrays[name].transpose(GRADIENT_AXES[name])))
            for name in (self.operand, UPSTREAM)
        ]
        axes = GRADIENT_AXES[self.variable]
        return Program(step, tuple(inputs), axes=axes, layout=images_layout(context))


@dataclass(frozen=True)
class Conv2dBackwardData(_Gradient):
    """Gradients of the images alone, from the filters and the output's gradient; no forward pass."""

    summary = "gradient of a 2-D convolution by its images"
    variable, operand = "images", "filters"

    @property
    def reduction(self) -> int:
        """An element of an image is seen by up to K·R·S of the outputs."""
        outputs, _, rows, columns = self.filter_shape
        return outputs * rows * columns

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        from benchbench.workloads._reference.primitives import spread

        return spread(arrays[UPSTREAM], arrays["filters"], index, self.strides, self.edges)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv2d_transpose, which is this gradient."""
        import tensorflow as tf

        shape, edges = self.last_shape, explicit_padding(self.edges)

        def step(filters: Any, upstream: Any) -> Any:
            return tf.nn.conv2d_transpose(upstream, filters, shape, self.stride, edges)

        return self.gradient(step, context, arrays)


@dataclass(frozen=True)
class Conv2dBackwardWeights(_Gradient):
    """Gradients of the filters alone, from the images and the output's gradient; no forward pass."""

    summary = "gradient of a 2-D convolution by its filters"
    variable, operand = "filters", "images"

    @property
    def reduction(self) -> int:
        """An element of a filter meets all N·P·Q outputs."""
        batch, _, rows, columns = self.convolved_shape
        return batch * rows * columns

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The sampled elements, each over the whole batch."""
        from benchbench.workloads._reference.primitives import filter_gradient

        return filter_gradient(arrays["images"], arrays[UPSTREAM], index, self.strides, self.edges)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.raw_ops.Conv2DBackpropFilter, what the tape calls: its only public name."""
        import tensorflow as tf

        shape, edges = self.last_shape, [edge for pair in explicit_padding(self.edges) for edge in pair]

        def step(images: Any, upstream: Any) -> Any:
            return tf.raw_ops.Conv2DBackpropFilter(
                input=images, filter_sizes=shape, out_backprop=upstream,
                strides=[1, self.stride, self.stride, 1], padding="EXPLICIT", explicit_paddings=edges,
            )  # fmt: skip

        return self.gradient(step, context, arrays)


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
        """Odd sizes, with the same kernel, stride and padding."""
        side = self.kernel + 2
        return replace(self, batch=2, channels=5, depth=side, height=side + 1, width=side + 3, filters=7)

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.conv3d(arrays["images"], arrays["filters"], stride=self.strides, padding=self.edges)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv3d; it takes no explicit padding, so tf.pad adds what SAME would not add evenly."""
        import tensorflow as tf

        is_same = self.stride == 1 and 2 * self.padding == self.kernel - 1
        edges = explicit_padding(self.edges)
        strides = [1, *self.strides, 1]

        def step(images: Any, filters: Any) -> Any:
            if is_same:
                return tf.nn.conv3d(images, filters, strides, "SAME")
            return tf.nn.conv3d(tf.pad(images, edges), filters, strides, "VALID")

        return self.channels_last(step, context, arrays)


@dataclass(frozen=True)
class Conv3dBackward(ConvolutionBackward, Conv3d):
    summary = "gradients of a 3-D convolution"


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
        """Odd sizes, with the same kernel, stride and padding."""
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
        edges = explicit_padding(self.edges)

        def step(images: Any, filters: Any) -> Any:
            return tf.nn.depthwise_conv2d(images, filters, strides, edges)

        return channels_last(step, context, arrays, {"images": NHWC, "filters": HWC1})


@dataclass(frozen=True)
class DepthwiseConv2dBackward(ConvolutionBackward, DepthwiseConv2d):
    summary = "gradients of a 2-D convolution of each channel by itself"


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
        elements = images + self.channels * per_input + prod(self.output_shape)
        return Cost(
            flops=2 * images * per_input, bytes=elements * dtype.itemsize, items=self.batch, item="image"
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
        """Odd sizes, with the same kernel, stride and padding."""
        side = self.padding + 3
        return replace(self, batch=2, channels=5, height=side, width=side + 2, filters=7)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Images NCHW; filters as in PyTorch, (channels, filters, kernel, kernel)."""
        return {
            "images": draw.normal("images", self.batch, self.channels, self.height, self.width),
            "filters": draw.normal("filters", self.channels, self.filters, self.kernel, self.kernel),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        from benchbench.workloads._reference.primitives import spread

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

        return channels_last(step, context, arrays, {"images": NHWC, "filters": HWOI})

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

        return channels_last(step, context, arrays, {"images": NHWC, "filters": HWOI})


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
        from benchbench.workloads._reference.primitives import convolved, filter_gradient

        if ops is not None:
            return super().references(arrays, indices, ops)
        dy, sizes = arrays[UPSTREAM], ((self.stride, self.stride), (self.padding, self.padding))
        return {
            "images": convolved(dy, arrays["filters"], indices["images"], *sizes),
            "filters": filter_gradient(dy, arrays["images"], indices["filters"], *sizes),
        }
