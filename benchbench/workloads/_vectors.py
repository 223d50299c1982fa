"""What operations on whole vectors share: one large array or several, each element read or written once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from benchbench.arrays import Array
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

DRAWN = 2**20  # elements; the rest repeats them, since drawing takes longer than what is measured
SCALAR = 3.0  # of STREAM's scale and triad (McCalpin 1995)


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
