"""A network's programs in JAX: pure functions of the weights, images NHWC.

Of several devices, they say how the arrays of a training step lie there: XLA divides the computation
accordingly (Scaling Book, "Programming TPUs in JAX", jax-ml.github.io/scaling-book: sharded inputs and
outputs under jit). Images come through Grain, which JAX's users take.
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
from benchbench.workloads._image_sets import PREFETCHED, ImageSet, augment
from benchbench.workloads._layers import CausalAttention, MultiHeadAttention
from benchbench.workloads._losses import Objective
from benchbench.workloads._optimizers import Optimizer
from benchbench.workloads._programs import jax_layers
from benchbench.workloads._programs.devices import AXIS
from benchbench.workloads.base import DeviceContext, Program
from benchbench.workloads.network import Network, batch_statistics, grouped_by_device, marked_axis
from benchbench.workloads.program import images_layout

if TYPE_CHECKING:
    from benchbench.workloads._layers import Weight
    from benchbench.workloads.base import Arrays

Shape = tuple[int, ...]


def inference(network: Network, context: DeviceContext, arrays: Arrays) -> Program:
    """The weights are arguments, else XLA would take them for constants."""

    def step(weights: Any, *inputs: Any) -> Any:
        return network.jax(dict(weights), *inputs, training=False)

    held = put(network, context, arrays)

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return held, *network.channels_last_inputs(context.put, arrays)

    layout = images_layout(context, network.image_axes)
    notes = _attention_notes(network, context)
    return Program(step, given(arrays), layout=layout, inputs_of=given, notes=notes)


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
        notes=batch_statistics(network, per_device=False) + _attention_notes(network, context),
        layout=images_layout(context, network.image_axes),
        inputs_of=given,
        restart=partial(_first_state, network, optimizer, context),
    )
    return divide_program(network, context, program)


def generation(
    network: Any, context: DeviceContext, arrays: Arrays
) -> Program:  # `network`: a Decoder, which imports this package
    """The state is the cache, whose memory is given to the next one."""
    import jax
    import numpy as np

    def step(cache: Any, weights: Any, tokens: Any, positions: Any) -> Any:
        after = dict(cache)
        logits = network.jax(dict(weights), tokens, training=False, positions=positions, cache=after)
        return after, logits

    weights, first = put(network, context, arrays), network.length - network.rows
    zeros = np.zeros(network.cache_shape, np.float32)
    cache = {name: (context.put(zeros), context.put(zeros)) for name in network.blocks}
    if first:
        cache, _ = jax.jit(step)(cache, weights, context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return weights, context.put(arrays["tokens"]), positions

    # One query is a row of products, in no framework's fused kernel (`jax_layers.attend`).
    notes = _attention_notes(network, context) if network.rows > 1 else ()
    return Program(step, given(arrays), (cache,), inputs_of=given, notes=notes)


def _attention_notes(network: Network, context: DeviceContext) -> tuple[Note, ...]:
    """A note that says which attention its layers call, of each kind once."""
    dtype, kinds = context.compute or context.dtype, (CausalAttention, MultiHeadAttention)
    found = (
        each
        for layer in network.layers()
        if isinstance(layer, kinds)
        for each in jax_layers.attention_notes(dtype, layer.head, layer.lengths)
    )
    return tuple(dict.fromkeys(found))


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
        batches = jax.tree.map(lambda x: stack_micro_batches(network, x), (inputs, targets))
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


class GrainSample:
    """The sample, (side, side, channels), and its class, that a number in the order stands for.

    The workers are given a copy.
    """

    def __init__(self, images: ImageSet, order: Indices, side: int) -> None:
        self._images = images
        self._order = order
        self._side = side

    def __call__(self, number: int) -> tuple[Any, Any]:
        row = self._order[number]
        return augment(self._images.image(row[0]), row, self._side), self._images.labels[row[0]]


def require_grain(find: Callable[[str], object] = find_spec) -> None:
    """Raise Unsupported where this interpreter has none."""
    if find("grain") is None:
        raise Unsupported("JAX reads data through Grain: pip install grain")


def jax_batches(
    sample: GrainSample, count: int, batch: int, workers: int, context: DeviceContext
) -> Generator[tuple[Any, ...], None, None]:
    """Images, NHWC, and classes on the device, without end; `count`: of samples in the order.

    Workers are processes that Grain starts afresh, with the first batch. Closing it ends them.
    """
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain reads its own, and this is no program of absl's
    alone = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    numbers = grain.MapDataset.range(count).repeat()
    batches = numbers.map(sample).batch(batch, drop_remainder=True).to_iter_dataset(alone)
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
        restart=None,  # its arrays would not lie as they do
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
