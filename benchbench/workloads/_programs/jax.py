"""Programs of networks in JAX, as pure functions of the weights with NHWC images.

With several devices, the arrays of a training step are sharded and XLA divides the computation accordingly
(Scaling Book, "Programming TPUs in JAX", jax-ml.github.io/scaling-book: sharded inputs and outputs under
jit). Images are read by Grain, as is usual in JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial, reduce
from importlib.util import find_spec
from operator import add
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Indices
from benchbench.errors import Unsupported
from benchbench.model.note import Note
from benchbench.workloads import _amp as amp
from benchbench.workloads._collective import AXIS
from benchbench.workloads._image_sets import PREFETCHED, ImageSet, augment
from benchbench.workloads._layers import CausalAttention, MultiHeadAttention
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs import jax_layers
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network, batch_statistics, grouped_by_device, marked_axis
from benchbench.workloads.program import images_layout

if TYPE_CHECKING:
    from benchbench.workloads._layers import Weight
    from benchbench.workloads.base import Arrays

Shape = tuple[int, ...]


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """Program with the weights as arguments, since XLA treats closed-over arrays as constants."""

    def step(weights: Any, *inputs: Any) -> Any:
        return network.apply(jax_layers.JaxForward(weights), *inputs)

    weights_on_device = put(network, context, arrays)

    def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
        return weights_on_device, *network.channels_last_inputs(context.put, arrays)

    layout = images_layout(context, network.image_axes)
    notes = _attention_notes(network, context)
    return Program(step, make_inputs(arrays), layout=layout, inputs_of=make_inputs, notes=notes)


def training(network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays) -> Program:
    """Program of a training step, whose state is that of `_first_state`."""
    layouts = network.weights()
    descents = [_descent(network, objective, optimizer, context) for objective in network.objectives]
    count = len(network.input_names)

    def step(parameters: Any, slots: Any, carried: Any, *inputs: Any) -> Any:
        targets = dict(zip(network.target_names, inputs[count:], strict=True))
        state, counters, losses = (parameters, slots, carried["statistics"]), [], []
        for descend, counter in zip(descents, carried["counters"], strict=True):
            state, next_counter, loss = descend(state, counter, inputs[:count], targets)
            counters.append(next_counter)
            losses.append(loss)
        parameters, slots, statistics = state
        return parameters, slots, {"statistics": statistics, "counters": counters}, reduce(add, losses)

    def gradients(_parameters: Any, slots: Any, _carried: Any) -> dict[str, Any]:
        return {name: as_in_torch(layouts[name], optimizer.gradient(s)) for name, s in fetched(slots)}

    make_batch = partial(_batch_of, network, context)
    program = Program(
        step,
        make_batch(arrays),
        _first_state(network, optimizer, context, arrays),
        parameters=lambda now, _slots, _carried: {n: as_in_torch(layouts[n], p) for n, p in fetched(now)},
        gradients=gradients if optimizer.slots else None,
        notes=batch_statistics(network, per_device=False) + _attention_notes(network, context),
        layout=images_layout(context, network.image_axes),
        inputs_of=make_batch,
        restart=partial(_first_state, network, optimizer, context),
    )
    return divide_program(network, context, program)


def generation(
    network: Any, context: DeviceContext, arrays: Arrays
) -> Program:  # `network`: a Decoder, which imports this package
    """Program whose state is the cache; its memory is reused for the next one."""
    import jax
    import numpy as np

    def step(cache: Any, weights: Any, tokens: Any, positions: Any) -> Any:
        next_cache = dict(cache)
        logits = network.apply(jax_layers.JaxForward(weights), tokens, positions, next_cache)
        return next_cache, logits

    weights, first = put(network, context, arrays), network.length - network.rows
    zeros = np.zeros(network.cache_shape, np.float32)
    cache = {name: (context.put(zeros), context.put(zeros)) for name in network.blocks}
    if first:
        cache, _ = jax.jit(step)(cache, weights, context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
        return weights, context.put(arrays["tokens"]), positions

    # A single query is computed by products in every framework (`jax_layers.attend`).
    notes = _attention_notes(network, context) if network.rows > 1 else ()
    return Program(step, make_inputs(arrays), (cache,), inputs_of=make_inputs, notes=notes)


def _attention_notes(network: Network, context: DeviceContext) -> tuple[Note, ...]:
    """Notes on the attention that the layers call, each once."""
    dtype, kinds = context.compute or context.dtype, (CausalAttention, MultiHeadAttention)
    notes = (
        note
        for layer in network.layers()
        if isinstance(layer, kinds)
        for note in jax_layers.attention_notes(dtype, layer.head, layer.lengths)
    )
    return tuple(dict.fromkeys(notes))


def _batch_of(network: Network, context: DeviceContext, arrays: Arrays) -> tuple[Any, ...]:
    """Inputs and targets of a training step."""
    arrays = grouped_by_device(network, arrays)
    targets = (context.put(arrays[name]) for name in network.target_names)
    return *network.channels_last_inputs(context.put, arrays), *targets


def fetched(arrays: Any) -> Iterable[tuple[str, Any]]:
    """Arrays by name in NumPy. Transposing each on the device would compile a program per shape."""
    import jax

    return jax.device_get(arrays).items()  # type: ignore[no-any-return]


def as_in_torch(layout: Weight, array: Any) -> Any:
    """An array from `fetched` in PyTorch's layout."""
    import numpy as np

    return layout.as_in_torch(array, np.reshape, np.transpose)


def _first_state(
    network: Network, optimizer: Optimizer, context: DeviceContext, arrays: Arrays
) -> tuple[Any, Any, Any]:
    """Return (parameters, optimizer state of each, running statistics and counters) before the first step."""
    import numpy as np

    weights, layouts = put(network, context, arrays), network.weights()
    parameters = {name: weights[name] for name, layout in layouts.items() if layout.is_learnt}
    # Copied instead of created on the device, which would compile a program per shape.
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
    """Number of an objective's updates, and the scale of its loss."""
    import jax.numpy as jnp

    scale = amp.jax_scale() if amp.is_scaled(context) else {}
    return {"scale": scale, "count": jnp.int32(0) if optimizer.counts else None}


def _descent(network: Network, objective: Objective, optimizer: Optimizer, context: DeviceContext) -> Any:
    """Return a function for one update.

    It takes (parameters, slots, statistics), a counter, inputs and targets. It returns the next state, the
    next counter and the loss.
    """
    import jax

    scaled = amp.is_scaled(context)

    def loss_of(moving: Any, before: Any, counter: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        parameters, _, statistics = before
        narrow, narrow_inputs = amp.jax_cast(context, parameters | moving, inputs)
        weights = narrow | statistics
        nn = jax_layers.JaxForward(weights, training=True)
        output = network.apply(nn, *narrow_inputs, **objective.options)
        loss = objective.loss.jax(output, *(targets[name] for name in objective.loss.target_names))
        updated = {name: weights[name] for name in statistics}
        return loss * counter["scale"]["scale"] if scaled else loss, (loss, updated)

    def descend(before: Any, counter: Any, inputs: Any, targets: Any) -> Any:
        parameters, slots, _ = before
        t = counter["count"] + 1 if optimizer.counts else None
        moving = {name: p for name, p in parameters.items() if objective.moves(name)}
        moving_slots = {name: slots[name] for name in moving}

        def update(gradients: Any) -> Any:
            return apply_rule(optimizer, t, moving, gradients, moving_slots)

        differentiate = over_micro_batches(network, jax.grad(loss_of, has_aux=True))
        gradients, (loss, statistics) = differentiate(moving, before, counter, inputs, targets)
        updated, scale = update(gradients), {}
        if scaled:
            updated, scale = amp.jax_apply(counter["scale"], gradients, update, (moving, moving_slots))
        next_state = parameters | updated[0], slots | updated[1], statistics
        return next_state, {"scale": scale, "count": t}, loss

    return descend


def over_micro_batches(network: Network, gradient_of: Any) -> Any:
    """Wrap `gradient_of` to process micro-batches in turn: mean gradients and loss, last statistics."""
    import jax
    import jax.numpy as jnp

    if network.accumulate == 1:
        return gradient_of

    def accumulate(moving: Any, before: Any, counter: Any, inputs: Any, targets: Any) -> Any:
        parameters, slots, first = before

        def add(carried: Any, batch: Any) -> Any:
            sums, statistics = carried
            state = parameters, slots, statistics
            gradients, (loss, statistics) = gradient_of(moving, state, counter, *batch)
            return (jax.tree.map(jnp.add, sums, gradients), statistics), loss

        zeros = jax.tree.map(jnp.zeros_like, moving)
        batches = jax.tree.map(lambda x: stack_micro_batches(network, x), (inputs, targets))
        (sums, statistics), losses = jax.lax.scan(add, (zeros, first), batches)
        means = jax.tree.map(lambda total: total / network.accumulate, sums)
        return means, (losses.mean(), statistics)

    return accumulate


def apply_rule(optimizer: Optimizer, t: Any, parameters: Any, gradients: Any, slots: Any) -> Any:
    """Return the next parameters and slots by name."""
    import jax.numpy as jnp

    results = {
        name: optimizer.rule(jnp, t, p, gradients[name], slots[name]) for name, p in parameters.items()
    }
    return {name: p for name, (p, _) in results.items()}, {name: s for name, (_, s) in results.items()}


def put(network: Network, context: DeviceContext, arrays: Arrays) -> dict[str, Any]:
    """Put the weights on the device, by name."""
    return {
        name: context.put(weight.channels_last(arrays[name])) for name, weight in network.weights().items()
    }


class GrainSample:
    """A function from a number in the order to the sample, (side, side, channels), and its class.

    The workers get a copy.
    """

    def __init__(self, images: ImageSet, order: Indices, side: int) -> None:
        self._images = images
        self._order = order
        self._side = side

    def __call__(self, number: int) -> tuple[Any, Any]:
        row = self._order[number]
        return augment(self._images.image(row[0]), row, self._side), self._images.labels[row[0]]


def require_grain(find: Callable[[str], object] = find_spec) -> None:
    """Raise Unsupported if Grain is not installed."""
    if find("grain") is None:
        raise Unsupported("JAX reads data through Grain: pip install grain")


def jax_batches(
    sample: GrainSample, count: int, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Yield NHWC images and classes on the device, without end. `count` is the number of ordered samples.

    Workers are new processes that Grain starts with the first batch. Closing the generator ends them.
    """
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain reads absl flags, which this program does not parse
    read_options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    numbers = grain.MapDataset.range(count).repeat()
    batches = numbers.map(sample).batch(batch, drop_remainder=True).to_iter_dataset(read_options)
    if workers:
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=PREFETCHED)
        )
    iterator = iter(batches)
    try:
        for images, labels in iterator:
            yield context.put(images), context.put(labels)
    finally:
        iterator.close()


def divide_program(network: Network, context: DeviceContext, program: Program) -> Program:
    """The program with its arrays sharded over the devices of the placement; unchanged on one device."""
    import dataclasses

    import jax

    if network.placement.devices == 1:
        return program
    shardings = Shardings(network, context)

    def shard(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(jax.device_put(array, shardings.batch) for array in batch)

    def make_inputs(arrays: Arrays) -> tuple[Any, ...]:
        assert program.inputs_of
        return shard(program.inputs_of(arrays))

    state_shardings = jax.tree.map(lambda leaf: shardings.state(leaf.shape), program.state)
    state = jax.device_put(program.state, state_shardings)
    return dataclasses.replace(
        program,
        step=with_state_on(program.step, state_shardings),
        inputs=shard(program.inputs),
        inputs_of=make_inputs,
        state=state,
        restart=None,  # it would return unsharded arrays
    )


def stack_micro_batches(network: Network, array: Any) -> Any:
    """Add micro-batches as first axis of a batch's array. Each device has its part of every micro-batch.

    Samples are in the order of `grouped_by_device`.
    """
    devices = network.placement.devices if network.placement.strategy.divides_batch else 1
    by_device = array.reshape(devices, network.accumulate, -1, *array.shape[1:])
    return by_device.swapaxes(0, 1).reshape(network.accumulate, -1, *array.shape[1:])


def mesh_of(context: DeviceContext) -> Any:
    """The devices of the placement along one axis."""
    import jax
    from jax.sharding import AxisType

    platform_devices = jax.devices(context.device.platform)
    devices = [platform_devices[number] for number in context.world.numbers(context.device.id)]
    return jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)


def sharding_along(mesh: Any, axis: int | None) -> Any:
    """Sharding along an axis; None replicates the array on every device."""
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(*([None] * axis + [AXIS] if axis is not None else [])))


class Shardings:
    """Shardings of a training step's arrays."""

    def __init__(self, network: Network, context: DeviceContext) -> None:
        self._mesh = mesh_of(context)
        self._strategy = network.placement.strategy
        self._count = network.placement.devices

    @property
    def batch(self) -> Any:
        """Along the first axis if the strategy divides the batch, otherwise replicated."""
        return self._along(0 if self._strategy.divides_batch else None)

    def state(self, shape: Shape) -> Any:
        """Sharding of an array of the state, see `marked_axis`; the last axis is that of the outputs."""
        return self._along(marked_axis(self._strategy, shape, self._count, outputs=len(shape) - 1))

    def _along(self, axis: int | None) -> Any:
        return sharding_along(self._mesh, axis)


def with_state_on(step: Callable[..., Any], shardings: tuple[Any, ...]) -> Callable[..., Any]:
    """The step with its next state constrained to these shardings, since XLA may choose others."""
    import jax

    def constrained(*arguments: Any) -> Any:
        *state, output = step(*arguments)
        return (*jax.lax.with_sharding_constraint(tuple(state), shardings), output)

    return constrained
