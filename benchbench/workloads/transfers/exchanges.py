"""Collectives: arrays summed, gathered, scattered, broadcast and sent between ranks; and a barrier."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.placement import LINK, World
from benchbench.workloads._collective import OF_TENSORFLOW, BetweenRanks, Collective, in_replicas, shard_rows
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

RING, PAIR = "ring", "pair"


class _Exchange(Collective):
    """Base of collectives in torch and JAX."""

    @abstractmethod
    def elements(self, rows: Array, index: Indices) -> Any:
        """Elements of the ranks' results at `index`; `rows` has the ranks' arrays. Sums are in float64."""

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(self.elements(self.stacked(arrays), index), float)

    @abstractmethod
    def exchange(self, x: Any, result: Any) -> Callable[[Any], Any]:
        """Step of a rank with torch.distributed, from its array. It may write to `result`."""

    def buffer(self, x: Any) -> Any:
        """Memory for a rank's result; None if the result replaces the rank's array `x`."""
        return x.new_empty(self.received)

    @abstractmethod
    def spmd(self, x: Any) -> Any:
        """All ranks' results from all ranks' arrays, by operations of torch."""

    @abstractmethod
    def lax(self, row: Any, axis: str) -> Any:
        """A rank's result in JAX. `axis`: name of the axis of devices."""

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`exchange` if there is a process for each rank, otherwise `spmd` in torch_xla."""
        if context.world.processes == 1:
            rows, devices = context.put_on_devices(self.stacked(arrays)), context.world.devices
            return Program(lambda x: shard_rows(self.spmd(x), devices), (rows,))
        x = context.put(self.own(arrays))
        result = self.buffer(x)
        step = self.exchange(x, result)
        return Program(step, (x,), captured=() if result is None else (result,), compiles=False)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`lax` of each device's row, under jax.shard_map."""
        import jax

        rows = context.put_on_devices(self.stacked(arrays))
        mesh, spec = rows.sharding.mesh, rows.sharding.spec
        (axis,) = mesh.axis_names

        def exchange_row(row: Any) -> Any:
            return self.lax(row[0], axis)[None]

        step = jax.shard_map(exchange_row, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return Program(step, (rows,))


@dataclass(frozen=True)
class AllReduce(_Exchange):
    """The sum of the ranks' arrays, in every rank; `in_place`: it replaces the rank's own array.

    Data-parallel training sums gradients so. In place, each step sums the results of the step before: values
    grow, to infinity after some hundred steps.
    """

    in_place: bool = False

    summary = "sum of an array over ranks, in every rank"
    added = frozenset({"in_place"})
    reduction = 1  # no product is summed, but sums accumulate

    @property
    def bus_factor(self) -> float:
        """Each element leaves a rank and comes back summed, but for its own share: 2(n − 1)/n."""
        return 2 * (self.world - 1) / self.world

    @property
    def roundings(self) -> int:
        """An element is rounded once for each sum."""
        return self.world

    def lacks(self, backend: str, dtype: Dtype) -> str:
        if self.in_place and backend != "torch":
            return f"an array of {backend} is a value, which no sum can replace"
        return super().lacks(backend, dtype)

    def elements(self, rows: Array, index: Indices) -> Any:
        return rows[:, index[:, 1]].sum(axis=0, dtype=float)

    def exchange(self, x: Any, result: Any) -> Callable[[Any], Any]:
        """torch.distributed.all_reduce, which works in place: otherwise on a copy, made in each step."""
        import torch.distributed as dist

        def step(x: Any) -> Any:
            summed = x if result is None else result.copy_(x)
            dist.all_reduce(summed)
            return summed

        return step

    def buffer(self, x: Any) -> Any:
        return None if self.in_place else super().buffer(x)

    def spmd(self, x: Any) -> Any:
        return x.sum(0, keepdim=True).repeat(self.world, 1)

    def lax(self, row: Any, axis: str) -> Any:
        import jax

        return jax.lax.psum(row, axis)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        return in_replicas(context, self.stacked(arrays), lambda replica, row: replica.all_reduce("sum", row))


@dataclass(frozen=True)
class Broadcast(_Exchange):
    """The array of rank 0, in every rank, as parameters are distributed."""

    summary = "array of the first rank, in every rank"
    unsupported: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no broadcast"}

    def elements(self, rows: Array, index: Indices) -> Any:
        return rows[0, index[:, 1]]

    def exchange(self, x: Any, result: Any) -> Callable[[Any], Any]:
        """torch.distributed.broadcast, which works in place: rank 0 sends its input."""
        import torch.distributed as dist

        is_root = self.rank == 0

        def step(x: Any) -> Any:
            received = x if is_root else result
            dist.broadcast(received, 0)
            return received

        return step

    def spmd(self, x: Any) -> Any:
        return x[:1].repeat(self.world, 1)

    def lax(self, row: Any, axis: str) -> Any:
        """jax.lax.psum of the first row and of zeros, since jax.lax.pbroadcast is not on every device."""
        import jax
        import jax.numpy as jnp

        return jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, row, 0), axis)


@dataclass(frozen=True)
class SendRecv(_Exchange):
    """Messages, as between stages of a pipeline. All pairs exchange at once.

    `ring`: each rank sends to the next; `pair`: ranks 2k and 2k + 1 to each other; `0+3`: ranks 0 and 3 to
    each other, while the others do nothing, which measures the link between two devices.
    """

    pattern: str = RING

    summary = "array of each rank to the next, or to its partner"
    unsupported: ClassVar[Mapping[str, str]] = {
        "tensorflow": f"{OF_TENSORFLOW}, and no point-to-point messages"
    }

    def __post_init__(self) -> None:
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

    def elements(self, rows: Array, index: Indices) -> Any:
        """Elements of the array of whoever sends to the rank."""
        import numpy as np

        return rows[np.array(self.sources)[index[:, 0]], index[:, 1]]

    def exchange(self, x: Any, result: Any) -> Callable[[Any], Any]:
        import torch.distributed as dist

        assert self.rank is not None
        target, source = self.target(self.rank), self.sources[self.rank]
        dist.barrier()  # NCCL: the first call of a group is one of all ranks

        def step(x: Any) -> Any:
            if source == self.rank:
                return x
            messages = [dist.P2POp(dist.isend, x, target), dist.P2POp(dist.irecv, result, source)]
            for message in dist.batch_isend_irecv(messages):
                message.wait()
            return result

        return step

    def spmd(self, x: Any) -> Any:
        return x[self.sources]

    def lax(self, row: Any, axis: str) -> Any:
        import jax

        pairs = [(rank, self.target(rank)) for rank in range(self.world)]
        return jax.lax.ppermute(row, axis, pairs)


class _InParts(_Exchange):
    """A collective in which each rank has or gets a part of the whole; each lacks the parts of the others."""

    parts = True
    torch_function: ClassVar[str]  # function of torch.distributed: (result, the rank's array)

    @property
    def bus_factor(self) -> float:
        return (self.world - 1) / self.world

    def exchange(self, x: Any, result: Any) -> Callable[[Any], Any]:
        import torch.distributed as dist

        exchange = getattr(dist, self.torch_function)

        def step(x: Any) -> Any:
            exchange(result, x)
            return result

        return step


@dataclass(frozen=True)
class AllGather(_InParts):
    """The whole of n elements, in every rank, from a part in each, as sharded parameters before a layer."""

    summary = "parts of an array joined, in every rank"
    torch_function = "all_gather_into_tensor"

    def lacks(self, backend: str, dtype: Dtype) -> str:
        if backend == "tensorflow" and dtype is Dtype.BFLOAT16:
            return "TensorFlow gathers no bfloat16"
        return super().lacks(backend, dtype)

    @property
    def sent(self) -> int:
        return self.part

    @property
    def received(self) -> int:
        return self.size

    def elements(self, rows: Array, index: Indices) -> Any:
        """Elements of the parts, one after the other."""
        element = index[:, 1]
        return rows[element // self.part, element % self.part]

    def spmd(self, x: Any) -> Any:
        return x.reshape(1, -1).repeat(self.world, 1)

    def lax(self, row: Any, axis: str) -> Any:
        import jax

        return jax.lax.all_gather(row, axis, tiled=True)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        return in_replicas(
            context, self.stacked(arrays), lambda replica, row: replica.all_gather(row, axis=0)
        )


@dataclass(frozen=True)
class AllToAll(_InParts):
    """A part of each rank's array of n elements to each rank, as layers of experts exchange tokens."""

    summary = "a part of each rank's array to each rank"
    torch_function = "all_to_all_single"
    unsupported: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no all_to_all"}

    @property
    def sent(self) -> int:
        return self.size

    @property
    def received(self) -> int:
        return self.size

    def elements(self, rows: Array, index: Indices) -> Any:
        """The rank's part of each array, one after the other."""
        rank, element = index.T
        source, offset = element // self.part, element % self.part
        return rows[source, rank * self.part + offset]

    def spmd(self, x: Any) -> Any:
        parts = x.reshape(self.world, self.world, self.part)
        return parts.transpose(0, 1).reshape(self.world, self.size)

    def lax(self, row: Any, axis: str) -> Any:
        import jax

        return jax.lax.all_to_all(row, axis, split_axis=0, concat_axis=0, tiled=True)


@dataclass(frozen=True)
class ReduceScatter(_InParts):
    """The sum of the ranks' arrays of n elements, a part in each rank, as sharded gradients end up."""

    summary = "sum of an array over ranks, a part in each"
    torch_function = "reduce_scatter_tensor"
    unsupported: ClassVar[Mapping[str, str]] = {"tensorflow": f"{OF_TENSORFLOW}, and no reduce_scatter"}
    reduction = 1  # no product is summed, but sums accumulate

    @property
    def roundings(self) -> int:
        return self.world

    @property
    def sent(self) -> int:
        return self.size

    @property
    def received(self) -> int:
        return self.part

    def elements(self, rows: Array, index: Indices) -> Any:
        """Sums of the elements of the rank's part."""
        return rows[:, index[:, 0] * self.part + index[:, 1]].sum(axis=0, dtype=float)

    def spmd(self, x: Any) -> Any:
        return x.sum(0).reshape(self.world, -1)

    def lax(self, row: Any, axis: str) -> Any:
        import jax

        return jax.lax.psum_scatter(row, axis, tiled=True)


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
