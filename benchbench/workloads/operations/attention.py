"""Scaled dot-product attention: softmax(Q Kᵀ / √d) V, causal or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Arrays, DeviceContext, Draw

BTHD_OF_BHTD = (0, 2, 1, 3)


@dataclass(frozen=True)
class Attention(Operation):
    """Self-attention's core: queries, keys and values of one length; no projections, no dropout."""

    batch: int = 4
    heads: int = 8
    length: int = 512
    dim: int = 64
    causal: bool = False

    summary = "scaled dot-product attention, fused where the framework has it"
    multiplications_saved = 1.0

    def cost(self, dtype: Dtype) -> Cost:
        """4·d FLOPs per query-key pair: QKᵀ and PV; softmax is not counted.

        A causal mask leaves T(T+1)/2 of the T² pairs. Q, K, V and the result move once. An item
        is a token: batch × length.
        """
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.length**2
        heads = self.batch * self.heads
        return Cost(
            flops=4 * heads * pairs * self.dim,
            bytes=4 * heads * self.length * self.dim * dtype.itemsize,
            items=self.batch * self.length,
            item="token",
        )

    @property
    def reduction(self) -> int:
        """d products to a score, then up to T to an output."""
        return self.dim + self.length

    @property
    def roundings(self) -> int:
        """Scaled queries, scores, their distance from the largest, powers, weights, result: where unfused."""
        return 6

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, length, dim)."""
        return self.batch, self.heads, self.length, self.dim

    def tiny(self) -> Self:
        """Odd length, distinct sizes."""
        return replace(self, batch=2, heads=3, length=37, dim=16)

    def arrays(self, draw: Draw) -> dict[str, NDArray[np.generic]]:
        """q, k and v, each (batch, heads, length, dim)."""
        return {name: draw.normal(name, *self.output_shape) for name in "qkv"}

    def reference(self, arrays: Arrays, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """One softmax row per sampled output."""
        import numpy as np

        def output(b: int, h: int, t: int, d: int) -> float:
            seen = t + 1 if self.causal else self.length
            keys = arrays["k"][b, h, :seen].astype(np.float64)
            scores = keys @ arrays["q"][b, h, t].astype(np.float64) / math.sqrt(self.dim)
            weights = np.exp(scores - scores.max())
            return float(weights @ arrays["v"][b, h, :seen, d].astype(np.float64) / weights.sum())

        return np.array([output(*at) for at in index])

    def forward(self, ops: Any, arrays: Any) -> Any:
        """All rows."""
        scores = ops.matmul(arrays["q"] / math.sqrt(self.dim), ops.np.swapaxes(arrays["k"], -1, -2))
        if self.causal:
            scores = ops.np.where(ops.np.tril(ops.np.ones(scores.shape, bool)), scores, -1e30)
        return ops.matmul(ops.softmax(scores), arrays["v"])

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """F.scaled_dot_product_attention picks the fused kernel."""
        import torch.nn.functional as F

        def step(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

        return Program(step, tuple(context.put(arrays[name]) for name in "qkv"))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow has no fused attention: products, mask and softmax as its users write them."""
        import tensorflow as tf

        q, k, v = (context.put(arrays[name]) for name in "qkv")
        scale = tf.constant(1 / math.sqrt(self.dim), q.dtype)
        mask = tf.linalg.band_part(tf.ones((self.length, self.length), tf.bool), -1, 0)

        def step(q: Any, k: Any, v: Any) -> Any:
            scores = tf.matmul(q * scale, k, transpose_b=True)
            if self.causal:
                scores = tf.where(mask, scores, scores.dtype.min)
            return tf.matmul(tf.nn.softmax(scores), v)

        return Program(step, (q, k, v))

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.nn.dot_product_attention, by cuDNN where it can be; plain products on the CPU.

        On the CPU the fused call has no kernel of its own: it ran at half the speed of the products.
        """
        import jax

        platform = context.device.platform
        q, k, v = (arrays[name] for name in "qkv")
        if platform == "cpu":
            return Program(self._jax_products(), tuple(context.put(each) for each in (q, k, v)))
        fused = "cudnn" if platform == "gpu" and context.dtype.itemsize == 2 else None

        def step(q: Any, k: Any, v: Any) -> Any:
            return jax.nn.dot_product_attention(q, k, v, is_causal=self.causal, implementation=fused)

        inputs = tuple(context.put(each.transpose(BTHD_OF_BHTD)) for each in (q, k, v))
        axes = dict.fromkeys("qkv", BTHD_OF_BHTD)
        return Program(step, inputs, axes=BTHD_OF_BHTD, input_axes=axes)

    def _jax_products(self) -> Callable[..., Any]:
        import jax
        import jax.numpy as jnp

        mask = jnp.tril(jnp.ones((self.length, self.length), bool)) if self.causal else None

        def step(q: Any, k: Any, v: Any) -> Any:
            scores = jnp.matmul(q * (1 / math.sqrt(self.dim)), k.swapaxes(-1, -2))
            return jnp.matmul(jax.nn.softmax(scores, where=mask), v)

        return step


@dataclass(frozen=True)
class AttentionBackward(Backward, Attention):
    """Of queries, keys and values."""

    summary = "gradients of scaled dot-product attention"
