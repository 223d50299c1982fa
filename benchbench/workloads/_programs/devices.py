"""Collectives of devices that one process drives together: arrays have a row for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchbench.arrays import Array
from benchbench.workloads.base import DeviceContext, Program

AXIS = "devices"  # of a mesh


def over_mesh(context: DeviceContext, rows: Array, collective: Callable[[Any, str], Any]) -> Program:
    """JAX: `collective(row, axis)` of each device's row, under jax.shard_map."""
    import jax

    x = context.put_on_devices(rows)
    mesh, spec = x.sharding.mesh, x.sharding.spec
    (axis,) = mesh.axis_names

    def of_row(own: Any) -> Any:
        return collective(own[0], axis)[None]

    step = jax.shard_map(of_row, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return Program(step, (x,))


def in_replicas(context: DeviceContext, rows: Array, collective: Callable[[Any, Any], Any]) -> Program:
    """TensorFlow: `collective(replica context, row)` in each replica of a MirroredStrategy."""
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def of_row(own: Any) -> Any:
        return collective(tf.distribute.get_replica_context(), own)

    def step(x: Any) -> Any:
        return strategy.run(of_row, args=(x,))

    return Program(step, (context.put_on_devices(rows),))


def sharded(context: DeviceContext, rows: Array, whole: Callable[[Any], Any]) -> Program:
    """torch_xla, SPMD: `whole(all rows)` gives a row of each device; XLA inserts the collective."""
    devices = context.world.devices

    def step(x: Any) -> Any:
        return shard_rows(whole(x), devices)

    return Program(step, (context.put_on_devices(rows),))


def shard_rows(tensor: Any, devices: int) -> Any:
    """`tensor` of torch_xla, marked: each device has a row of it."""
    return shard_along(tensor, devices, 0)


def shard_along(tensor: Any, devices: int, axis: int) -> Any:
    """`tensor` of torch_xla, marked: each device has an equal part of that axis."""
    import numpy as np
    import torch_xla.distributed.spmd as spmd

    mesh = spmd.Mesh(np.arange(devices), (devices,), (AXIS,))
    spmd.mark_sharding(tensor, mesh, tuple(AXIS if each == axis else None for each in range(tensor.dim())))
    return tensor
