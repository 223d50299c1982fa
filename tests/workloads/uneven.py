"""Three operators; `slow` is executed `heavy` times without changing the result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

SECONDS = {"product": 3e-3, "clamp": 1e-3, "abs": 0.5e-3}  # of virtual time


@dataclass(frozen=True)
class Uneven(Operation):
    n: int = 256
    slow: str = "none"
    heavy: int = 4

    summary = "|clamp(A B)|, with an operator to slow"
    reduction = property(lambda self: self.n)
    output_shape = property(lambda self: (self.n, self.n))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slow not in ("none", *SECONDS):
            raise UsageError(f"Uneven has no operator {self.slow!r}.")

    def cost(self, dtype: Dtype) -> Cost:
        return Cost(flops=2 * self.n**3, bytes=3 * self.n**2 * dtype.itemsize, items=1, item="product")

    def tiny(self) -> Uneven:
        return dataclasses.replace(self, n=8)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        return {name: draw.normal(name, self.n, self.n) for name in ("a", "b")}

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        import numpy as np

        a, b = (arrays[name].astype(np.float64) for name in ("a", "b"))
        return np.abs(np.clip((a @ b)[tuple(index.T)], -1, 1))

    def times(self, operator: str) -> range:
        return range(self.heavy if operator == self.slow else 1)

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        import numpy as np

        def step(a: Any, b: Any) -> Any:

            for name, seconds in SECONDS.items():
                for _ in self.times(name):
                    context.spend(seconds, name)
            return np.abs(np.clip(a @ b, -1, 1))

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        def step(a: Any, b: Any) -> Any:
            for _ in self.times("product"):
                product = a @ b
            for _ in self.times("clamp"):
                clamped = product.clamp(-1, 1)
            for _ in self.times("abs"):
                output = clamped.abs()
            return output

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))
