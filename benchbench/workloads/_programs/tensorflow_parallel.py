"""A training step in replicas: tf.distribute.MirroredStrategy, in whose scope it is built.

Each replica differentiates its part of the batch; gradients are averaged, and each moves its own copies of
the variables by them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchbench.arrays import Array
from benchbench.workloads.base import DeviceContext


def put_parts(context: DeviceContext, array: Array) -> Any:
    """An input: of several devices, a part of the batch on each."""
    count = context.world.devices
    if count == 1:
        return context.put(array)
    return context.put_on_devices(array.reshape(count, len(array) // count, *array.shape[1:]))


def run_in_replicas(context: DeviceContext, step: Callable[..., Any]) -> Callable[..., Any]:
    """The step as each replica runs it, and the mean of their losses; itself on one device."""
    if context.world.devices == 1:
        return step
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def replicated(*inputs: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=inputs), axis=None)

    return replicated


def average_gradients(context: DeviceContext, gradients: list[Any]) -> list[Any]:
    """Means over the replicas, within one of them."""
    if context.world.devices == 1:
        return gradients
    import tensorflow as tf

    mean: list[Any] = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
    return mean


def own_copy(context: DeviceContext, variable: Any) -> Any:
    """The copy that a replica has of a variable; the variable itself on one device."""
    if context.world.devices == 1:
        return variable
    import tensorflow as tf

    replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return variable.values[int(replica)]


def make_variable(context: DeviceContext, value: Any, *, is_learnt: bool) -> Any:
    """A variable in each replica; running statistics, not learnt, go their own way in each, as in Keras."""
    import tensorflow as tf

    if is_learnt or context.world.devices == 1:
        return tf.Variable(value, trainable=is_learnt)
    apart = tf.VariableSynchronization.ON_READ
    mean = tf.VariableAggregation.MEAN
    return tf.Variable(value, trainable=False, synchronization=apart, aggregation=mean)
