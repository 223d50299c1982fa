"""Arrays copied between the host's memory and the device's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Floats, Indices
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import Vectors
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class _Transfer(Vectors):
    """n elements over the link, from or to pageable or pinned host memory; never compiled."""

    pinned: bool = False

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0
    refused_on_cpu = "a CPU computes in the host's memory, so nothing is transferred: `copy` measures it"

    def cost(self, dtype: Dtype) -> Cost:
        """Bytes are counted once, as they cross the link; an item is a transfer."""
        moved = self.n * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved, link_bytes=moved, items=1, item="transfer")

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        return np.asarray(arrays["x"][index[:, 0]], np.float64)


@dataclass(frozen=True)
class HostToDevice(_Transfer):
    """The copy goes into memory that the framework's allocator keeps for the device."""

    summary = "copy of an array from the host to the device"

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Tensor.to, which need not wait for pinned memory."""

        def step(x: Any) -> Any:
            return x.to(context.device, non_blocking=self.pinned, copy=True)

        return Program(step, (context.put_on_host(arrays["x"], pinned=self.pinned),), compiles=False)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.identity on the device; of a tensor made anew, since TensorFlow keeps a copy with each."""
        import tensorflow as tf

        def step(x: Any) -> Any:
            with tf.device("CPU:0"):
                new = tf.identity(x)  # of the same memory
            with tf.device(context.device):
                return tf.identity(new)

        return Program(step, (context.put_on_host(arrays["x"], pinned=self.pinned),), compiles=False)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.device_put of a NumPy array, or of one in pinned memory."""
        import jax

        there = jax.sharding.SingleDeviceSharding(context.device, memory_kind="device")

        def step(x: Any) -> Any:
            return jax.device_put(x, there)

        return Program(step, (context.put_on_host(arrays["x"], pinned=self.pinned),), compiles=False)


@dataclass(frozen=True)
class DeviceToHost(_Transfer):
    """PyTorch copies into memory that is there already; TensorFlow and JAX allocate it."""

    summary = "copy of an array from the device to the host"

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Tensor.copy_, which need not wait for pinned memory."""
        received = context.put_on_host(arrays["x"], pinned=self.pinned).zero_()

        def step(x: Any) -> Any:
            return received.copy_(x, non_blocking=self.pinned)

        return Program(step, (context.put(arrays["x"]),), compiles=False)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """tf.identity on the host; of a tensor made anew, since TensorFlow keeps a copy with each."""
        import tensorflow as tf

        if self.pinned:
            raise Unsupported("TensorFlow decides by itself what memory to pin")

        def step(x: Any) -> Any:
            with tf.device(context.device):
                new = tf.identity(x)  # of the same memory
            with tf.device("CPU:0"):
                return tf.identity(new)

        return Program(step, (context.put(arrays["x"]),), compiles=False)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.device_put to JAX's CPU, or to pinned memory: an array keeps what NumPy was given of it."""
        import jax

        pinned = context.put_on_host(arrays["x"][:1], pinned=True).sharding if self.pinned else None
        host = pinned or jax.devices("cpu")[0]

        def step(x: Any) -> Any:
            return jax.device_put(x, host)

        return Program(step, (context.put(arrays["x"]),), compiles=False)
