"""Programs of networks in TensorFlow, as operations on variables with NHWC images.

With several devices, a step is built in the scope of a tf.distribute.MirroredStrategy. Each replica
differentiates its part of the batch, gradients are averaged, and each replica updates its own copies of the
variables. Images are read by tf.data.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Array, Indices
from benchbench.workloads import _amp as amp
from benchbench.workloads._image_sets import DEVIATION, MEAN, PLACE_BITS, PREFETCHED, ImageSet
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs.tensorflow_layers import TensorFlowForward
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network, batch_statistics, grouped_by_device
from benchbench.workloads.program import images_layout

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """Program of the forward pass on variables."""
    weights = variables(network, context, arrays)

    def step(*inputs: Any) -> Any:
        return network.apply(TensorFlowForward(weights), *inputs)

    make_inputs = partial(network.channels_last_inputs, context.put)
    layout = images_layout(context, network.image_axes)
    return Program(step, make_inputs(arrays), layout=layout, inputs_of=make_inputs)


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """Program with a gradient tape and, if available, the optimizer's fused kernel, for each objective."""
    import tensorflow as tf

    weights = variables(network, context, arrays)
    layouts = network.weights()
    learnt = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    with tf.device(context.device):
        slots = {
            name: {slot: tf.Variable(tf.zeros_like(p), trainable=False) for slot in optimizer.slots}
            for name, p in learnt.items()
        }
    with tf.device(context.device):
        counters = [
            tf.Variable(0, trainable=False, dtype=tf.int64) if optimizer.counts else None
            for _ in network.objectives
        ]
    updates = [
        _update(objective, optimizer, context, learnt, slots, counter)
        for objective, counter in zip(network.objectives, counters, strict=True)
    ]
    descents = [
        _descent(network, objective, update, context, weights)
        for objective, update in zip(network.objectives, updates, strict=True)
    ]
    count = len(network.input_names)

    def step(*inputs: Any) -> Any:
        targets = dict(zip(network.target_names, inputs[count:], strict=True))
        return reduce(add, [descend(inputs[:count], targets) for descend in descents])

    def as_in_torch(name: str, tensor: Any) -> Any:
        return layouts[name].as_in_torch(tf.convert_to_tensor(tensor), tf.reshape, tf.transpose)

    def gradients() -> dict[str, Any]:
        slot_values = {
            name: {key: tf.convert_to_tensor(s) for key, s in slots_of_parameter.items()}
            for name, slots_of_parameter in slots.items()
        }
        return {name: as_in_torch(name, optimizer.gradient(slot_values[name])) for name in learnt}

    def restart(arrays: Arrays) -> tuple[Any, ...]:
        for name, weight in layouts.items():
            weights[name].assign(context.put(weight.channels_last(arrays[name])))
        slot_values = (slot for slots_of_parameter in slots.values() for slot in slots_of_parameter.values())
        for variable in (*slot_values, *(counter for counter in counters if counter is not None)):
            variable.assign(tf.zeros_like(variable))
        return ()

    make_batch = partial(_batch_of, network, context)
    return Program(
        run_in_replicas(context, step),
        make_batch(arrays),
        parameters=lambda: {name: as_in_torch(name, p) for name, p in learnt.items()},
        gradients=gradients if optimizer.slots else None,
        notes=batch_statistics(network, per_device=True),
        layout=images_layout(context, network.image_axes),
        inputs_of=make_batch,
        restart=restart if context.world.devices == 1 else None,
    )


def generation(
    network: Any, context: DeviceContext, arrays: Arrays
) -> Program:  # `network`: a Decoder, which imports this package
    """Program with the cache in variables, of which a step assigns a slice."""
    import numpy as np
    import tensorflow as tf

    weights = variables(network, context, arrays)
    zeros = context.put(np.zeros(network.cache_shape, np.float32))
    with tf.device(context.device):
        cache = {
            name: tuple(tf.Variable(zeros, trainable=False) for _ in ("keys", "values"))
            for name in network.blocks
        }

    def step(tokens: Any, positions: Any) -> Any:
        return network.apply(TensorFlowForward(weights), tokens, positions, cache)

    first = network.length - network.rows
    if first:
        step(context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
        return context.put(arrays["tokens"]), positions

    return Program(step, make_inputs(arrays), inputs_of=make_inputs)


def _batch_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """Inputs and targets of a training step; with several devices, a part on each."""
    arrays, put = grouped_by_device(network, arrays), partial(put_parts, context)
    return *network.channels_last_inputs(put, arrays), *(put(arrays[name]) for name in network.target_names)


def _update(
    objective: Objective, optimizer: Optimizer, context: DeviceContext, learnt: Any, slots: Any, count: Any
) -> tuple[list[Any], Any]:
    """Return the variables that the objective changes, and a function that updates them with their gradients.

    `count` is the variable with the number of updates, for an optimizer that needs it.
    """
    moving = {name: p for name, p in learnt.items() if objective.moves(name)}

    def update(gradients: list[Any]) -> None:
        local = partial(replica_copy, context)
        t = None if count is None else local(count).assign_add(1)
        for (name, p), g in zip(moving.items(), gradients, strict=True):
            optimizer.tensorflow(t, local(p), g, {key: local(s) for key, s in slots[name].items()})

    return list(moving.values()), update


def _descent(
    network: Network, objective: Objective, update_of: Any, context: DeviceContext, weights: dict[str, Any]
) -> Any:
    """Return a function for one update: it takes inputs and targets by name, and returns the loss."""
    import tensorflow as tf

    moving, update = update_of
    scale = amp.TensorFlowScale(context, partial(replica_copy, context)) if amp.is_scaled(context) else None

    def differentiate(inputs: Any, targets: dict[str, Any]) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            narrow, narrow_inputs = amp.tensorflow_cast(context, weights, inputs)
            nn = TensorFlowForward(narrow, training=True, gathers_statistics=network.gathers_statistics)
            output = network.apply(nn, *narrow_inputs, **objective.options)
            loss = objective.loss.tensorflow(output, *(targets[name] for name in objective.loss.target_names))
            differentiated = scale.up(loss) if scale else loss
        sparse = tape.gradient(differentiated, moving)
        return loss, [tf.convert_to_tensor(gradient) for gradient in sparse]  # of rows looked up

    def descend(inputs: Any, targets: dict[str, Any]) -> Any:
        loss, local_gradients = _accumulated(network, differentiate, inputs, targets)
        gradients = average_gradients(context, local_gradients)
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
    """Means of the loss and gradients over micro-batches, which are computed in turn."""
    import tensorflow as tf

    count = network.accumulate
    if count == 1:
        return differentiate(inputs, targets)
    parts = zip(*(tf.split(tensor, count) for tensor in (*inputs, *targets.values())), strict=True)
    sums: list[Any] = []
    for part in parts:
        part_inputs, part_targets = part[: len(inputs)], part[len(inputs) :]
        with tf.control_dependencies(sums):  # otherwise all would be in memory at once
            loss, gradients = differentiate(part_inputs, dict(zip(targets, part_targets, strict=True)))
            new = [loss, *gradients]
            sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
    loss, *gradients = (total / count for total in sums)
    return loss, gradients


def variables(network: Network, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Variables of the weights on the device, by name."""
    import tensorflow as tf

    with tf.device(context.device):
        return {
            name: make_variable(
                context, context.put(weight.channels_last(arrays[name])), is_learnt=weight.is_learnt
            )
            for name, weight in network.weights().items()
        }


def sample_function(images: ImageSet, side: int) -> Any:
    """A function from a row of the order to the sample, (side, side, channels), and its class."""
    import tensorflow as tf

    contents, labels = tf.constant(images.images), tf.constant(images.labels)

    def image(index: Any) -> Any:
        if not images.is_encoded:
            return tf.gather(contents, index)
        content = tf.io.read_file(tf.gather(contents, index))
        # It also decodes PNG. Pillow uses the accurate transform, too, so both give the same bytes.
        return tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")

    def sample(row: Any) -> Any:
        full_image = image(row[0])
        positions = tf.shape(full_image, tf.int64)[:2] - side + 1
        corner = tf.bitwise.right_shift(positions * row[1:3], tf.constant(PLACE_BITS, tf.int64))
        crop = tf.slice(full_image, tf.concat([corner, [0]], 0), [side, side, -1])
        crop = tf.cond(row[3] == 1, lambda: tf.reverse(crop, [1]), lambda: crop)
        return (tf.cast(crop, tf.float32) - MEAN) / DEVIATION, tf.gather(labels, row[0])

    return sample


def tensorflow_batches(
    images: ImageSet, order: Indices, side: int, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Yield NHWC images and classes on the device, without end. Workers are threads of a private pool."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        samples = tf.data.Dataset.from_tensor_slices(order).repeat()
        samples = samples.map(sample_function(images, side), num_parallel_calls=workers or None)
        batches = samples.batch(batch, drop_remainder=True)
        if workers:
            batches = batches.prefetch(PREFETCHED * workers)
            options = tf.data.Options()
            options.threading.private_threadpool_size = workers
            batches = batches.with_options(options)
    for samples, labels in batches:
        with tf.device(context.device):
            on_device = tf.cast(tf.identity(samples), context.dtype), tf.identity(labels)
        yield on_device


def put_parts(context: DeviceContext, array: Array) -> Any:
    """Put an input on the device; with several devices, a part of the batch on each."""
    count = context.world.devices
    if count == 1:
        return context.put(array)
    return context.put_on_devices(array.reshape(count, len(array) // count, *array.shape[1:]))


def run_in_replicas(context: DeviceContext, step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the step to run in each replica and return the mean of their losses. Unchanged on one device."""
    if context.world.devices == 1:
        return step
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def replicated(*inputs: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=inputs), axis=None)

    return replicated


def average_gradients(context: DeviceContext, gradients: list[Any]) -> list[Any]:
    """Means over the replicas, called within one of them."""
    if context.world.devices == 1:
        return gradients
    import tensorflow as tf

    mean: list[Any] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
    return mean


def replica_copy(context: DeviceContext, variable: Any) -> Any:
    """A replica's copy of a variable; the variable itself on one device."""
    if context.world.devices == 1:
        return variable
    import tensorflow as tf

    replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return variable.values[int(replica)]


def make_variable(context: DeviceContext, value: Any, *, is_learnt: bool) -> Any:
    """Create a variable in each replica. Running statistics differ between replicas, as in Keras."""
    import tensorflow as tf

    if is_learnt or context.world.devices == 1:
        return tf.Variable(value, trainable=is_learnt)
    on_read = tf.VariableSynchronization.ON_READ
    mean = tf.VariableAggregation.MEAN
    return tf.Variable(value, trainable=False, synchronization=on_read, aggregation=mean)
