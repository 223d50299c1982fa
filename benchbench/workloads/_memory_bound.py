"""Operations whose time goes into moving their operands: what a file says of one, and what follows from it.

A file gives the shapes of the inputs, the step in each framework, and `forward` for the reference; `relu.py`
is the shortest. Cost, arrays, programs and the gradients' reference follow. Copies of whole vectors, sorting
and transfers say their builders themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import UPSTREAM, Backward
from benchbench.workloads.base import OUTPUT, Operation, Program, reference_of_samples
from benchbench.workloads.network import NHWC_OF_NCHW, nhwc
from benchbench.workloads.program import images_layout, torch_layout

if TYPE_CHECKING:
    from benchbench.workloads._losses import Loss
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

    Step = Callable[..., Any]

DRAWN = 2**20  # elements; the rest repeats them, since drawing takes longer than what is measured
SCALAR = 3.0  # of STREAM's scale and triad (McCalpin 1995)


class MemoryBound(Operation):
    """No FLOPs are counted: elementwise work, sums and look-ups hide behind the bytes that they move."""

    item: ClassVar[str] = "element"
    # Inputs whose first axis is the batch, of which each sample's output is its own; () where samples meet.
    batched: ClassVar[tuple[str, ...]] = ("x",)
    images: ClassVar[frozenset[str]] = frozenset()  # inputs that are NCHW in torch and NHWC elsewhere
    drawn: ClassVar[Mapping[str, tuple[float, float]]] = {}  # mean and spread of inputs that are not N(0, 1)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of each input of floating type, in the order in which the step takes them."""

    @property
    def items(self) -> int:
        """Elements of the first input, unless an item is something else."""
        return prod(next(iter(self.shapes().values())))

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; each input and the result move once. Integers, such as labels, are not counted."""
        elements = sum(map(prod, self.shapes().values())) + prod(self.output_shape)
        return Cost(flops=0, bytes=elements * dtype.storage.itemsize, items=self.items, item=self.item)

    @property
    def reduction(self) -> int:
        return 1

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The first input's shape, unless said otherwise."""
        return next(iter(self.shapes().values()))

    def arrays(self, draw: Draw) -> dict[str, Array]:
        spread = {name: self.drawn.get(name, (0.0, 1.0)) for name in self.shapes()}
        return {
            name: draw.normal(name, *shape, mean=spread[name][0], scale=spread[name][1])
            for name, shape in self.shapes().items()
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """`forward` of the samples that are asked for, or of all samples where they meet."""
        if self.batched:
            return reference_of_samples(self, arrays, index, self.batched)
        from benchbench.workloads._reference.ops import Ops

        return self.references(arrays, {OUTPUT: index}, Ops())[OUTPUT]

    @abstractmethod
    def torch(self) -> Step:
        """The step in torch, of NCHW images in the session's layout."""

    @abstractmethod
    def tensorflow(self) -> Step:
        """The step in TensorFlow, of NHWC images."""

    @abstractmethod
    def jax(self) -> Step:
        """The step in JAX, of NHWC images."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Inputs on the device, images in the session's layout."""

        def put(name: str) -> Any:
            tensor = context.put(arrays[name])
            return tensor.contiguous(memory_format=torch_layout(context)) if name in self.images else tensor

        return Program(self.torch(), tuple(map(put, arrays)), layout=self._layout(context))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Inputs on the device, images NHWC."""
        return self._channels_last(self.tensorflow(), context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Inputs on the device, images NHWC."""
        return self._channels_last(self.jax(), context, arrays)

    def _channels_last(self, step: Step, context: DeviceContext, arrays: Arrays) -> Program:
        inputs = tuple(
            context.put(nhwc(array) if name in self.images else array) for name, array in arrays.items()
        )
        axes = NHWC_OF_NCHW if self.images else None
        input_axes = dict.fromkeys(self.images, NHWC_OF_NCHW)
        return Program(step, inputs, axes=axes, input_axes=input_axes, layout=self._layout(context))

    def _layout(self, context: DeviceContext) -> str:
        return images_layout(context, 4 if self.images else 0)


class MemoryBoundBackward(Backward, MemoryBound):
    """Mixin: list it first."""

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; each input, the gradient of the output and the gradients of the inputs move once."""
        forward = MemoryBound.cost(self, dtype)
        gradients = dtype.storage.itemsize * sum(map(prod, self.output_shapes.values()))
        return replace(forward, bytes=forward.bytes + gradients)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Gradients are named after the inputs."""
        return {name: shape for name, shape in self.shapes().items() if name not in self.constants}

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """Gradients of the samples that are asked for, or of all samples where they meet."""
        if not self.batched:
            return super().references(arrays, indices, ops)
        import numpy as np

        samples = np.unique(np.concatenate([index[:, 0] for index in indices.values()]))
        batched = (*self.batched, *([UPSTREAM] if self.output_shape else []))
        asked = {name: array[samples] if name in batched else array for name, array in arrays.items()}
        places = {
            name: np.column_stack([np.searchsorted(samples, index[:, 0]), index[:, 1:]])
            for name, index in indices.items()
        }
        return super().references(asked, places, ops)


@dataclass(frozen=True)
class Pointwise(MemoryBound):
    """A function of each of n elements."""

    n: int = 2**24

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"x": (self.n,)}

    def tiny(self) -> Self:
        return replace(self, n=1021)


@dataclass(frozen=True)
class Rowwise(MemoryBound):
    """A function of each row of a matrix."""

    rows: int = 4096
    width: int = 1024

    item = "row"

    @property
    def items(self) -> int:
        return self.rows

    @property
    def reduction(self) -> int:
        return self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"x": (self.rows, self.width)}

    def tiny(self) -> Self:
        return replace(self, rows=13, width=37)


class MeanLoss(MemoryBound):
    """Mixin: list it first. The mean of a loss over all samples, in float32."""

    loss: ClassVar[Loss]
    batched: ClassVar[tuple[str, ...]] = ()
    output_shape = ()
    roundings = 0

    def torch(self) -> Step:
        return self.loss.torch

    def tensorflow(self) -> Step:
        return self.loss.tensorflow

    def jax(self) -> Step:
        return self.loss.jax


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


@dataclass(frozen=True)
class Vectors(Operation):
    """A result of n elements from operands of n elements, none of which fits a cache at the default size."""

    n: int = 2**26

    operands: ClassVar[tuple[str, ...]] = ("x",)

    def cost(self, dtype: Dtype) -> Cost:
        """Operands and result move once; no FLOPs; an item is an element."""
        moved = (len(self.operands) + 1) * self.n
        return Cost(flops=0, bytes=moved * dtype.storage.itemsize, items=self.n, item="element")

    @property
    def reduction(self) -> int:
        """No element sums more than one product."""
        return 1

    @property
    def output_shape(self) -> tuple[int]:
        return (self.n,)

    def tiny(self) -> Self:
        return type(self)(n=1021)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        import numpy as np

        count = min(self.n, DRAWN)
        return {name: np.resize(draw.normal(name, count), self.n) for name in self.operands}


@dataclass(frozen=True)
class OrderedRows(Operation):
    """Rows of N(0, 1) that are ordered each by itself; values come out, which rounds nothing."""

    rows: int
    columns: int

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", self.rows, self.columns)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Elements of the rows that are asked for, ordered."""
        import numpy as np

        rows, place = np.unique(index[:, 0], return_inverse=True)
        ordered = np.sort(arrays["x"][rows].astype(float), axis=1)
        return np.asarray(self.placed(ordered)[place, index[:, 1]])

    def placed(self, ordered: Floats) -> Floats:
        """The output's rows, of rows from the smallest to the largest."""
        return ordered


@dataclass(frozen=True)
class Transfer(Vectors):
    """n elements over the link, from or to host memory that is pageable or pinned; never compiled."""

    pinned: bool = False

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0
    refused_on_cpu = "a CPU computes in the host's memory, so nothing is transferred: `copy` measures it"

    def cost(self, dtype: Dtype) -> Cost:
        """Bytes are counted once, as they cross the link; an item is a transfer."""
        moved = self.n * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, link_bytes=moved, items=1, item="transfer")

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(arrays["x"][index[:, 0]], np.float64)
