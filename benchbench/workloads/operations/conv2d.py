"""A batch of images convolved with a bank of square filters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

NHWC_OF_NCHW = (0, 2, 3, 1)
INPUT_AXES = {"images": NHWC_OF_NCHW, "filters": (2, 3, 1, 0)}


@dataclass(frozen=True)
class Conv2d(Operation):
    """Cross-correlation, as every framework calls convolution; no bias, no dilation, no groups."""

    batch: int = 8
    channels: int = 64
    height: int = 28
    width: int = 28
    filters: int = 64
    kernel: int = 3
    stride: int = 1
    padding: int = 1

    summary = "2-D convolution of a batch of images"
    multiplications_saved = 4.0  # by F(4×4, 3×3): Lavin & Gray 2016, "Fast algorithms for CNNs"
    may_be_zero = frozenset({"padding"})

    def __post_init__(self) -> None:
        """Raise UsageError also for a kernel that is larger than the padded image."""
        super().__post_init__()
        side = min(self.height, self.width) + 2 * self.padding
        if self.kernel > side:
            raise UsageError(
                f"kernel={self.kernel} is larger than the padded image: height={self.height}, "
                f"width={self.width} and padding={self.padding} have room for at most {side}.",
                f"Choose kernel={side} or less, or a larger height, width or padding.",
            )

    def cost(self, dtype: Dtype) -> Cost:
        """2·N·K·P·Q·C·R·S FLOPs, padding counted as work; images, filters and result move once."""
        _, _, rows, columns = self.output_shape
        outputs = self.batch * self.filters * rows * columns
        products = self.channels * self.kernel**2  # not `reduction`, which the backward pass has its own of
        moved = self.batch * self.channels * self.height * self.width + self.filters * products + outputs
        return Cost(
            flops=2 * outputs * products, bytes=moved * dtype.itemsize, items=self.batch, item="image"
        )

    @property
    def reduction(self) -> int:
        """Each output sums C·R·S products."""
        return self.channels * self.kernel * self.kernel

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """NCHW."""
        rows = (self.height + 2 * self.padding - self.kernel) // self.stride + 1
        columns = (self.width + 2 * self.padding - self.kernel) // self.stride + 1
        return self.batch, self.filters, rows, columns

    def tiny(self) -> Self:
        """Odd sizes; kernel, stride and padding as they are."""
        side = 2 * self.kernel + 3
        return replace(self, batch=2, channels=5, height=side, width=side + 2, filters=7)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """Images NCHW, filters KCRS."""
        return {
            "images": draw.normal("images", self.batch, self.channels, self.height, self.width),
            "filters": draw.normal("filters", self.filters, self.channels, self.kernel, self.kernel),
        }

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """The patch under each sampled output times its filter."""
        import numpy as np

        pad, size = self.padding, self.kernel
        images = np.pad(arrays["images"], ((0, 0), (0, 0), (pad, pad), (pad, pad)))

        def patch(image: int, row: int, column: int) -> Any:
            top, left = row * self.stride, column * self.stride
            return images[image, :, top : top + size, left : left + size]

        patches = np.stack([patch(n, p, q) for n, _, p, q in index]).astype(np.float64)
        filters = arrays["filters"][index[:, 1]].astype(np.float64)
        return np.asarray(np.einsum("scij,scij->s", patches, filters))

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The whole batch."""
        return ops.conv2d(arrays["images"], arrays["filters"], stride=self.stride, padding=self.padding)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """F.conv2d on channels-last memory; the result's shape stays NCHW."""
        import torch
        import torch.nn.functional as F

        images = context.put(arrays["images"]).contiguous(memory_format=torch.channels_last)
        filters = context.put(arrays["filters"]).contiguous(memory_format=torch.channels_last)

        def step(images: Any, filters: Any) -> Any:
            return F.conv2d(images, filters, stride=self.stride, padding=self.padding)

        return Program(step, (images, filters))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.nn.conv2d, NHWC and HWIO; explicit padding, since SAME is lopsided under a stride."""
        import tensorflow as tf

        pad = [self.padding, self.padding]

        def step(images: Any, filters: Any) -> Any:
            return tf.nn.conv2d(images, filters, self.stride, [[0, 0], pad, pad, [0, 0]])

        images = context.put(arrays["images"].transpose(NHWC_OF_NCHW))
        filters = context.put(arrays["filters"].transpose(2, 3, 1, 0))
        return Program(step, (images, filters), axes=NHWC_OF_NCHW, input_axes=INPUT_AXES)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """lax.conv_general_dilated, NHWC and HWIO."""
        from jax import lax

        pad = (self.padding, self.padding)

        def step(images: Any, filters: Any) -> Any:
            return lax.conv_general_dilated(
                images,
                filters,
                (self.stride, self.stride),
                (pad, pad),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )

        images = context.put(arrays["images"].transpose(NHWC_OF_NCHW))
        filters = context.put(arrays["filters"].transpose(2, 3, 1, 0))
        return Program(step, (images, filters), axes=NHWC_OF_NCHW, input_axes=INPUT_AXES)


@dataclass(frozen=True)
class Conv2dBackward(Backward, Conv2d):
    """Of images and filters, neither of which depends on the output."""

    summary = "gradients of a 2-D convolution"
    needs_forward = False
