"""A network's programs in JAX: pure functions of the weights, images NHWC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads import _amp as amp
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The weights are arguments, else XLA would take them for constants."""

    def step(weights: Any, *inputs: Any) -> Any:
        return network.jax(dict(weights), *inputs, training=False)

    return Program(step, (put(network, context, arrays), *network.channels_last_inputs(context, arrays)))


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """The state is (parameters, what the optimizer keeps of each, running statistics and counters)."""
    import jax
    import jax.numpy as jnp

    scaled = amp.is_scaled(context)

    def loss_of(parameters: Any, carried: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        narrow, narrow_inputs = amp.jax_cast(context, parameters, inputs)
        weights = narrow | carried["statistics"]
        output = network.jax(weights, *narrow_inputs, training=True)
        loss = network.loss.jax(output, targets)
        statistics = {name: weights[name] for name in carried["statistics"]}
        return loss * carried["scale"]["scale"] if scaled else loss, (loss, statistics)

    def step(parameters: Any, slots: Any, carried: Any, *inputs: Any) -> Any:
        *inputs, targets = inputs  # type: ignore[assignment]
        t = carried["count"] + 1 if optimizer.counts else None

        def update(gradients: Any) -> Any:
            return _updated(optimizer, t, parameters, gradients, slots)

        gradient_of = jax.grad(loss_of, has_aux=True)
        gradients, (loss, statistics) = gradient_of(parameters, carried, inputs, targets)
        after, scale = update(gradients), {}
        if scaled:
            after, scale = amp.jax_apply(carried["scale"], gradients, update, (parameters, slots))
        return *after, {"statistics": statistics, "scale": scale, "count": t}, loss

    def as_in_torch(name: str, array: Any) -> Any:
        return layouts[name].as_in_torch(array, jnp.reshape, jnp.transpose)

    def gradients(_now: Any, kept: Any, _carried: Any) -> dict[str, Any]:
        return {name: as_in_torch(name, optimizer.gradient(own)) for name, own in kept.items()}

    weights, layouts = put(network, context, arrays), network.weights()
    parameters = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    slots = {name: {slot: jnp.zeros_like(p) for slot in optimizer.slots} for name, p in parameters.items()}
    carried = {
        "statistics": {name: array for name, array in weights.items() if name not in parameters},
        "scale": amp.jax_scale() if scaled else {},
        "count": jnp.int32(0) if optimizer.counts else None,
    }
    return Program(
        step,
        (*network.channels_last_inputs(context, arrays), context.put(arrays[network.loss.target])),
        (parameters, slots, carried),
        parameters=lambda now, _slots, _carried: {name: as_in_torch(name, p) for name, p in now.items()},
        gradients=gradients if optimizer.slots else None,
    )


def _updated(optimizer: Optimizer, t: Any, parameters: Any, gradients: Any, slots: Any) -> Any:
    """The next parameters and slots, by name."""
    import jax.numpy as jnp

    after = {name: optimizer.rule(jnp, t, p, gradients[name], slots[name]) for name, p in parameters.items()}
    return {name: p for name, (p, _) in after.items()}, {name: own for name, (_, own) in after.items()}


def put(network: Network, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Weights by name, on the device."""
    return {
        name: context.put(weight.channels_last(arrays[name])) for name, weight in network.weights().items()
    }
