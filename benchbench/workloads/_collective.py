"""Base classes of collectives: an array per rank, sizes as nccl-tests counts them, results, and programs.

The first axis of the reference's output is that of the ranks: the result of each. If one process controls
all devices, the array of a program has a row for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.placement import Strategy
from benchbench.workloads._memory_bound import DRAWN
from benchbench.workloads.base import DeviceContext, Operation, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Draw

OF_TENSORFLOW = "tf.distribute has all_reduce and all_gather"


class BetweenRanks(Operation):
    """Base of workloads that need two or more ranks. By default, values are passed on unchanged."""

    worlds = (2,)
    multiplications_saved = 1.0

    @classmethod
    def strategies(cls, framework: str) -> Sequence[Strategy]:
        """The collective strategy, in which each rank has its own array; none for frameworks that lack it."""
        return (Strategy.COLLECTIVE,) if framework in cls.frameworks() else ()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.placement.devices

    @property
    def reduction(self) -> int:
        """Nothing is summed, so every element is exact."""
        return 0

    @property
    def roundings(self) -> int:
        return 0


@dataclass(frozen=True)
class Collective(BetweenRanks):
    """Collective of n elements, counted as in nccl-tests.

    n is the size of each rank's array, or of the whole if `parts` is True. A part is n / world elements,
    rounded up.
    """

    n: int = 2**18

    parts: ClassVar[bool] = False  # whether n is the size of the whole, of which each rank has or gets a part

    @property
    def part(self) -> int:
        """Elements of a part."""
        return -(-self.n // self.world)

    @property
    def size(self) -> int:
        """Elements that count for the algorithm's bandwidth."""
        return self.part * self.world if self.parts else self.n

    @property
    def bus_factor(self) -> float:
        """Bytes that a link carries at least, per byte of the size.

        Source: nccl-tests, doc/PERFORMANCE.md, which derives it for each collective.
        """
        return 1.0

    def cost(self, dtype: Dtype) -> Cost:
        """Each rank reads its array and writes its result. A link carries the size times `bus_factor`.

        An item is a byte of the size, so the rate of items is the algorithm's bandwidth.
        """
        size = self.size * dtype.storage.itemsize
        moved_bytes = (self.sent + self.received) * dtype.storage.itemsize
        return Cost(
            flops=0, bytes=moved_bytes, link_bytes=round(self.bus_factor * size), items=size, item="byte"
        )

    @property
    def sent(self) -> int:
        """Elements of a rank's own array."""
        return self.n

    @property
    def received(self) -> int:
        """Elements of a rank's result."""
        return self.n

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.world, self.received

    def tiny(self) -> Self:
        return type(self)(n=1021)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Arrays `rank0`, `rank1`, … with different values. A process that is one rank gets only its own."""
        import numpy as np

        ranks = range(self.world) if self.rank is None else [self.rank]
        count = min(self.sent, DRAWN)
        return {
            name: np.resize(draw.normal(name, count), self.sent) for name in (f"rank{rank}" for rank in ranks)
        }

    def stacked(self, arrays: Arrays) -> Array:
        """All ranks' arrays in one, of shape (ranks, elements)."""
        import numpy as np

        return np.stack([arrays[f"rank{rank}"] for rank in range(self.world)])

    def own(self, arrays: Arrays) -> Array:
        """The array of this process's rank."""
        return arrays[f"rank{self.rank}"]


AXIS = "devices"  # of a mesh


def in_replicas(context: DeviceContext, rows: Array, collective: Callable[[Any, Any], Any]) -> Program:
    """Program in TensorFlow that applies `collective(replica context, row)` in each mirrored replica."""
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def apply_to_row(row: Any) -> Any:
        return collective(tf.distribute.get_replica_context(), row)

    def step(x: Any) -> Any:
        return strategy.run(apply_to_row, args=(x,))

    return Program(step, (context.put_on_devices(rows),))


def shard_rows(tensor: Any, devices: int) -> Any:
    """Mark a torch_xla tensor so that each device has a row of it."""
    return shard_along(tensor, devices, 0)


def shard_along(tensor: Any, devices: int, axis: int) -> Any:
    """Mark a torch_xla tensor so that each device has an equal part of this axis."""
    import numpy as np
    import torch_xla.distributed.spmd as spmd

    mesh = spmd.Mesh(np.arange(devices), (devices,), (AXIS,))
    spmd.mark_sharding(tensor, mesh, tuple(AXIS if at == axis else None for at in range(tensor.dim())))
    return tensor
