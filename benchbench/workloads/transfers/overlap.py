"""A copy to the device beside a product on it: how much of the shorter the longer hides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import Unsupported
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import CONSUMER, SOURCE, Operation, Program, sampled

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

NEXT, PRODUCT = "next", "product"


@dataclass(frozen=True)
class Overlap(Operation):
    """`copied` elements from pinned memory, as the next batch is, beside a square product of side `side`."""

    side: int = 4096
    copied: int = 2**24

    summary = "a copy to the device hidden behind a product"
    refused_on_cpu = "a CPU computes in the host's memory, so nothing is copied beside its work"
    multiplications_saved = 1.0

    def cost(self, dtype: Dtype) -> Cost:
        """2·side³ FLOPs; both operands and the product move once, what is copied crosses the link."""
        crossing = self.copied * dtype.storage.itemsize
        moved = 3 * self.side**2 * dtype.itemsize + crossing
        return Cost(flops=2 * self.side**3, bytes=moved, link_bytes=crossing, items=1, item="step")

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

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        raise Unsupported("TensorFlow lets tf.data alone copy beside what is computed")

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
