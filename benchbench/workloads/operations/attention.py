"""Scaled dot-product attention, softmax(Q Kᵀ / √d) V: over whole sequences, and of one query to a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.model.note import Note, NoteKind, note
from benchbench.workloads._programs import jax_layers, tensorflow_layers
from benchbench.workloads.backward import Backward
from benchbench.workloads.base import Operation, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, DeviceContext, Draw

BTHD_OF_BHTD = (0, 2, 1, 3)


class ScaledDotProduct(Operation):
    """Attention without projections or dropout.

    Groups of heads share keys and values (Ainslie et al. 2023).
    """

    batch: int
    heads: int
    kv_heads: int  # heads of keys and values; 0: as many as queries have
    length: int  # tokens of keys and values
    dim: int
    causal: bool = False

    multiplications_saved = 1.0
    may_be_zero = frozenset({"kv_heads"})
    multiples = (("heads", "kv_heads"),)

    @property
    def groups_of(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def queries(self) -> int:
        """Number of queries: as many as keys."""
        return self.length

    def cost(self, dtype: Dtype) -> Cost:
        """4·d FLOPs per query-key pair: QKᵀ and PV; softmax is not counted.

        A causal mask leaves T(T+1)/2 of the T² pairs. Q, K, V and the result move once. An item
        is a token: batch × queries.
        """
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.queries * self.length
        rows = self.heads * self.queries + self.groups_of * self.length
        return Cost(
            flops=4 * self.batch * self.heads * pairs * self.dim,
            bytes=2 * self.batch * rows * self.dim * dtype.itemsize,
            items=self.batch * self.queries,
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
        return self.batch, self.heads, self.queries, self.dim

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """q as the output; k and v (batch, heads of their own, length, dim)."""
        shared = self.batch, self.groups_of, self.length, self.dim
        shapes = {"q": self.output_shape, "k": shared, "v": shared}
        return {name: draw.normal(name, *shape) for name, shape in shapes.items()}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        import numpy as np

        def output(b: int, h: int, t: int, d: int) -> float:
            seen, group = t + 1 if self.causal else self.length, h * self.groups_of // self.heads
            keys = arrays["k"][b, group, :seen].astype(np.float64)
            scores = keys @ arrays["q"][b, h, t].astype(np.float64) / sqrt(self.dim)
            weights = np.exp(scores - scores.max())
            return float(weights @ arrays["v"][b, group, :seen, d].astype(np.float64) / weights.sum())

        return np.array([output(*at) for at in index])

    def forward(self, ops: Any, arrays: Any) -> Any:
        heads_last = (ops.np.swapaxes(arrays[name], 1, 2) for name in "qkv")
        return ops.np.swapaxes(ops.attention(*heads_last, causal=self.causal), 1, 2)

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """F.scaled_dot_product_attention picks the fused kernel."""
        import torch.nn.functional as F

        grouped = self.groups_of < self.heads

        def step(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)

        return Program(step, tuple(context.put(arrays[name]) for name in "qkv"))

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Products, since TensorFlow has no fused attention."""
        return self._products(tensorflow_layers, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """jax.nn.dot_product_attention, by cuDNN where it can be; plain products on the CPU."""
        import jax

        if jax.default_backend() == "cpu":
            return self._products(jax_layers, context, arrays)

        options = {"differentiated": self.differentiated}

        def step(q: Any, k: Any, v: Any) -> Any:
            return jax_layers.attention(q, k, v, causal=self.causal, **options)

        inputs = tuple(context.put(arrays[name].transpose(BTHD_OF_BHTD)) for name in "qkv")
        axes = dict.fromkeys("qkv", BTHD_OF_BHTD)
        notes = jax_layers.attention_notes(context.dtype, self.dim, (self.queries, self.length), **options)
        return Program(step, inputs, axes=BTHD_OF_BHTD, input_axes=axes, notes=notes)

    def _products(self, layers: Any, context: DeviceContext, arrays: Arrays) -> Program:
        """Products, mask and softmax, as users of the framework write them. `layers`: its functions."""
        groups, attend = self.heads // self.groups_of, layers.attention_products
        mask = layers.causal_mask(self.length, groups) if self.causal else None

        def step(q: Any, k: Any, v: Any) -> Any:
            return attend(q, k, v, mask)

        return Program(step, tuple(context.put(arrays[name]) for name in "qkv"), notes=self._masked_notes())

    def _masked_notes(self) -> tuple[Note, ...]:
        """A note where products of all pairs are computed, of which a causal mask needs about half."""
        if not self.causal:
            return ()
        times = 2 * self.length / (self.length + 1)
        return (note(NoteKind.EXECUTED, times=times, what="all pairs, of which the causal mask leaves half"),)


@dataclass(frozen=True)
class Attention(ScaledDotProduct):
    """Attention with as many queries as keys (Vaswani et al. 2017)."""

    batch: int = 4
    heads: int = 8
    length: int = 512
    dim: int = 64
    causal: bool = False
    kv_heads: int = 0

    summary = "scaled dot-product attention, fused where the framework has it"
    added = frozenset({"kv_heads"})

    def tiny(self) -> Self:
        """Odd length, distinct sizes, a width whose root no float has."""
        heads = 6 if self.kv_heads else 3
        return replace(self, batch=2, heads=heads, length=37, dim=24, kv_heads=2 if self.kv_heads else 0)


@dataclass(frozen=True)
class AttentionBackward(Backward, Attention):
    summary = "gradients of scaled dot-product attention"


@dataclass(frozen=True)
class AttentionDecode(ScaledDotProduct):
    """One query to the keys of all earlier tokens: what a language model computes for each new token.

    By default as many heads as a layer of Llama 3 8B has. Keys and values are most of the bytes moved.
    """

    batch: int = 8
    heads: int = 32
    kv_heads: int = 8
    length: int = 2048
    dim: int = 128

    summary = "attention of one query to a cache of keys and values"

    @property
    def queries(self) -> int:
        return 1

    def tiny(self) -> Self:
        return replace(self, batch=2, heads=6, kv_heads=2, length=37, dim=24)
