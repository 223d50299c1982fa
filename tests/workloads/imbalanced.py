"""Ranks that have unequal work, and wait for each other in a collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchbench.workloads._collective import Collective
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class Imbalanced(Collective):
    n: int = 8

    summary = "rank r works for r + 1 ms, then all are together until 4 ms are over"

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(self.stacked(arrays)[index[:, 0], index[:, 1]], np.float64)

    def build_fake(self, context: DeviceContext, arrays: Arrays) -> Program:
        rank = self.rank or 0

        def step(x: Any) -> Any:
            context.spend(1e-3 * (rank + 1), "product")
            context.spend(1e-3 * (3 - rank), "all_reduce")
            return x

        return Program(step, (context.put(self.own(arrays)),))
