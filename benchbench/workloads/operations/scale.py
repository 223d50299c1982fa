"""y = s·x, with a number s that the program knows: scale of STREAM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Floats, Indices
from benchbench.workloads._memory_bound import SCALAR, Vectors
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Scale(Vectors):
    """A vector of n elements."""

    summary = "a large array times a number"

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        return SCALAR * arrays["x"][index[:, 0]].astype(float)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.mul by a Python number."""

        def step(x: Any) -> Any:
            return SCALAR * x

        return Program(step, (context.put(arrays["x"]),))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.multiply by a Python number."""
        return self.build_torch(context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jnp.multiply by a Python number."""
        return self.build_torch(context, arrays)
