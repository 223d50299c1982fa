"""An array copied from the device's memory to the host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.errors import Unsupported
from benchbench.workloads._memory_bound import Transfer
from benchbench.workloads.base import Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class DeviceToHost(Transfer):
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
