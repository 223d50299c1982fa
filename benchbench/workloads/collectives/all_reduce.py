"""Every rank ends with the sum of all arrays: what data-parallel training does with gradients."""

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
class AllReduce(Collective):
    """The sum of the ranks' arrays, in every rank; `in_place`: where the rank's own array was.

    In place each step sums what the one before left: values grow, to infinity after some hundred steps.
    """

    in_place: bool = False

    summary = "sum of an array over ranks, in every rank"
    added = frozenset({"in_place"})

    @property
    def bus_factor(self) -> float:
        """Each element leaves a rank and comes back summed, but for its own share: 2(n − 1)/n."""
        return 2 * (self.world - 1) / self.world

    @property
    def reduction(self) -> int:
        """No product is summed, yet sums accumulate."""
        return 1

    @property
    def roundings(self) -> int:
        """An element is rounded once for each sum."""
        return self.world

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(self.stacked(arrays)[:, index[:, 1]].sum(axis=0, dtype=np.float64))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.distributed.all_reduce works in place; else what it overwrites is copied to first."""
        import torch
        import torch.distributed as dist

        if context.world.processes == 1:
            self._refuse_in_place("a tensor of torch_xla")
            return sharded(
                context, self.stacked(arrays), lambda x: x.sum(0, keepdim=True).repeat(self.world, 1)
            )
        x = context.put(self.own(arrays))
        result = None if self.in_place else torch.empty_like(x)

        def step(x: Any) -> Any:
            summed = x if result is None else result.copy_(x)
            dist.all_reduce(summed)
            return summed

        return Program(step, (x,), held=() if result is None else (result,), compiles=False)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls ReplicaContext.all_reduce."""
        self._refuse_in_place("a tensor of TensorFlow")
        return in_replicas(context, self.stacked(arrays), lambda replica, own: replica.all_reduce("sum", own))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.lax.psum."""
        import jax

        self._refuse_in_place("an array of JAX")
        return over_mesh(context, self.stacked(arrays), jax.lax.psum)

    def _refuse_in_place(self, what: str) -> None:
        if self.in_place:
            raise Unsupported(f"{what} is a value: nobody else can ask for its sum in its place")
