"""One step of training an image classifier with SGD and momentum, in each framework and in float64.

A network gives its forward function; the loss, the way back and the update stand here, side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchbench.workloads import _amp as amp
from benchbench.workloads._weights import is_learnt, nhwc, put_jax, tensorflow_variables, weights_of
from benchbench.workloads.base import LEARNING_RATE, MOMENTUM, DeviceContext, Program

if TYPE_CHECKING:
    from benchbench.workloads._float64 import Array, Node, Tape
    from benchbench.workloads.base import Arrays


def torch_training(context: DeviceContext, arrays: Arrays, model: Any) -> Program:
    """`model` maps NCHW images to logits."""
    import torch
    import torch.nn.functional as F

    images = context.put(arrays["images"]).contiguous(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)

    scaler = torch.amp.GradScaler(
        context.device.type, amp.SCALE, amp.GROWTH, amp.BACKOFF, amp.INTERVAL, enabled=amp.is_scaled(context)
    )
    mixed = context.compute is not None

    def step(images: Any, labels: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(context.device.type, context.compute, enabled=mixed):
            logits = model(images)
        loss = F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def momenta() -> list[Any]:
        # there is no buffer before the first step
        return [optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)) for p in parameters]

    return Program(step, (images, context.put(arrays["labels"])), momenta=momenta)


def tensorflow_training(
    context: DeviceContext, arrays: Arrays, forward: Callable[[dict[str, Any], Any], Any]
) -> Program:
    """`forward(variables, images)` maps NHWC images to logits, and moves the running statistics.

    The update is TensorFlow's own fused kernel: v ← momentum · v + g, p ← p − learning rate · v.
    """
    import tensorflow as tf

    variables = tensorflow_variables(context, arrays)
    learnt = [variable for name, variable in variables.items() if is_learnt(name)]
    with tf.device(context.device):
        velocity = [tf.Variable(tf.zeros_like(variable), trainable=False) for variable in learnt]

    def update(gradients: list[Any]) -> None:
        rate, momentum = (tf.constant(value, context.dtype) for value in (LEARNING_RATE, MOMENTUM))
        for p, v, g in zip(learnt, velocity, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(var=p.handle, accum=v.handle, lr=rate, grad=g, momentum=momentum)

    scale = amp.TensorFlowScale(context) if amp.is_scaled(context) else None

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = forward(*amp.tensorflow_cast(context, variables, images))
            wide = logits if logits.dtype == tf.float64 else tf.cast(logits, tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, wide))
            differentiated = scale.up(loss) if scale else loss
        gradients = tape.gradient(differentiated, learnt)
        if scale:
            scale.apply(gradients, update)
        else:
            update(gradients)
        return loss

    def momenta() -> list[Any]:
        return [tf.identity(v) for v in velocity]

    return Program(
        step, (context.put(nhwc(arrays["images"])), context.put(arrays["labels"])), momenta=momenta
    )


def jax_training(
    context: DeviceContext,
    arrays: Arrays,
    forward: Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]],
) -> Program:
    """`forward(weights, images)`, NHWC, returns the logits and the next running statistics.

    The state is (parameters, velocity, running statistics and loss scale), each by name.
    """
    import jax
    import jax.numpy as jnp

    scaled = amp.is_scaled(context)

    def loss_of(parameters: Any, carried: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        narrow, narrow_images = amp.jax_cast(context, parameters, images)
        logits, statistics = forward(narrow | carried["statistics"], narrow_images)
        log_softmax = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
        loss = -jnp.take_along_axis(log_softmax, labels[:, None], axis=1).mean()
        return loss * carried["scale"]["scale"] if scaled else loss, (loss, statistics)

    def step(parameters: Any, velocity: Any, carried: Any, images: Any, labels: Any) -> Any:
        def update(gradient: Any) -> Any:
            moved = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradient)
            return jax.tree.map(lambda p, v: p - LEARNING_RATE * v, parameters, moved), moved

        gradient_of = jax.grad(loss_of, has_aux=True)
        gradient, (loss, statistics) = gradient_of(parameters, carried, images, labels)
        if not scaled:
            return *update(gradient), {"statistics": statistics, "scale": {}}, loss
        after, scale = amp.jax_apply(carried["scale"], gradient, update, (parameters, velocity))
        return *after, {"statistics": statistics, "scale": scale}, loss

    weights = put_jax(context, arrays)
    statistics = {name: weights.pop(name) for name in list(weights) if not is_learnt(name)}
    inputs = (context.put(nhwc(arrays["images"])), context.put(arrays["labels"]))
    velocity = jax.tree.map(jnp.zeros_like, weights)
    carried = {"statistics": statistics, "scale": amp.jax_scale() if scaled else {}}
    return Program(step, inputs, (weights, velocity, carried), momenta=lambda _p, v, _c: list(v.values()))


def float64_training(
    arrays: Arrays, steps: int, forward: Callable[[Tape, dict[str, Node], Node], Node]
) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step; `forward(tape, weights, images)` returns the logits."""
    import numpy as np

    from benchbench.workloads._float64 import norm

    values = {name: array.astype(float) for name, array in weights_of(arrays).items() if is_learnt(name)}
    velocity = {name: np.zeros_like(value) for name, value in values.items()}
    results = []
    for _ in range(steps):
        loss, gradients = float64_gradients(arrays, values, forward)
        results.append((loss, norm(gradients.values())))
        velocity = {name: MOMENTUM * velocity[name] + gradients[name] for name in values}
        values = {name: values[name] - LEARNING_RATE * velocity[name] for name in values}
    return results


def float64_gradients(
    arrays: Arrays, values: dict[str, Array], forward: Callable[[Tape, dict[str, Node], Node], Node]
) -> tuple[float, dict[str, Array]]:
    """The loss, and its gradient with respect to each of `values`."""
    from benchbench.workloads._float64 import Node, Tape, cross_entropy

    tape = Tape(training=True)
    nodes = {name: Node(value) for name, value in values.items()}
    logits = forward(tape, nodes, Node(arrays["images"].astype(float)))
    loss = tape.apply(cross_entropy, logits, labels=arrays["labels"])
    return float(loss.value), tape.gradients(loss, nodes)
