"""a = b + s·c: triad of STREAM (McCalpin 1995, "Memory bandwidth and machine balance")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Floats, Indices
from benchbench.workloads._memory_bound import SCALAR, Vectors
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Triad(Vectors):
    """Three vectors of n elements. Where s·c is stored in between, it moves twice more than is counted."""

    summary = "a large array plus a number times another"
    operands = ("b", "c")

    @property
    def roundings(self) -> int:
        """The product and the sum, where they are apart."""
        return 2

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        b, c = (arrays[name][index[:, 0]].astype(float) for name in self.operands)
        return b + SCALAR * c

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.add, whose alpha is s: one kernel."""
        import torch

        def step(b: Any, c: Any) -> Any:
            return torch.add(b, c, alpha=SCALAR)

        return Program(step, (context.put(arrays["b"]), context.put(arrays["c"])))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A product and a sum: TensorFlow has no operation of both, and XLA fuses them."""
        return _plain(context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A product and a sum, which XLA fuses."""
        return _plain(context, arrays)


def _plain(context: DeviceContext, arrays: Arrays) -> Program:
    def step(b: Any, c: Any) -> Any:
        return b + SCALAR * c

    return Program(step, (context.put(arrays["b"]), context.put(arrays["c"])))
