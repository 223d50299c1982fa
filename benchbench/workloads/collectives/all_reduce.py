"""Every rank ends with the sum of all arrays: what data-parallel training does with gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._collective import Collective
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class AllReduce(Collective):
    """The sum of the ranks' arrays, in every rank."""

    summary = "sum of an array over ranks, in every rank"

    @property
    def bus_factor(self) -> float:
        """Each element leaves a rank and comes back summed, but for its own share: 2(n − 1)/n."""
        return 2 * (self.world - 1) / self.world

    @property
    def roundings(self) -> int:
        """Once for each sum."""
        return self.world

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sums of the elements."""
        import numpy as np

        return np.asarray(self.stacked(arrays)[:, index[:, 1]].sum(axis=0, dtype=np.float64))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.distributed.all_reduce works in place, so what it overwrites is copied to first."""
        import torch
        import torch.distributed as dist

        x = context.put(self.own(arrays))
        result = torch.empty_like(x)

        def step(x: Any) -> Any:
            dist.all_reduce(result.copy_(x))
            return result

        return Program(step, (x,), held=(result,), compiles=False)
