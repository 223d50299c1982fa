"""A network's programs in JAX: pure functions of the weights, images NHWC."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

from benchbench.workloads import _amp as amp
from benchbench.workloads._layouts import images_layout
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs import jax_parallel
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network, batch_statistics, grouped_by_device

if TYPE_CHECKING:
    from benchbench.workloads._weights import Weight
    from benchbench.workloads.base import Arrays


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The weights are arguments, else XLA would take them for constants."""

    def step(weights: Any, *inputs: Any) -> Any:
        return network.jax(dict(weights), *inputs, training=False)

    held = put(network, context, arrays)

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return held, *network.channels_last_inputs(context.put, arrays)

    layout = images_layout(context, network.image_axes)
    return Program(step, given(arrays), layout=layout, inputs_of=given)


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """The state is that of `_first_state`."""
    layouts = network.weights()
    descents = [_descent(network, objective, optimizer, context) for objective in network.objectives]
    count = len(network.input_names)

    def step(parameters: Any, slots: Any, carried: Any, *inputs: Any) -> Any:
        targets = dict(zip(network.target_names, inputs[count:], strict=True))
        state, counters, losses = (parameters, slots, carried["statistics"]), [], []
        for descend, own in zip(descents, carried["counters"], strict=True):
            state, counter, loss = descend(state, own, inputs[:count], targets)
            counters.append(counter)
            losses.append(loss)
        parameters, slots, statistics = state
        return parameters, slots, {"statistics": statistics, "counters": counters}, reduce(add, losses)

    def gradients(_now: Any, kept: Any, _carried: Any) -> dict[str, Any]:
        return {name: as_in_torch(layouts[name], optimizer.gradient(own)) for name, own in fetched(kept)}

    given = partial(_batch_of, network, context)
    program = Program(
        step,
        given(arrays),
        _first_state(network, optimizer, context, arrays),
        parameters=lambda now, _slots, _carried: {n: as_in_torch(layouts[n], p) for n, p in fetched(now)},
        gradients=gradients if optimizer.slots else None,
        notes=batch_statistics(network, per_device=False),
        layout=images_layout(context, network.image_axes),
        inputs_of=given,
    )
    return jax_parallel.divide_program(network, context, program)


def _batch_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """A training step's inputs and targets."""
    arrays = grouped_by_device(network, arrays)
    targets = (context.put(arrays[name]) for name in network.target_names)
    return *network.channels_last_inputs(context.put, arrays), *targets


def fetched(arrays: Any) -> Iterable[tuple[str, Any]]:
    """Arrays by name in NumPy: laying out each anew on the device would compile a program for each shape."""
    import jax

    return jax.device_get(arrays).items()  # type: ignore[no-any-return]


def as_in_torch(layout: Weight, array: Any) -> Any:
    """The array of `fetched` in PyTorch's layout."""
    import numpy as np

    return layout.as_in_torch(array, np.reshape, np.transpose)


def _first_state(
    network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays
) -> tuple[Any, Any, Any]:
    """(parameters, the optimizer's state of each, running statistics and counters), before the first step."""
    import numpy as np

    weights, layouts = put(network, context, arrays), network.weights()
    parameters = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    # Put, not made there: that would be a program compiled for each shape.
    slots = {
        name: {slot: context.put(np.zeros(p.shape, np.float32)) for slot in optimizer.slots}
        for name, p in parameters.items()
    }
    carried = {
        "statistics": {name: array for name, array in weights.items() if name not in parameters},
        "counters": [counter_of(optimizer, context) for _ in network.objectives],
    }
    return parameters, slots, carried


def counter_of(optimizer: Optimizer, context: DeviceContext) -> dict[str, Any]:
    """The number of an objective's updates so far, and the scale of its loss."""
    import jax.numpy as jnp

    scale = amp.jax_scale() if amp.is_scaled(context) else {}
    return {"scale": scale, "count": jnp.int32(0) if optimizer.counts else None}


def _descent(network: Network, objective: Objective, optimizer: Optimizer, context: DeviceContext) -> Any:
    """One update: (parameters, slots, statistics), a counter, inputs, targets → the next two, the loss."""
    import jax

    scaled = amp.is_scaled(context)

    def loss_of(moved: Any, before: Any, counter: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        parameters, _, statistics = before
        narrow, narrow_inputs = amp.jax_cast(context, parameters | moved, inputs)
        weights = narrow | statistics
        output = network.jax(weights, *narrow_inputs, training=True, **objective.options)
        loss = objective.loss.jax(output, *(targets[name] for name in objective.loss.target_names))
        after = {name: weights[name] for name in statistics}
        return loss * counter["scale"]["scale"] if scaled else loss, (loss, after)

    def descend(before: Any, counter: Any, inputs: Any, targets: Any) -> Any:
        parameters, slots, _ = before
        t = counter["count"] + 1 if optimizer.counts else None
        moved = {name: p for name, p in parameters.items() if objective.moves(name)}
        kept = {name: slots[name] for name in moved}

        def update(gradients: Any) -> Any:
            return apply_rule(optimizer, t, moved, gradients, kept)

        differentiate = over_micro_batches(network, jax.grad(loss_of, has_aux=True))
        gradients, (loss, statistics) = differentiate(moved, before, counter, inputs, targets)
        after, scale = update(gradients), {}
        if scaled:
            after, scale = amp.jax_apply(counter["scale"], gradients, update, (moved, kept))
        next_state = parameters | after[0], slots | after[1], statistics
        return next_state, {"scale": scale, "count": t}, loss

    return descend


def over_micro_batches(network: Network, gradient_of: Any) -> Any:
    """`gradient_of` over micro-batches in turn: mean gradients and loss, and the last statistics."""
    import jax
    import jax.numpy as jnp

    if network.accumulate == 1:
        return gradient_of

    def accumulated(moved: Any, before: Any, counter: Any, inputs: Any, targets: Any) -> Any:
        parameters, slots, first = before

        def add(carried: Any, batch: Any) -> Any:
            sums, statistics = carried
            state = parameters, slots, statistics
            gradients, (loss, statistics) = gradient_of(moved, state, counter, *batch)
            return (jax.tree.map(jnp.add, sums, gradients), statistics), loss

        zeros = jax.tree.map(jnp.zeros_like, moved)
        batches = jax.tree.map(lambda x: jax_parallel.stack_micro_batches(network, x), (inputs, targets))
        (sums, statistics), losses = jax.lax.scan(add, (zeros, first), batches)
        means = jax.tree.map(lambda total: total / network.accumulate, sums)
        return means, (losses.mean(), statistics)

    return accumulated


def apply_rule(optimizer: Optimizer, t: Any, parameters: Any, gradients: Any, slots: Any) -> Any:
    """The next parameters and slots, by name."""
    import jax.numpy as jnp

    after = {name: optimizer.rule(jnp, t, p, gradients[name], slots[name]) for name, p in parameters.items()}
    return {name: p for name, (p, _) in after.items()}, {name: own for name, (_, own) in after.items()}


def put(network: Network, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Weights by name, on the device."""
    return {
        name: context.put(weight.channels_last(arrays[name])) for name, weight in network.weights().items()
    }
