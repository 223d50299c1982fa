"""Every rank ends with the first one's array: how parameters get everywhere."""

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
class Broadcast(Collective):
    """The array of rank 0, in every rank."""

    summary = "array of the first rank, in every rank"
    lacking: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no broadcast"}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(self.stacked(arrays)[0, index[:, 1]], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.distributed.broadcast, which works in place: rank 0 sends its input."""
        import torch
        import torch.distributed as dist

        if context.world.processes == 1:
            return sharded(context, self.stacked(arrays), lambda x: x[:1].repeat(self.world, 1))
        x = context.put(self.own(arrays))
        received = torch.empty_like(x)
        is_root = self.rank == 0

        def step(x: Any) -> Any:
            result = x if is_root else received
            dist.broadcast(result, 0)
            return result

        return Program(step, (x,), held=(received,), compiles=False)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.lax.psum of the first row and of zeros, since jax.lax.pbroadcast is not on every device."""
        import jax
        import jax.numpy as jnp

        def collective(own: Any, axis: str) -> Any:
            return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, own, 0), axis)

        return over_mesh(context, self.stacked(arrays), collective)
