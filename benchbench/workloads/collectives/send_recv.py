"""Every rank sends its array to another: what stages of a pipeline do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.workloads._collective import OF_TENSORFLOW, Collective
from benchbench.workloads._programs.devices import over_mesh, sharded
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext

RING, PAIR = "ring", "pair"
LINK = re.compile(r"(\d+)\+(\d+)")  # two ranks, of which the first is the smaller


@dataclass(frozen=True)
class SendRecv(Collective):
    """`ring`: each rank sends to the next; `pair`: ranks 2k and 2k + 1 to each other, all pairs at once.

    `0+3`: ranks 0 and 3 to each other, while the others do nothing: the link between two devices.
    """

    pattern: str = RING

    summary = "array of each rank to the next, or to its partner"
    lacking: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no point-to-point messages"}

    def __post_init__(self) -> None:
        """Raise UsageError for a pattern that is not known."""
        super().__post_init__()
        one, other = self.link or (0, 1)
        if (self.pattern not in (RING, PAIR) and not self.link) or one >= other:
            hint = f"There are {RING}, {PAIR}, and two ranks as 0+1, the smaller one first."
            raise UsageError(f"No pattern named {self.pattern!r}.", hint)

    @property
    def link(self) -> tuple[int, int] | None:
        """The two ranks, where the pattern is of two alone."""
        named = LINK.fullmatch(self.pattern)
        return (int(named[1]), int(named[2])) if named else None

    def refuses(self, dtype: Dtype) -> str:
        if self.link and self.link[1] >= self.world > 1:
            return f"of {self.world} ranks, none is rank {self.link[1]}: they begin at 0"
        return super().refuses(dtype)

    def target(self, rank: int) -> int:
        """The rank that a rank sends to; who has no partner keeps its array."""
        if self.pattern == RING:
            return (rank + 1) % self.world
        if self.link:
            return sum(self.link) - rank if rank in self.link else rank
        return partner if (partner := rank ^ 1) < self.world else rank

    @property
    def sources(self) -> list[int]:
        """The rank that each rank receives from."""
        ranks = range(self.world)
        return [next(source for source in ranks if self.target(source) == rank) for rank in ranks]

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Elements of the array of whoever sends to the rank."""
        import numpy as np

        return np.asarray(self.stacked(arrays)[np.array(self.sources)[index[:, 0]], index[:, 1]], np.float64)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls torch.distributed.batch_isend_irecv."""
        import torch
        import torch.distributed as dist

        if context.world.processes == 1:
            return sharded(context, self.stacked(arrays), lambda x: x[self.sources])
        assert self.rank is not None
        x = context.put(self.own(arrays))
        received = torch.empty_like(x)
        target, source = self.target(self.rank), self.sources[self.rank]
        dist.barrier()  # NCCL: the first call of a group is one of all ranks

        def step(x: Any) -> Any:
            if source == self.rank:
                return x
            messages = [dist.P2POp(dist.isend, x, target), dist.P2POp(dist.irecv, received, source)]
            for message in dist.batch_isend_irecv(messages):
                message.wait()
            return received

        return Program(step, (x,), held=(received,), compiles=False)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """A program that calls jax.lax.ppermute."""
        import jax

        pairs = [(rank, self.target(rank)) for rank in range(self.world)]

        def collective(own: Any, axis: str) -> Any:
            return jax.lax.ppermute(own, axis, pairs)

        return over_mesh(context, self.stacked(arrays), collective)
