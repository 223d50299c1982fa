"""Arrays copied between the host's memory and the device's, alone or while a product is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._memory_bound import Vectors
from benchbench.workloads.base import CONSUMER, SOURCE, Draw, Operation, Program, sampled

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays, DeviceContext


@dataclass(frozen=True)
class _Transfer(Vectors):
    """n elements over the link, from or to pageable or pinned host memory; never compiled."""

    pinned: bool = False

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0
    is_graph = False
    refused_on_cpu = "a CPU computes in the host's memory, so nothing is transferred: `copy` measures it"

    def cost(self, dtype: Dtype) -> Cost:
        """Bytes are counted once, as they cross the link; an item is a transfer."""
        moved_bytes = self.n * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved_bytes, link_bytes=moved_bytes, items=1, item="transfer")

    def lacks(self, backend: str, dtype: Dtype) -> str:
        if self.pinned and backend == "tensorflow":
            return "TensorFlow decides by itself what memory to pin"
        if self.pinned and backend == "torch_xla":
            return "torch pins memory for CUDA devices, not for xla"
        return super().lacks(backend, dtype)


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


NEXT, PRODUCT = "next", "product"


@dataclass(frozen=True)
class Overlap(Operation):
    """`copied` elements from pinned memory, as the next batch is, beside a square product of side `side`."""

    side: int = 4096
    copied: int = 2**24

    summary = "a copy to the device hidden behind a product"
    is_graph = False
    unsupported: ClassVar[Mapping[str, str]] = {
        "tensorflow": "TensorFlow lets tf.data alone copy beside what is computed"
    }
    refused_on_cpu = "a CPU computes in the host's memory, so nothing is copied beside its work"
    multiplications_saved = 1.0

    def lacks(self, backend: str, dtype: Dtype) -> str:
        if backend == "torch_xla":
            return "torch has streams on CUDA, none on TPUs"
        return super().lacks(backend, dtype)

    def cost(self, dtype: Dtype) -> Cost:
        """2·side³ FLOPs; both operands and the product move once, what is copied crosses the link."""
        crossing = self.copied * dtype.storage.itemsize
        moved_bytes = 3 * self.side**2 * dtype.itemsize + crossing
        return Cost(flops=2 * self.side**3, bytes=moved_bytes, link_bytes=crossing, items=1, item="step")

    @property
    def reduction(self) -> int:
        """Each element of the product sums `side` products."""
        return self.side

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self.side, self.side

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        """The copied array and the product."""
        return {NEXT: (self.copied,), PRODUCT: self.output_shape}

    def tiny(self) -> Self:
        return replace(self, side=37, copied=1021)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """x, which is copied, and the operands a and b."""
        a, b = (draw.normal(name, self.side, self.side) for name in "ab")
        return {"x": draw.normal("x", self.copied), "a": a, "b": b}

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        return {name: sampled(source, shape, count) for name, shape in self.output_shapes.items()}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        rows, columns = arrays["a"][index[:, 0]], arrays["b"][:, index[:, 1]].T
        return np.asarray(np.einsum("sk,sk->s", rows.astype(np.float64), columns.astype(np.float64)))

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        """The copied array and the product."""
        copied = arrays["x"][indices[NEXT][:, 0]].astype(float)
        return {NEXT: copied, PRODUCT: self.reference(arrays, indices[PRODUCT])}

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """The copy on a CUDA stream of its own."""
        import torch

        if torch.device(context.device).type != "cuda":
            raise Unsupported(f"torch has streams on CUDA, none on {context.device}")
        aside, received = torch.cuda.Stream(context.device), context.put(arrays["x"]).zero_()

        def copy(x: Any, *_: Any) -> Any:
            main = torch.cuda.current_stream(context.device)
            aside.wait_stream(main)
            with torch.cuda.stream(aside):
                received.copy_(x, non_blocking=True)
            return main

        def source(x: Any, *_: Any) -> Any:
            copy(x).wait_stream(aside)
            return received

        def consumer(_: Any, a: Any, b: Any) -> Any:
            return torch.matmul(a, b)

        def step(x: Any, a: Any, b: Any) -> Any:
            main = copy(x)
            product = consumer(x, a, b)
            main.wait_stream(aside)
            return received, product

        return _program(step, {SOURCE: source, CONSUMER: consumer}, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Both are queued, one after the other: JAX waits for neither."""
        import jax
        import jax.numpy as jnp

        there = jax.sharding.SingleDeviceSharding(context.device, memory_kind="device")
        multiply = jax.jit(jnp.matmul)

        def source(x: Any, *_: Any) -> Any:
            return jax.device_put(x, there)

        def consumer(_: Any, a: Any, b: Any) -> Any:
            return multiply(a, b)

        def step(x: Any, a: Any, b: Any) -> Any:
            return source(x), consumer(x, a, b)

        return _program(step, {SOURCE: source, CONSUMER: consumer}, context, arrays)


def _program(step: Any, parts: dict[str, Any], context: DeviceContext, arrays: Arrays) -> Program:
    host = context.put_on_host(arrays["x"], pinned=True)
    inputs = host, context.put(arrays["a"]), context.put(arrays["b"])
    return Program(step, inputs, parts=parts, compiles=False)
