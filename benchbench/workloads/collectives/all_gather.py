"""Every rank ends with the parts of all: what sharded parameters take before a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Floats, Indices
from benchbench.errors import Unsupported
from benchbench.workloads._collective import Collective
from benchbench.workloads._programs.devices import in_replicas, over_mesh, sharded
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class AllGather(Collective):
    """The whole of n elements, in every rank, of which each had a part."""

    summary = "parts of an array joined, in every rank"
    parts = True

    @property
    def bus_factor(self) -> float:
        """Each rank lacks the parts of the others: (n − 1)/n."""
        return (self.world - 1) / self.world

    @property
    def sent(self) -> int:
        return self.part

    @property
    def received(self) -> int:
        return self.size

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Elements of the parts, one after the other."""
        import numpy as np

        element = index[:, 1]
        return np.asarray(self.stacked(arrays)[element // self.part, element % self.part], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.distributed.all_gather_into_tensor."""
        import torch.distributed as dist

        if context.world.processes == 1:
            rows = self.stacked(arrays)
            return sharded(context, rows, lambda x: x.reshape(1, -1).repeat(self.world, 1))
        x = context.put(self.own(arrays))
        result = x.new_empty(self.received)

        def step(x: Any) -> Any:
            dist.all_gather_into_tensor(result, x)
            return result

        return Program(step, (x,), held=(result,), compiles=False)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls ReplicaContext.all_gather."""
        import tensorflow as tf

        if context.dtype == tf.bfloat16:
            raise Unsupported("TensorFlow gathers no bfloat16")
        return in_replicas(
            context, self.stacked(arrays), lambda replica, own: replica.all_gather(own, axis=0)
        )

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.lax.all_gather."""
        import jax

        def collective(own: Any, axis: str) -> Any:
            return jax.lax.all_gather(own, axis, tiled=True)

        return over_mesh(context, self.stacked(arrays), collective)
