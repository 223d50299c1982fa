"""A network's programs in TensorFlow: operations on variables, images NHWC."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

from benchbench.workloads import _amp as amp
from benchbench.workloads._layouts import images_layout
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs import tensorflow_parallel as parallel
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network, batch_statistics, grouped_by_device

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The forward function of the variables."""
    weights = variables(network, context, arrays)

    def step(*inputs: Any) -> Any:
        return network.tensorflow(weights, *inputs, training=False)

    given = partial(network.channels_last_inputs, context.put)
    layout = images_layout(context, network.image_axes)
    return Program(step, given(arrays), layout=layout, inputs_of=given)


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """A gradient tape and, where TensorFlow has it, the optimizer's fused kernel: for each objective."""
    import tensorflow as tf

    weights = variables(network, context, arrays)
    layouts = network.weights()
    learnt = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    with tf.device(context.device):
        slots = {
            name: {slot: tf.Variable(tf.zeros_like(p), trainable=False) for slot in optimizer.slots}
            for name, p in learnt.items()
        }
    descents = [
        _descent(network, objective, _update(objective, optimizer, context, learnt, slots), context, weights)
        for objective in network.objectives
    ]
    count = len(network.input_names)

    def step(*inputs: Any) -> Any:
        targets = dict(zip(network.target_names, inputs[count:], strict=True))
        return reduce(add, [descend(inputs[:count], targets) for descend in descents])

    def as_in_torch(name: str, tensor: Any) -> Any:
        return layouts[name].as_in_torch(tf.convert_to_tensor(tensor), tf.reshape, tf.transpose)

    def gradients() -> dict[str, Any]:
        kept = {name: {key: tf.convert_to_tensor(s) for key, s in own.items()} for name, own in slots.items()}
        return {name: as_in_torch(name, optimizer.gradient(kept[name])) for name in learnt}

    given = partial(_batch_of, network, context)
    return Program(
        parallel.run_in_replicas(context, step),
        given(arrays),
        parameters=lambda: {name: as_in_torch(name, p) for name, p in learnt.items()},
        gradients=gradients if optimizer.slots else None,
        notes=batch_statistics(network, per_device=True),
        layout=images_layout(context, network.image_axes),
        inputs_of=given,
    )


def _batch_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """A training step's inputs and targets: of several devices, a part on each."""
    arrays, put = grouped_by_device(network, arrays), partial(parallel.put_parts, context)
    return *network.channels_last_inputs(put, arrays), *(put(arrays[name]) for name in network.target_names)


def _update(
    objective: Objective, optimizer: Optimizer, context: DeviceContext, learnt: Any, slots: Any
) -> tuple[list[Any], Any]:
    """The variables that the objective moves, and a function of their gradients that moves them."""
    import tensorflow as tf

    moved = {name: p for name, p in learnt.items() if objective.moves(name)}
    with tf.device(context.device):
        count = tf.Variable(0, trainable=False, dtype=tf.int64) if optimizer.counts else None

    def update(gradients: list[Any]) -> None:
        own = partial(parallel.own_copy, context)
        t = None if count is None else own(count).assign_add(1)
        for (name, p), g in zip(moved.items(), gradients, strict=True):
            optimizer.tensorflow(t, own(p), g, {key: own(s) for key, s in slots[name].items()})

    return list(moved.values()), update


def _descent(
    network: Network, objective: Objective, moving: Any, context: DeviceContext, weights: dict[str, Any]
) -> Any:
    """One update, of the inputs and the targets by name: gives the loss."""
    import tensorflow as tf

    moved, update = moving
    scale = (
        amp.TensorFlowScale(context, partial(parallel.own_copy, context)) if amp.is_scaled(context) else None
    )

    def differentiate(inputs: Any, targets: dict[str, Any]) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            narrow, narrow_inputs = amp.tensorflow_cast(context, weights, inputs)
            output = network.tensorflow(narrow, *narrow_inputs, training=True, **objective.options)
            loss = objective.loss.tensorflow(output, *(targets[name] for name in objective.loss.target_names))
            differentiated = scale.up(loss) if scale else loss
        sparse = tape.gradient(differentiated, moved)
        return loss, [tf.convert_to_tensor(gradient) for gradient in sparse]  # of rows looked up

    def descend(inputs: Any, targets: dict[str, Any]) -> Any:
        loss, own = _accumulated(network, differentiate, inputs, targets)
        gradients = parallel.average_gradients(context, own)
        if scale:
            scale.apply(gradients, update)
        else:
            update(gradients)
        return loss

    return descend


def _accumulated(
    network: Network,
    differentiate: Callable[..., tuple[Any, list[Any]]],
    inputs: Any,
    targets: dict[str, Any],
) -> tuple[Any, list[Any]]:
    """Means of the loss and of gradients over micro-batches, which are computed in turn."""
    import tensorflow as tf

    count = network.accumulate
    if count == 1:
        return differentiate(inputs, targets)
    parts = zip(*(tf.split(tensor, count) for tensor in (*inputs, *targets.values())), strict=True)
    sums: list[Any] = []
    for part in parts:
        given, aims = part[: len(inputs)], part[len(inputs) :]
        with tf.control_dependencies(sums):  # else all would be in memory at once
            loss, gradients = differentiate(given, dict(zip(targets, aims, strict=True)))
            new = [loss, *gradients]
            sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
    loss, *gradients = (total / count for total in sums)
    return loss, gradients


def variables(network: Network, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Weights by name, on the device."""
    import tensorflow as tf

    with tf.device(context.device):
        return {
            name: parallel.make_variable(
                context, context.put(weight.channels_last(arrays[name])), is_learnt=weight.is_learnt
            )
            for name, weight in network.weights().items()
        }
