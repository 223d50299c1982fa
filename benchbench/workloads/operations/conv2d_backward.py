"""One gradient of a 2-D convolution, by its images or by its filters, without the forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Phase
from benchbench.workloads._convolution import FILTER_LAST, TO_LAST, Sizes2d, explicit_padding, torch_images
from benchbench.workloads.backward import UPSTREAM
from benchbench.workloads.base import Program
from benchbench.workloads.program import images_layout, torch_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

NHWC, HWIO = TO_LAST[4], FILTER_LAST[4]


class _Gradient(Sizes2d):
    phase = Phase.BACKWARD

    def torch_gradients(self, images: Any, filters: Any, upstream: Any, asked: tuple[bool, ...]) -> Any:
        """Gradients of images, filters and bias, those asked for; torch.nn.grad's copy to another layout."""
        import torch

        return torch.ops.aten.convolution_backward(
            upstream, images, filters, None, self.strides, self.edges, (1, 1), False, (0, 0), 1, asked
        )


@dataclass(frozen=True)
class Conv2dBackwardData(_Gradient):
    """Gradients of the images alone, from the filters and the output's gradient; no forward pass."""

    summary = "gradient of a 2-D convolution by its images"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.image_shape

    @property
    def reduction(self) -> int:
        """An element of an image is seen by up to K·R·S of the outputs."""
        outputs, _, rows, columns = self.filter_shape
        return outputs * rows * columns

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """The filters, and the gradient of the output."""
        return {
            "filters": draw.normal("filters", *self.filter_shape),
            UPSTREAM: draw.normal(UPSTREAM, *self.convolved_shape),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        from benchbench.workloads._reference.elements import spread

        return spread(arrays[UPSTREAM], arrays["filters"], index, self.strides, self.edges)

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Differentiates the convolution of any images: it is linear."""
        from autograd import grad

        def along_upstream(images: Any) -> Any:
            return (self.convolved(ops, images, arrays["filters"]) * arrays[UPSTREAM]).sum()

        return grad(along_upstream)(ops.np.ones(self.image_shape))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """What autograd calls, asked for one gradient; of the images it takes shape and memory layout."""
        import torch

        images = torch.empty(self.image_shape, dtype=context.dtype, device=context.device)
        images = images.contiguous(memory_format=torch_layout(context))

        def step(filters: Any, upstream: Any) -> Any:
            return self.torch_gradients(images, filters, upstream, asked=(True, False, False))[0]

        inputs = torch_images(context, arrays, "filters", UPSTREAM)
        return Program(step, inputs, layout=images_layout(context))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv2d_transpose, which is this gradient."""
        import tensorflow as tf

        shape = [self.image_shape[axis] for axis in NHWC]

        def step(filters: Any, upstream: Any) -> Any:
            edges = explicit_padding(self.edges)
            return tf.nn.conv2d_transpose(upstream, filters, shape, self.stride, edges)

        return _channels_last(step, context, arrays, {"filters": HWIO, UPSTREAM: NHWC}, NHWC)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.linear_transpose of the convolution: what differentiating makes of it."""
        import jax

        shape = tuple(self.image_shape[axis] for axis in NHWC)
        convolve = self.jax_function()

        def step(filters: Any, upstream: Any) -> Any:
            images = jax.ShapeDtypeStruct(shape, upstream.dtype)
            return jax.linear_transpose(lambda images: convolve(images, filters), images)(upstream)[0]

        return _channels_last(step, context, arrays, {"filters": HWIO, UPSTREAM: NHWC}, NHWC)


@dataclass(frozen=True)
class Conv2dBackwardWeights(_Gradient):
    """Gradients of the filters alone, from the images and the output's gradient; no forward pass."""

    summary = "gradient of a 2-D convolution by its filters"

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.filter_shape

    @property
    def reduction(self) -> int:
        """An element of a filter meets all N·P·Q outputs."""
        batch, _, rows, columns = self.convolved_shape
        return batch * rows * columns

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """The images, and the gradient of the output."""
        return {
            "images": draw.normal("images", *self.image_shape),
            UPSTREAM: draw.normal(UPSTREAM, *self.convolved_shape),
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The sampled elements, each over the whole batch."""
        from benchbench.workloads._reference.elements import filter_gradient

        return filter_gradient(arrays["images"], arrays[UPSTREAM], index, self.strides, self.edges)

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Differentiates the convolution with any filters: it is linear."""
        from autograd import grad

        def along_upstream(filters: Any) -> Any:
            return (self.convolved(ops, arrays["images"], filters) * arrays[UPSTREAM]).sum()

        return grad(along_upstream)(ops.np.ones(self.filter_shape))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """What autograd calls, asked for one gradient; of the filters it takes shape and memory layout."""
        import torch

        filters = torch.empty(self.filter_shape, dtype=context.dtype, device=context.device)
        filters = filters.contiguous(memory_format=torch_layout(context))

        def step(images: Any, upstream: Any) -> Any:
            return self.torch_gradients(images, filters, upstream, asked=(False, True, False))[1]

        inputs = torch_images(context, arrays, "images", UPSTREAM)
        return Program(step, inputs, layout=images_layout(context))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.raw_ops.Conv2DBackpropFilter, what the tape calls: its only public name."""
        import tensorflow as tf

        shape = [self.filter_shape[axis] for axis in HWIO]
        edges = [edge for pair in explicit_padding(self.edges) for edge in pair]

        def step(images: Any, upstream: Any) -> Any:
            return tf.raw_ops.Conv2DBackpropFilter(
                input=images, filter_sizes=shape, out_backprop=upstream,
                strides=[1, self.stride, self.stride, 1], padding="EXPLICIT", explicit_paddings=edges,
            )  # fmt: skip

        return _channels_last(step, context, arrays, {"images": NHWC, UPSTREAM: NHWC}, HWIO)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.linear_transpose of the convolution by its filters."""
        import jax

        shape = tuple(self.filter_shape[axis] for axis in HWIO)
        convolve = self.jax_function()

        def step(images: Any, upstream: Any) -> Any:
            filters = jax.ShapeDtypeStruct(shape, upstream.dtype)
            return jax.linear_transpose(lambda filters: convolve(images, filters), filters)(upstream)[0]

        return _channels_last(step, context, arrays, {"images": NHWC, UPSTREAM: NHWC}, HWIO)


def _channels_last(
    step: Any,
    context: DeviceContext,
    arrays: Arrays,
    layouts: dict[str, tuple[int, ...]],
    output: tuple[int, ...],
) -> Program:
    import numpy as np

    inputs = [
        context.put(np.ascontiguousarray(arrays[name].transpose(axes))) for name, axes in layouts.items()
    ]
    return Program(step, tuple(inputs), axes=output, layout=images_layout(context))
