"""No rank goes on before all have come: the latency of a collective, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.world import World
from benchbench.workloads._collective import BetweenRanks
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

IN_THE_PROGRAM = "it has no barrier of devices that one process drives: their order is the program's"


@dataclass(frozen=True)
class Barrier(BetweenRanks):
    """Each rank counts how often it has come; one that goes on ahead of another sees it lag behind.

    The output is how often that happened in a rank, so 0 is verified of all steps so far.
    """

    summary = "no rank goes on before all have come"
    lacking: ClassVar[Mapping[str, str]] = dict.fromkeys(("jax", "tensorflow"), IN_THE_PROGRAM)

    def cost(self, dtype: Dtype) -> Cost:
        """Nothing but time."""
        return Cost(flops=0, bytes=0, items=1, item="barrier")

    @property
    def output_shape(self) -> tuple[int, int]:
        """(ranks, 1)."""
        return self.world, 1

    def tiny(self) -> Self:
        """There is one."""
        return self

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """None."""
        return {}

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Never."""
        import numpy as np

        return np.zeros(len(index))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """torch.distributed.barrier."""
        import numpy as np
        import torch.distributed as dist

        if context.world.processes == 1:
            raise Unsupported(IN_THE_PROGRAM)
        ahead = context.put_on_host(np.zeros(1))
        wait = counted(context.world, dist.barrier)

        def step() -> Any:
            if wait():
                ahead.add_(1)
            return ahead

        return Program(step, held=(ahead,), compiles=False)


def counted(world: World, barrier: Callable[[], Any]) -> Callable[[], bool]:
    """A function that waits at `barrier` and returns whether it went on before all had come.

    Raises Unsupported where ranks have no memory in common.
    """
    arrived, rank = world.shared, world.rank
    if arrived is None:
        raise Unsupported("ranks that a launcher started have no memory in common to verify a barrier by")

    def wait() -> bool:
        arrived[rank] += 1
        barrier()
        return min(arrived) < arrived[rank]

    return wait
