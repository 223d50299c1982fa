"""A product computed by NumPy, so that the fake backend has a result to verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchbench.workloads.base import Operation, Program
from benchbench.workloads.operations.gemm import Gemm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.model.case import Dtype
    from benchbench.model.measurement import Cost
    from benchbench.workloads.base import Arrays, DeviceContext, Draw


@dataclass(frozen=True)
class Honest(Operation):
    size: int = 32

    summary = "a product computed by NumPy"

    @property
    def _gemm(self) -> Gemm:
        return Gemm(self.size, self.size, self.size)

    @property
    def reduction(self) -> int:
        return self.size

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.size, self.size

    def cost(self, dtype: Dtype) -> Cost:
        return self._gemm.cost(dtype)

    def tiny(self) -> Honest:
        return Honest(8)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        return self._gemm.arrays(draw)

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._gemm.reference(arrays, index)

    def compute(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
        return a @ b

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        def step(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
            context.spend(1e-3)
            return self.compute(a, b)

        return Program(step, (context.put(arrays["a"]), context.put(arrays["b"])))
