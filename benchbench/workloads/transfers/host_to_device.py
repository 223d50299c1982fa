"""An array copied from the host's memory to the device's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._memory_bound import Transfer
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class HostToDevice(Transfer):
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
