"""A network's programs in TensorFlow: operations on variables, images NHWC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads import _amp as amp
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The forward function of the variables."""
    weights = variables(network, context, arrays)

    def step(*inputs: Any) -> Any:
        return network.tensorflow(weights, *inputs, training=False)

    return Program(step, network.channels_last_inputs(context, arrays))


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """A gradient tape, and the optimizer's own fused kernel where TensorFlow has it."""
    import tensorflow as tf

    weights = variables(network, context, arrays)
    layouts = network.weights()
    learnt = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    with tf.device(context.device):
        count = tf.Variable(0, trainable=False, dtype=tf.int64) if optimizer.counts else None
        slots = {
            name: {slot: tf.Variable(tf.zeros_like(p), trainable=False) for slot in optimizer.slots}
            for name, p in learnt.items()
        }
    scale = amp.TensorFlowScale(context) if amp.is_scaled(context) else None

    def update(gradients: list[Any]) -> None:
        t = None if count is None else count.assign_add(1)
        for (name, p), g in zip(learnt.items(), gradients, strict=True):
            optimizer.tensorflow(t, p, g, slots[name])

    def step(*inputs: Any) -> Any:
        *inputs, targets = inputs  # type: ignore[assignment]
        with tf.GradientTape() as tape:
            narrow, narrow_inputs = amp.tensorflow_cast(context, weights, inputs)
            output = network.tensorflow(narrow, *narrow_inputs, training=True)
            loss = network.loss.tensorflow(output, targets)
            differentiated = scale.up(loss) if scale else loss
        sparse = tape.gradient(differentiated, list(learnt.values()))
        gradients = [tf.convert_to_tensor(gradient) for gradient in sparse]  # of rows looked up
        if scale:
            scale.apply(gradients, update)
        else:
            update(gradients)
        return loss

    def as_in_torch(name: str, tensor: Any) -> Any:
        return layouts[name].as_in_torch(tf.convert_to_tensor(tensor), tf.reshape, tf.transpose)

    def gradients() -> dict[str, Any]:
        return {name: as_in_torch(name, optimizer.gradient(slots[name])) for name in learnt}

    return Program(
        step,
        (*network.channels_last_inputs(context, arrays), context.put(arrays[network.loss.target])),
        parameters=lambda: {name: as_in_torch(name, p) for name, p in learnt.items()},
        gradients=gradients if optimizer.slots else None,
    )


def variables(network: Network, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Weights by name, on the device."""
    import tensorflow as tf

    with tf.device(context.device):
        return {
            name: tf.Variable(context.put(weight.channels_last(arrays[name])), trainable=weight.is_learnt)
            for name, weight in network.weights().items()
        }
