"""One program called with sequences of many lengths, in random order: what a length not met before costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.base import SEED, Operation, Program, generator, sampled, wide

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

SHORTEST = 2  # torch.compile makes a program of its own for a length of 1
WEIGHTS = "qkv", "out"


@dataclass(frozen=True)
class DynamicShapes(Operation):
    """Self-attention of one head, added to its input, on sequences of `lengths` lengths up to `longest`.

    A step calls the program once for each length. So the first call has every compilation (`cold_s`,
    `compilations`), and the latency none. `dynamic`: the framework is told that the length varies.
    """

    batch: int = 4
    lengths: int = 8
    longest: int = 256
    width: int = 256
    dynamic: bool = False

    summary = "attention on sequences of many lengths: what recompiling costs"
    multiplications_saved = 1.0
    draws_tolerated = 4.0

    def __post_init__(self) -> None:
        """Raise UsageError also where there are not so many lengths."""
        super().__post_init__()
        if not 2 <= self.lengths <= self.longest + 1 - SHORTEST:
            most = self.longest + 1 - SHORTEST
            raise UsageError(f"lengths={self.lengths} must be 2 to {most} with longest={self.longest}.")

    @property
    def drawn_lengths(self) -> list[int]:
        """The drawn lengths, all different, in the order of the calls."""
        lengths = generator((SEED, self.lengths)).permutation(self.longest + 1 - SHORTEST)
        return [int(length) + SHORTEST for length in lengths[: self.lengths]]

    def cost(self, dtype: Dtype) -> Cost:
        """B(8LW² + 4L²W) FLOPs of each length: four projections, QKᵀ and PV; an item is a token."""
        tokens = self.batch * sum(self.drawn_lengths)
        pairs = self.batch * sum(length**2 for length in self.drawn_lengths)
        return Cost(
            flops=8 * tokens * self.width**2 + 4 * pairs * self.width,
            bytes=(2 * tokens * self.width + 4 * self.width**2) * dtype.itemsize,
            items=tokens,
            item="token",
        )

    @property
    def reduction(self) -> int:
        """One term each for projection, scores, weighted sum and projection."""
        return 3 * self.width + self.longest

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.drawn_lengths[0], self.width

    @property
    def output_shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            f"call {index}": (self.batch, length, self.width)
            for index, length in enumerate(self.drawn_lengths)
        }

    def tiny(self) -> DynamicShapes:
        return replace(self, batch=2, lengths=3, longest=17, width=12)

    def rounding_size(self) -> DynamicShapes:
        """A size with as many lengths; errors hardly grow with size."""
        longest = min(self.longest, max(64, self.lengths + SHORTEST))
        return replace(self, batch=1, longest=longest, width=min(self.width, 128))

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """The sequences, N(0, 1), and the weights, N(0, 1/width), as outputs × inputs."""
        scale = 1 / sqrt(self.width)
        given = {name: draw.normal(name, *shape) for name, shape in self.output_shapes.items()}
        return {
            **given,
            "qkv": draw.normal("qkv", 3 * self.width, self.width, scale=scale),
            "out": draw.normal("out", self.width, self.width, scale=scale),
        }

    def is_input(self, name: str) -> bool:
        return name not in WEIGHTS

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The output of one call, whose sequences are `x`."""
        x = arrays["x"]
        q, k, v = ops.np.split(ops.linear(x, arrays["qkv"]), 3, axis=-1)
        scores = ops.matmul(q * (1 / sqrt(self.width)), ops.np.swapaxes(k, 1, 2))
        return ops.add(x, ops.linear(ops.matmul(ops.softmax(scores), v), arrays["out"]))

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        return self.references(arrays, {"call 0": index})["call 0"]

    def samples(self, source: np.random.Generator, count: int) -> dict[str, Indices]:
        return {name: sampled(source, shape, count) for name, shape in self.output_shapes.items()}

    def references(
        self, arrays: Arrays, indices: Mapping[str, Indices], ops: Any = None
    ) -> dict[str, Floats]:
        from benchbench.workloads._reference.ops import Ops

        weights = {name: wide(arrays[name]) for name in WEIGHTS}
        return {
            name: self.forward(ops or Ops(), {**weights, "x": wide(arrays[name])})[tuple(index.T)]
            for name, index in indices.items()
        }

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """scaled_dot_product_attention; by itself, torch.compile's second program takes any length."""
        import torch.nn.functional as F

        def attend(x: Any, qkv: Any, out: Any) -> Any:
            q, k, v = F.linear(x, qkv).chunk(3, dim=-1)
            return x + F.linear(F.scaled_dot_product_attention(q, k, v), out)

        return self._program(context, arrays, attend)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Products and softmax; told of it, tf.function takes a signature without the length."""
        import tensorflow as tf

        def attend(x: Any, qkv: Any, out: Any) -> Any:
            q, k, v = tf.split(tf.einsum("blw,ow->blo", x, qkv), 3, axis=-1)
            scores = tf.matmul(q * tf.constant(self.width**-0.5, q.dtype), k, transpose_b=True)
            return x + tf.einsum("blw,ow->blo", tf.matmul(tf.nn.softmax(scores), v), out)

        return self._program(context, arrays, attend)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Products and softmax; XLA knows no length that varies."""
        import jax
        import jax.numpy as jnp

        def attend(x: Any, qkv: Any, out: Any) -> Any:
            q, k, v = jnp.split(x @ qkv.T, 3, axis=-1)
            weights = jax.nn.softmax((q * self.width**-0.5) @ k.swapaxes(1, 2))
            return x + (weights @ v) @ out.T

        return self._program(context, arrays, attend)

    def _program(self, context: DeviceContext, arrays: Arrays, attend: Any) -> Program:
        """Only `attend` is compiled, else all lengths would be one program."""
        compiled = context.compile_for_shapes(attend, dynamic=self.dynamic)

        def step(qkv: Any, out: Any, *sequences: Any) -> Any:
            return tuple(compiled(x, qkv, out) for x in sequences)

        names = [*WEIGHTS, *self.output_shapes]
        return Program(step, tuple(context.put(arrays[name]) for name in names), compiles=False)
