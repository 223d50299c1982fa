"""Pipelined training step in JAX: each device has equally many blocks, and micro-batches pass between them.

GPipe's schedule as a scan under jax.shard_map: in each tick, a device applies its blocks to the tensor that
the previous device passed on by jax.lax.ppermute (docs.jax.dev/en/latest/notebooks/shard_map.html, "Pipeline
parallelism"). All devices compute the layers before and after the blocks, each for a part of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.errors import Unsupported
from benchbench.workloads import _amp as amp
from benchbench.workloads._collective import AXIS
from benchbench.workloads._forward import Place
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs.jax import (
    apply_rule,
    as_in_torch,
    counter_of,
    fetched,
    mesh_of,
    put,
    sharding_along,
    with_state_on,
)
from benchbench.workloads._programs.jax_layers import JaxForward
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import BlockChain

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

# Weights by PyTorch's names. Those of all blocks are stacked under the names of the first block.
Weights = Mapping[str, Any]


def pipelined_scan(
    network: BlockChain, optimizer: Optimizer, schedule: str, context: DeviceContext, arrays: Arrays
) -> Program:
    """Program whose state is (parameters, optimizer state of each, a counter and unlearnt tables)."""
    import jax
    import jax.numpy as jnp

    blocks, devices = len(network.blocks), network.placement.devices
    if blocks % devices:
        raise Unsupported(f"{blocks} blocks cannot be divided into {devices} equal stages, as JAX needs")
    if schedule != "gpipe":
        raise Unsupported(
            f"JAX supports only the schedule gpipe, not {schedule}, since a scan is reversed whole"
        )
    stages, layouts = Stages(network, context, mesh_of(context)), network.weights()
    weights = stages.stacked(put(network, context, arrays))
    parameters = {name: w for name, w in weights.items() if layouts[name].is_learnt}
    slots = {name: {slot: jnp.zeros_like(p) for slot in optimizer.slots} for name, p in parameters.items()}
    tables = {name: w for name, w in weights.items() if name not in parameters}
    state = parameters, slots, {"tables": tables, "counter": counter_of(optimizer, context)}
    names = (*network.input_names, *network.target_names)
    batch = tuple(context.put(arrays[name]) for name in names)

    def by_block(now: Weights) -> dict[str, Any]:
        return {name: as_in_torch(layouts[name], array) for name, array in stages.unstacked(now)}

    def gradients(_parameters: Any, slots: Any, _carried: Any) -> dict[str, Any]:
        return by_block({name: optimizer.gradient(s) for name, s in fetched(slots)})

    shardings = stages.shardings(state)
    return Program(
        with_state_on(_step(stages, optimizer), shardings),
        jax.device_put(batch, stages.along_batch),
        jax.device_put(state, shardings),
        parameters=lambda now, _slots, _carried: by_block(dict(fetched(now))),
        gradients=gradients if optimizer.slots else None,
    )


def _step(stages: Stages, optimizer: Optimizer) -> Any:
    """Return a function for one update, which returns the next state and the loss."""
    import jax

    (objective,) = stages.network.objectives
    scaled = amp.is_scaled(stages.context)

    def loss_of(parameters: Any, carried: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        loss = objective.loss.jax(stages.output(parameters, carried["tables"], inputs), targets)
        return loss * carried["counter"]["scale"]["scale"] if scaled else loss, loss

    def step(parameters: Any, slots: Any, carried: Any, inputs: Any, targets: Any) -> Any:
        counter = carried["counter"]
        t = counter["count"] + 1 if optimizer.counts else None
        gradients, loss = jax.grad(loss_of, has_aux=True)(parameters, carried, inputs, targets)

        def update(unscaled: Any) -> Any:
            return apply_rule(optimizer, t, parameters, unscaled, slots)

        updated, scale = update(gradients), counter["scale"]
        if scaled:
            updated, scale = amp.jax_apply(scale, gradients, update, (parameters, slots))
        return *updated, {**carried, "counter": {"scale": scale, "count": t}}, loss

    return step


@dataclass(frozen=True)
class Stages:
    """A network whose blocks' weights are stacked along a first axis, which the mesh's devices divide."""

    network: BlockChain
    context: DeviceContext
    mesh: Any

    def stacked(self, weights: Weights) -> dict[str, Any]:
        """The weights with one array for all blocks, under its name in the first block."""
        import jax.numpy as jnp

        first, *other_blocks = self.network.blocks
        other_prefixes = tuple(f"{block}." for block in other_blocks)

        def stack(name: str) -> Any:
            return jnp.stack([weights[block + name.removeprefix(first)] for block in (first, *other_blocks)])

        return {
            name: stack(name) if self.is_stacked(name) else weight
            for name, weight in weights.items()
            if not name.startswith(other_prefixes)
        }

    def unstacked(self, stacked: Weights) -> Iterator[tuple[str, Any]]:
        """Yield the weights with each block's array under its own name."""
        first, *_ = blocks = self.network.blocks
        for name, array in stacked.items():
            if not self.is_stacked(name):
                yield name, array
            else:
                for at, block in enumerate(blocks):
                    yield block + name.removeprefix(first), array[at]

    def is_stacked(self, name: str) -> bool:
        """True if this array contains the weights of all blocks."""
        return name.startswith(f"{self.network.blocks[0]}.")

    def shardings(self, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        """Sharding of each array of a step's state."""
        import jax

        parameters, slots, carried = state
        by_name = {name: self.sharding(divided=self.is_stacked(name)) for name in parameters}
        replicated = jax.tree.map(lambda _: self.sharding(divided=False), carried)
        return (
            by_name,
            {name: dict.fromkeys(names, by_name[name]) for name, names in slots.items()},
            replicated,
        )

    @property
    def along_batch(self) -> Any:
        """Sharding of the batch: divided among the devices if equal parts are possible."""
        return self.sharding(divided=self.network.batch % self.network.placement.devices == 0)

    def sharding(self, *, divided: bool) -> Any:
        """Sharding along the first axis, or replicated."""
        return sharding_along(self.mesh, 0 if divided else None)

    def output(self, parameters: Weights, tables: Weights, inputs: Any) -> Any:
        """The network's output for the whole batch."""
        from jax.lax import with_sharding_constraint

        network, narrow = self.network, self._cast(parameters)
        _, (inputs,) = amp.jax_cast(self.context, {}, (inputs,))
        x = network.embed(JaxForward({**narrow, **tables}), inputs, Place())
        x = with_sharding_constraint(x, self.along_batch)
        blocks = {name: weight for name, weight in narrow.items() if self.is_stacked(name)}
        chunks = x.reshape(network.accumulate, -1, *x.shape[1:])
        x = self._through_blocks(blocks, tables, chunks).reshape(x.shape)
        return network.output(JaxForward(narrow), with_sharding_constraint(x, self.along_batch))

    def _cast(self, parameters: Weights) -> dict[str, Any]:
        """Cast matrices to 16 bits for mixed precision; vectors, also stacked ones, are unchanged."""
        if self.context.compute is None:
            return dict(parameters)
        return {
            name: w.astype(self.context.compute) if w.ndim - self.is_stacked(name) > 1 else w
            for name, w in parameters.items()
        }

    def _through_blocks(self, blocks: Weights, tables: Weights, chunks: Any) -> Any:
        """Output of the last stage for each micro-batch; `chunks` are inputs of the first stage."""
        import jax
        import jax.numpy as jnp
        from jax import lax
        from jax.sharding import PartitionSpec as P

        network = self.network
        first, stages = network.blocks[0], network.placement.devices
        onwards = [(stage, stage + 1) for stage in range(stages - 1)]

        def run_stage(weights_of_stage: Any, tables: Any, chunks: Any) -> Any:
            is_first = lax.axis_index(AXIS) == 0

            def apply_block(x: Any, weights: Any) -> tuple[Any, None]:
                nn = JaxForward(weights | tables).within(first)
                place = Place(tables=nn.tables(network.read_by_blocks, x, None))
                return network.block(nn, x, place), None

            def tick(received: Any, chunk: Any) -> tuple[Any, Any]:
                x, _ = lax.scan(apply_block, jnp.where(is_first, chunk, received), weights_of_stage)
                return lax.ppermute(x, AXIS, onwards), x

            # Until the first micro-batch arrives, and after the last has left, a stage computes with zeros.
            zeros = jnp.zeros((stages - 1, *chunks.shape[1:]), chunks.dtype)
            _, handed_on = lax.scan(tick, zeros[0], jnp.concatenate([chunks, zeros]))
            return handed_on[stages - 1 :]

        run_stages = jax.shard_map(
            run_stage, mesh=self.mesh, in_specs=(P(AXIS), P(), P()), out_specs=P(AXIS), check_vma=False
        )
        return run_stages(blocks, tables, chunks)[-len(chunks) :]
