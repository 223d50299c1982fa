"""How the arrays of a training step lie on JAX's devices: XLA divides the computation accordingly.

Scaling Book, "Programming TPUs in JAX" (jax-ml.github.io/scaling-book): sharded inputs and outputs under jit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchbench.workloads._division import marked_axis
from benchbench.workloads._programs.devices import AXIS
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays

Shape = tuple[int, ...]


def divide_program(network: Network, context: DeviceContext, program: Program) -> Program:
    """The program, its arrays laid out on the devices of the placement; as it is on one device."""
    import dataclasses

    import jax

    if network.placement.devices == 1:
        return program
    shardings = Shardings(network, context)

    def sharded(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(jax.device_put(array, shardings.batch) for array in batch)

    def given(arrays: Arrays) -> tuple[Any, ...]:
        assert program.inputs_of
        return sharded(program.inputs_of(arrays))

    of_state = jax.tree.map(lambda leaf: shardings.state(leaf.shape), program.state)
    state = jax.device_put(program.state, of_state)
    return dataclasses.replace(
        program,
        step=with_state_on(program.step, of_state),
        inputs=sharded(program.inputs),
        inputs_of=given,
        state=state,
    )


def stack_micro_batches(network: Network, array: Any) -> Any:
    """The batch's array with micro-batches as its first axis; each device has its part of every one.

    Samples come in the order of `grouped_by_device`.
    """
    devices = network.placement.devices if network.placement.strategy.divides_batch else 1
    by_device = array.reshape(devices, network.accumulate, -1, *array.shape[1:])
    return by_device.swapaxes(0, 1).reshape(network.accumulate, -1, *array.shape[1:])


def mesh_of(context: DeviceContext) -> Any:
    """The devices of the placement, along one axis."""
    import jax
    from jax.sharding import AxisType

    there = jax.devices(context.device.platform)
    devices = [there[number] for number in context.world.numbers(context.device.id)]
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def sharding_along(mesh: Any, axis: int | None) -> Any:
    """An array divided among the devices along that axis; None: the same on every device."""
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(*([None] * axis + [AXIS] if axis is not None else [])))


class Shardings:
    """How a training step's arrays lie on the devices."""

    def __init__(self, network: Network, context: DeviceContext) -> None:
        self._mesh = mesh_of(context)
        self._strategy = network.placement.strategy
        self._count = network.placement.devices

    @property
    def batch(self) -> Any:
        """Divided along the first axis where the strategy divides the batch, else whole on every device."""
        return self._along(0 if self._strategy.divides_batch else None)

    def state(self, shape: Shape) -> Any:
        """The sharding of an array of the state: see `marked_axis`; the last axis is that of outputs."""
        return self._along(marked_axis(self._strategy, shape, self._count, outputs=len(shape) - 1))

    def _along(self, axis: int | None) -> Any:
        return sharding_along(self._mesh, axis)


def with_state_on(step: Callable[..., Any], shardings: tuple[Any, ...]) -> Callable[..., Any]:
    """The step, its next state constrained to these shardings: left to itself, XLA may move it."""
    import jax

    def constrained(*arguments: Any) -> Any:
        *state, output = step(*arguments)
        return (*jax.lax.with_sharding_constraint(tuple(state), shardings), output)

    return constrained
