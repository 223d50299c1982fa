"""Collectives of devices that one process controls: arrays have a row for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchbench.arrays import Array
from benchbench.workloads.base import DeviceContext, Program

AXIS = "devices"  # of a mesh


def over_mesh(context: DeviceContext, rows: Array, collective: Callable[[Any, str], Any]) -> Program:
    """Program in JAX that applies `collective(row, axis)` to each device's row, under jax.shard_map."""
    import jax

    x = context.put_on_devices(rows)
    mesh, spec = x.sharding.mesh, x.sharding.spec
    (axis,) = mesh.axis_names

    def apply_to_row(local: Any) -> Any:
        return collective(local[0], axis)[None]

    step = jax.shard_map(apply_to_row, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return Program(step, (x,))


def in_replicas(context: DeviceContext, rows: Array, collective: Callable[[Any, Any], Any]) -> Program:
    """Program in TensorFlow that applies `collective(replica context, row)` in each mirrored replica."""
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()

    def apply_to_row(row: Any) -> Any:
        return collective(tf.distribute.get_replica_context(), row)

    def step(x: Any) -> Any:
        return strategy.run(apply_to_row, args=(x,))

    return Program(step, (context.put_on_devices(rows),))


def sharded(context: DeviceContext, rows: Array, compute: Callable[[Any], Any]) -> Program:
    """Program in torch_xla (SPMD): `compute(all rows)` returns a row per device. XLA inserts collectives."""
    devices = context.world.devices

    def step(x: Any) -> Any:
        return shard_rows(compute(x), devices)

    return Program(step, (context.put_on_devices(rows),))


def shard_rows(tensor: Any, devices: int) -> Any:
    """Mark a torch_xla tensor so that each device has a row of it."""
    return shard_along(tensor, devices, 0)


def shard_along(tensor: Any, devices: int, axis: int) -> Any:
    """Mark a torch_xla tensor so that each device has an equal part of this axis."""
    import numpy as np
    import torch_xla.distributed.spmd as spmd

    mesh = spmd.Mesh(np.arange(devices), (devices,), (AXIS,))
    spmd.mark_sharding(tensor, mesh, tuple(AXIS if at == axis else None for at in range(tensor.dim())))
    return tensor
