"""Base classes of operations whose time is spent on moving data.

A class defines the shapes of the inputs, each framework's function, and `forward` for the reference; `Relu`
is the shortest example. Cost, arrays, programs and the reference of the gradients are derived from these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import UPSTREAM, Backward
from benchbench.workloads.base import OUTPUT, FunctionOperation, Program, reference_of_samples
from benchbench.workloads.network import NHWC_OF_NCHW, nhwc
from benchbench.workloads.program import images_layout, torch_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw, StepFunction

DRAWN = (
    2**20
)  # random elements per array, which are repeated, since drawing takes longer than the measurement


class MemoryBound(FunctionOperation):
    """Operation without counted FLOPs: elementwise work, sums and look-ups are hidden by data movement."""

    item: ClassVar[str] = "element"
    # Inputs whose first axis is the batch, if each output sample depends only on its input sample; else ().
    batched: ClassVar[tuple[str, ...]] = ("x",)
    images: ClassVar[frozenset[str]] = frozenset()  # inputs that are NCHW in torch and NHWC elsewhere
    drawn: ClassVar[Mapping[str, tuple[float, float]]] = {}  # mean and spread of inputs that are not N(0, 1)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs of floating type by name, in the order of the step's arguments."""

    @property
    def items(self) -> int:
        """Number of items per step; by default elements of the first input."""
        return prod(next(iter(self.shapes().values())))

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; each input and the result move once. Integers such as labels are not counted."""
        elements = sum(map(prod, self.shapes().values())) + prod(self.output_shape)
        return Cost(flops=0, bytes=elements * dtype.storage.itemsize, items=self.items, item=self.item)

    @property
    def reduction(self) -> int:
        return 1

    @property
    def output_shape(self) -> tuple[int, ...]:
        """By default the shape of the first input."""
        return next(iter(self.shapes().values()))

    def arrays(self, draw: Draw) -> dict[str, Array]:
        spread = {name: self.drawn.get(name, (0.0, 1.0)) for name in self.shapes()}
        return {
            name: draw.normal(name, *shape, mean=spread[name][0], scale=spread[name][1])
            for name, shape in self.shapes().items()
        }

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """`forward` of the sampled batch elements, or of the whole batch if samples interact."""
        if self.batched:
            return reference_of_samples(self, arrays, index, self.batched)
        from benchbench.workloads._reference.ops import Ops

        return self.references(arrays, {OUTPUT: index}, Ops())[OUTPUT]

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

    def _channels_last(self, step: StepFunction, context: DeviceContext, arrays: Arrays) -> Program:
        inputs = tuple(
            context.put(nhwc(array) if name in self.images else array) for name, array in arrays.items()
        )
        axes = NHWC_OF_NCHW if self.images else None
        input_axes = dict.fromkeys(self.images, NHWC_OF_NCHW)
        return Program(step, inputs, axes=axes, input_axes=input_axes, layout=self._layout(context))

    def _layout(self, context: DeviceContext) -> str:
        return images_layout(context, 4 if self.images else 0)


class MemoryBoundBackward(Backward, MemoryBound):
    """Gradients of a memory-bound operation. Mixin: list it first."""

    def cost(self, dtype: Dtype) -> Cost:
        """No FLOPs; inputs, gradient of the output and gradients of the inputs move once each."""
        forward = MemoryBound.cost(self, dtype)
        gradients = dtype.storage.itemsize * sum(map(prod, self.output_shapes.values()))
        return replace(forward, bytes=forward.bytes + gradients)

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the gradients by the names of their inputs."""
        return {name: shape for name, shape in self.shapes().items() if name not in self.constants}

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """Gradients of the sampled batch elements, or of the whole batch if samples interact."""
        if not self.batched:
            return super().references(arrays, indices, ops)
        import numpy as np

        samples = np.unique(np.concatenate([index[:, 0] for index in indices.values()]))
        batched = (*self.batched, *([UPSTREAM] if self.output_shape else []))
        selected_arrays = {
            name: array[samples] if name in batched else array for name, array in arrays.items()
        }
        selected_indices = {
            name: np.column_stack([np.searchsorted(samples, index[:, 0]), index[:, 1:]])
            for name, index in indices.items()
        }
        return super().references(selected_arrays, selected_indices, ops)


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


@dataclass(frozen=True)
class Vectors(FunctionOperation):
    """A result of n elements from operands of n elements, which exceed every cache at the default size."""

    n: int = 2**26

    operands: ClassVar[tuple[str, ...]] = ("x",)

    def cost(self, dtype: Dtype) -> Cost:
        """Operands and result move once; no FLOPs. An item is an element."""
        moved_elements = (len(self.operands) + 1) * self.n
        return Cost(flops=0, bytes=moved_elements * dtype.storage.itemsize, items=self.n, item="element")

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

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        return self.computed(*(arrays[name][index[:, 0]].astype(float) for name in self.operands))

    def computed(self, *operands: Floats) -> Floats:
        """Elements of the result in float64; by default a copy of the first operand."""
        return operands[0]
