"""Every rank ends with a part of the sum of all arrays: what sharded gradients are left as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Floats, Indices
from benchbench.workloads._collective import OF_TENSORFLOW, Collective
from benchbench.workloads._programs.devices import over_mesh, sharded
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """The sum of the ranks' arrays of n elements, of which each rank gets a part."""

    summary = "sum of an array over ranks, a part in each"
    parts = True
    lacking: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no reduce_scatter"}

    @property
    def bus_factor(self) -> float:
        """Each rank lacks the others' share of its part: (n − 1)/n."""
        return (self.world - 1) / self.world

    @property
    def reduction(self) -> int:
        """No product is summed, yet sums accumulate."""
        return 1

    @property
    def roundings(self) -> int:
        return self.world

    @property
    def sent(self) -> int:
        return self.size

    @property
    def received(self) -> int:
        return self.part

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Sums of the elements of the rank's part."""
        import numpy as np

        element = index[:, 0] * self.part + index[:, 1]
        return np.asarray(self.stacked(arrays)[:, element].sum(axis=0, dtype=np.float64))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.distributed.reduce_scatter_tensor."""
        import torch.distributed as dist

        if context.world.processes == 1:
            return sharded(context, self.stacked(arrays), lambda x: x.sum(0).reshape(self.world, -1))
        x = context.put(self.own(arrays))
        result = x.new_empty(self.received)

        def step(x: Any) -> Any:
            dist.reduce_scatter_tensor(result, x)
            return result

        return Program(step, (x,), held=(result,), compiles=False)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.lax.psum_scatter."""
        import jax

        def collective(own: Any, axis: str) -> Any:
            return jax.lax.psum_scatter(own, axis, tiled=True)

        return over_mesh(context, self.stacked(arrays), collective)
