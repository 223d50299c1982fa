"""Base classes of convolutions: shapes, counted cost, inputs, reference and builders.

Images are NC* and filters (outputs, channels of a group, *kernel), as in PyTorch. TensorFlow and JAX use
channels last, the usual layout there, which their CPU kernels need.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._layers import saved_by_algorithms
from benchbench.workloads.backward import UPSTREAM, Backward
from benchbench.workloads.base import Operation, Program
from benchbench.workloads.program import images_layout, torch_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

    Sizes = tuple[int, ...]  # one per spatial dimension

TO_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # channels: NCHW → NHWC, by the number of axes
FILTER_LAST = {4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}  # OIHW → HWIO
AXIS_NAMES = {4: ("NHWC", "HWIO", "NHWC"), 5: ("NDHWC", "DHWIO", "NDHWC")}
USE_PADDING = -1  # value of pad_h and pad_w: take `padding`


class Convolution(Operation):
    """Cross-correlation, which all frameworks call convolution; no bias, no dilation."""

    item = "image"
    version = 2  # torch's gradients of outputs have the images' layout
    may_be_zero = frozenset({"padding"})

    batch: int
    channels: int
    height: int
    width: int
    kernel: int
    stride: int  # the same for all sides, like `padding`
    padding: int

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = zip(self.image_shape[2:], self.edges, self.filter_shape[2:], strict=True)
        for side, edge, kernel in sizes:
            if kernel > side + 2 * edge:
                max_kernel = side + 2 * edge
                raise UsageError(
                    f"kernel={kernel} is larger than the padded image: a side of {side} with padding={edge} "
                    f"has room for at most {max_kernel}.",
                    f"Choose kernel={max_kernel} or less, or a larger side or padding.",
                )

    @property
    def image_shape(self) -> Sizes:
        """Shape of the images: (batch, channels, *sides)."""
        return self.batch, self.channels, self.height, self.width

    @property
    @abstractmethod
    def filter_shape(self) -> Sizes:
        """Shape of the filters: (outputs, channels of a group, *kernel)."""

    @property
    def strides(self) -> Sizes:
        """Strides by spatial dimension."""
        return (self.stride,) * len(self.image_shape[2:])

    @property
    def edges(self) -> Sizes:
        """Zeros on each side, by spatial dimension."""
        return (self.padding,) * len(self.image_shape[2:])

    @property
    def multiplications_saved(self) -> float:
        """Upper bound from the sizes. A gradient needs as many multiplications as the convolution."""
        sizes = self.image_shape[2:], self.filter_shape[2:], self.strides, self.edges
        return saved_by_algorithms(zip(*sizes, strict=True))

    @property
    def groups(self) -> int:
        """Number of groups of channels."""
        return self.image_shape[1] // self.filter_shape[1]

    @property
    def convolved_shape(self) -> Sizes:
        """Shape of the convolution's output: (batch, outputs, *sides)."""
        sizes = zip(self.image_shape[2:], self.edges, self.filter_shape[2:], self.strides, strict=True)
        sides = ((side + 2 * edge - kernel) // stride + 1 for side, edge, kernel, stride in sizes)
        return self.image_shape[0], self.filter_shape[0], *sides

    @property
    def output_shape(self) -> Sizes:
        return self.convolved_shape

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·K·P·Q·C·R·S FLOPs, padding counted as work; images, filters and result move once.

        With groups, C is the number of channels of one group. In three dimensions there is one more side.
        """
        shapes = self.image_shape, self.filter_shape, self.convolved_shape
        return Cost(
            flops=2 * prod(self.convolved_shape) * prod(self.filter_shape[1:]),
            bytes=sum(map(prod, shapes)) * dtype.itemsize,
            items=self.image_shape[0],
            item=self.item,
        )

    @property
    def reduction(self) -> int:
        return prod(self.filter_shape[1:])

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {
            "images": draw.normal("images", *self.image_shape),
            "filters": draw.normal("filters", *self.filter_shape),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Dot product of each sampled output's patch and filter."""
        from benchbench.workloads._reference.primitives import convolved

        return convolved(arrays["images"], arrays["filters"], index, self.strides, self.edges)

    def torch_function(self) -> Any:
        """A function of (images, filters) that uses torch's functional interface."""
        import torch.nn.functional as F

        kind = {4: F.conv2d, 5: F.conv3d}[len(self.image_shape)]

        def step(images: Any, filters: Any) -> Any:
            return kind(images, filters, stride=self.strides, padding=self.edges, groups=self.groups)

        return step

    def jax_function(self) -> Any:
        """A function of (images, filters), channels last, that uses lax.conv_general_dilated."""
        from jax import lax

        def step(images: Any, filters: Any) -> Any:
            return lax.conv_general_dilated(
                images,
                filters,
                self.strides,
                [(edge, edge) for edge in self.edges],
                dimension_numbers=AXIS_NAMES[images.ndim],
                feature_group_count=self.groups,
            )

        return step

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """F.conv2d or F.conv3d, channels last where that is faster; the result's shape stays NC*."""
        inputs = torch_images(context, arrays, "images", "filters")
        return Program(self.torch_function(), inputs, layout=images_layout(context, len(self.image_shape)))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.conv_general_dilated, channels last."""
        return self.channels_last(self.jax_function(), context, arrays)

    def channels_last(self, step: Any, context: DeviceContext, arrays: Arrays) -> Program:
        """Program of a `step` with images and result channels last, and filters *IO."""
        rank = len(self.image_shape)
        layouts = {"images": TO_LAST[rank], "filters": FILTER_LAST[rank]}
        return channels_last(step, context, arrays, layouts)


class ConvolutionBackward(Backward, Convolution):
    """Gradients of images and filters, neither of which depends on the output."""

    needs_forward = False
    forward_unused = 0.5  # the two gradients cost a forward pass each

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """Compute only the sampled elements: unfolding a large batch would exceed the memory."""
        from benchbench.workloads._reference.primitives import filter_gradient, spread

        if ops is not None:
            return super().references(arrays, indices, ops)
        dy, sizes = arrays[UPSTREAM], (self.strides, self.edges, self.groups)
        return {
            "images": spread(dy, arrays["filters"], indices["images"], *sizes),
            "filters": filter_gradient(arrays["images"], dy, indices["filters"], *sizes),
        }


@dataclass(frozen=True)
class Sizes2d(Convolution):
    """Square filters with equal padding, unless a side has its own kernel or padding (0 and −1: unset)."""

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
    pad_h: int = USE_PADDING
    pad_w: int = USE_PADDING

    added = frozenset({"kernel_h", "kernel_w", "pad_h", "pad_w"})
    may_be_zero = frozenset({"padding", "kernel_h", "kernel_w"})
    least: ClassVar[Mapping[str, int]] = {"pad_h": USE_PADDING, "pad_w": USE_PADDING}

    @property
    def filter_shape(self) -> tuple[int, ...]:
        return self.filters, self.channels, self.kernel_h or self.kernel, self.kernel_w or self.kernel

    @property
    def edges(self) -> tuple[int, ...]:
        return tuple(self.padding if edge == USE_PADDING else edge for edge in (self.pad_h, self.pad_w))

    def tiny(self) -> Self:
        """Odd sizes with the same kernel, stride and padding."""
        height, width = (2 * kernel + 3 for kernel in self.filter_shape[2:])
        return replace(self, batch=2, channels=5, height=height, width=width + 2, filters=7)

    def convolved(self, ops: Any, images: Any, filters: Any) -> Any:
        """The convolution in the operations `ops` of a reference."""
        return ops.conv2d(images, filters, stride=self.strides, padding=self.edges)


def torch_images(context: DeviceContext, arrays: Arrays, *names: str) -> tuple[Any, ...]:
    """Tensors of NC* shape in the session's layout."""
    tensors = [context.put(arrays[name]) for name in names]
    return tuple(tensor.contiguous(memory_format=torch_layout(context, tensor.ndim)) for tensor in tensors)


def channels_last(
    step: Any, context: DeviceContext, arrays: Arrays, layouts: dict[str, tuple[int, ...]]
) -> Program:
    """Program of a `step` whose inputs have these axes, and whose result has the axes of its images."""
    inputs = tuple(context.put(arrays[name].transpose(axes)) for name, axes in layouts.items())
    axes = layouts["images"]
    return Program(step, inputs, axes=axes, input_axes=layouts, layout=images_layout(context, len(axes)))


def explicit_padding(edges: tuple[int, ...]) -> list[list[int]]:
    """Padding in the format of TensorFlow, for images or clips with channels last."""
    return [[0, 0], *([edge, edge] for edge in edges), [0, 0]]
