"""Vectors too large for any cache: added, scaled and copied; and the smallest operation, on one element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import Vectors
from benchbench.workloads.base import FunctionOperation, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw, StepFunction

SCALAR = 3.0  # factor of scale and triad in STREAM (McCalpin 1995)


@dataclass(frozen=True)
class Add(Vectors):
    """z = x + y, the least that a residual connection does."""

    summary = "elementwise sum of two large arrays"
    operands = ("x", "y")
    functions: ClassVar = {"torch": "torch:add", "tensorflow": "tensorflow:add", "jax": "jax.numpy:add"}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        x, y = (arrays[name][index[:, 0]] for name in self.operands)
        return np.add(x, y, dtype=np.float64)


@dataclass(frozen=True)
class Scale(Vectors):
    """y = s·x, with a number s that is part of the program: scale of STREAM."""

    summary = "a large array times a number"

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        return SCALAR * arrays["x"][index[:, 0]].astype(float)

    def torch(self) -> StepFunction:
        return lambda x: SCALAR * x

    tensorflow = jax = torch


@dataclass(frozen=True)
class Triad(Vectors):
    """a = b + s·c: triad of STREAM. If s·c is stored in between, twice more moves than is counted."""

    summary = "a large array plus a number times another"
    operands = ("b", "c")
    roundings = 2  # the product and the sum, if separate

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        b, c = (arrays[name][index[:, 0]].astype(float) for name in self.operands)
        return b + SCALAR * c

    def torch(self) -> StepFunction:
        """torch.add with s as its alpha: one kernel."""
        import torch

        return partial(torch.add, alpha=SCALAR)

    def tensorflow(self) -> StepFunction:
        """A product and a sum, which XLA fuses; TensorFlow has no operation for both."""
        return lambda b, c: b + SCALAR * c

    jax = tensorflow


@dataclass(frozen=True)
class Copy(Vectors):
    """y = x: the bandwidth of the device's memory.

    Compilers and torch_xla leave out a plain copy, and tf.identity returns the same buffer. Torch and
    TensorFlow multiply by 1 instead, an input of the program, which moves the same bytes. JAX copies any
    array that is not donated.
    """

    summary = "copy of a large array: memory bandwidth"
    functions: ClassVar = {"torch": "torch:mul", "tensorflow": "tensorflow:multiply", "jax": "jax.numpy:copy"}
    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def cost(self, dtype: Dtype) -> Cost:
        """x is read and y is written; no FLOPs; an item is one copy."""
        return Cost(flops=0, bytes=2 * self.n * dtype.storage.itemsize, items=1, item="copy")

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(arrays["x"][index[:, 0]], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.torch(), (context.put(arrays["x"]), context.put(_one(arrays))))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        return Program(self.tensorflow(), (context.put(arrays["x"]), context.put(_one(arrays))))


def _one(arrays: Arrays) -> Array:
    import numpy as np

    return np.ones((), arrays["x"].dtype)


@dataclass(frozen=True)
class Launch(FunctionOperation):
    """y = x + 1 on one element: the latency of the call, the framework's dispatch and the kernel's launch.

    On an accelerator calls are queued. There the rate of launches is measured, not the duration of one.
    """

    summary = "the smallest operation, on one element: its latency is that of a launch"
    reduction = 1
    output_shape = (1,)

    def cost(self, dtype: Dtype) -> Cost:
        """x is read and y is written; an item is a launch."""
        return Cost(flops=0, bytes=2 * dtype.storage.itemsize, items=1, item="launch")

    def tiny(self) -> Self:
        return self

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", 1)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.add(arrays["x"][index[:, 0]], 1.0, dtype=np.float64)

    def torch(self) -> StepFunction:
        return _plus_one

    tensorflow = jax = torch


def _plus_one(x: Any) -> Any:
    return x + 1
