"""A barrier: the latency of a collective alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.placement import World
from benchbench.workloads._collective import BetweenRanks
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

LATE_S, MOST_LATE = 0.2, 8
IN_THE_PROGRAM = "it has no barrier of devices that one process drives: their order is the program's"


@dataclass(frozen=True)
class Barrier(BetweenRanks):
    """Each rank counts its arrivals. A rank that continues too early sees a smaller count of another rank.

    The output is the number of early ranks, so 0 is verified for all steps so far. Ranks of a launcher share
    no memory: before timing, each in turn arrives late, and the others must wait.
    """

    summary = "no rank goes on before all have come"
    unsupported: ClassVar[Mapping[str, str]] = dict.fromkeys(("jax", "tensorflow"), IN_THE_PROGRAM)

    def lacks(self, backend: str, dtype: Dtype) -> str:
        return IN_THE_PROGRAM if backend == "torch_xla" else super().lacks(backend, dtype)

    def cost(self, dtype: Dtype) -> Cost:
        return Cost(flops=0, bytes=0, items=1, item="barrier")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.world, 1

    def tiny(self) -> Self:
        return self

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.zeros(len(index))

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.distributed.barrier."""
        import numpy as np
        import torch.distributed as dist

        if context.world.processes == 1:
            raise Unsupported(IN_THE_PROGRAM)
        shared = context.world.shared
        early = 0 if shared else gone_early(context.world, dist.barrier)
        ahead = context.put_on_host(np.full(1, float(early)))
        wait = counted(shared, context.world.rank, dist.barrier) if shared else dist.barrier

        def step() -> Any:
            if wait():
                ahead.add_(1)
            return ahead

        return Program(step, captured=(ahead,), compiles=False)


def counted(arrived: memoryview[int], rank: int, barrier: Callable[[], Any]) -> Callable[[], bool]:
    """A function that waits at `barrier` and returns whether it passed before all had arrived.

    `arrived`: number of arrivals of each rank, in shared memory.
    """

    def wait() -> bool:
        arrived[rank] += 1
        barrier()
        return min(arrived) < arrived[rank]

    return wait


def gone_early(
    world: World,
    barrier: Callable[[], Any],
    late_s: float = LATE_S,
    clock: Callable[[], float] = perf_counter,
) -> int:
    """Number of times this rank passed `barrier` before another had arrived.

    After a meeting, one rank in turn arrives `late_s` seconds late, at most `MOST_LATE` of them. A rank that
    passes the barrier sooner has not waited. Each rank uses only its own clock.
    """
    early = 0
    for late in range(0, world.processes, -(-world.processes // MOST_LATE)):
        start = clock()
        world.gather(None)
        if late == world.rank:
            sleep(late_s)
        barrier()
        early += late != world.rank and clock() - start < late_s
    return early
