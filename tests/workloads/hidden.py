"""Six dense layers in NumPy, and a variant with a mistake that rounding to bfloat16 hides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchbench.model.measurement import Cost
from benchbench.workloads.base import Operation, Program, reference_of_samples, rounded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.model.case import Dtype
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

DEPTH = 6


@dataclass(frozen=True)
class Hidden(Operation):
    batch: int = 32
    width: int = 64

    summary = "six dense layers computed by NumPy"
    draws_tolerated = 6.0

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, self.width

    def cost(self, dtype: Dtype) -> Cost:
        flops = 2 * DEPTH * self.batch * self.width**2
        values = DEPTH * (2 * self.batch * self.width + self.width**2) * dtype.itemsize
        return Cost(flops=flops, bytes=values, items=self.batch, item="row")

    def tiny(self) -> Hidden:
        return replace(self, batch=8)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        wide, scale = range(DEPTH), (2 / self.width) ** 0.5
        weights = {
            f"weight{at}": draw.normal(f"weight{at}", self.width, self.width, scale=scale) for at in wide
        }
        biases = {f"bias{at}": draw.normal(f"bias{at}", self.width, scale=0.01) for at in wide}
        return {"x": draw.normal("x", self.batch, self.width), **weights, **biases}

    def is_input(self, name: str) -> bool:
        return name == "x"

    def forward(self, ops: Any, arrays: Any) -> Any:
        x = arrays["x"]
        for at in range(DEPTH):
            x = ops.relu(ops.linear(x, arrays[f"weight{at}"], arrays[f"bias{at}"]))
        return x

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return reference_of_samples(self, arrays, index, ("x",))

    def bias(self, arrays: Arrays, at: int) -> Any:
        return arrays[f"bias{at}"]

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        import numpy as np

        def step(x: Any) -> Any:
            context.spend(1e-3)
            for at in range(DEPTH):
                x = rounded(x @ arrays[f"weight{at}"].T, context.dtype)
                x = np.maximum(rounded(x + self.bias(arrays, at), context.dtype), 0)
            return x

        return Program(step, (context.put(arrays["x"]),))


@dataclass(frozen=True)
class HiddenMistake(Hidden):
    summary = "six dense layers whose first bias is subtracted"

    def bias(self, arrays: Arrays, at: int) -> Any:
        return -arrays["bias0"] if at == 0 else super().bias(arrays, at)
