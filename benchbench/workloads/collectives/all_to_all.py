"""Every rank sends a part of its array to each: what layers of experts do with tokens."""

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
class AllToAll(Collective):
    """Every rank gets its part of the others' arrays of n elements."""

    summary = "a part of each rank's array to each rank"
    parts = True
    lacking: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no all_to_all"}

    @property
    def bus_factor(self) -> float:
        """Each rank keeps its own part: (n − 1)/n."""
        return (self.world - 1) / self.world

    @property
    def sent(self) -> int:
        return self.size

    @property
    def received(self) -> int:
        return self.size

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """The rank's part of each array, one after the other."""
        import numpy as np

        rank, element = index.T
        source, offset = element // self.part, element % self.part
        return np.asarray(self.stacked(arrays)[source, rank * self.part + offset], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.distributed.all_to_all_single."""
        import torch.distributed as dist

        if context.world.processes == 1:
            return sharded(context, self.stacked(arrays), self._exchanged)
        x = context.put(self.own(arrays))
        result = x.new_empty(self.received)

        def step(x: Any) -> Any:
            dist.all_to_all_single(result, x)
            return result

        return Program(step, (x,), held=(result,), compiles=False)

    def _exchanged(self, x: Any) -> Any:
        parts = x.reshape(self.world, self.world, self.part)
        return parts.transpose(0, 1).reshape(self.world, self.size)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.lax.all_to_all."""
        import jax

        def collective(own: Any, axis: str) -> Any:
            return jax.lax.all_to_all(own, axis, split_axis=0, concat_axis=0, tiled=True)

        return over_mesh(context, self.stacked(arrays), collective)
