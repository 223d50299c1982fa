"""The layers of Transformers as torch.nn has them, as data: see `_layers.py`.

Their forward functions are torch.nn's own, and those of `_programs/transformer_layers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import ClassVar

from benchbench.workloads._layers import Dense, Layer, Norm
from benchbench.workloads._weights import Weight, bias_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadAttention:
    """nn.MultiheadAttention: queries, keys and values are projected, and the result once more."""

    name: str
    width: int
    heads: int
    length: int  # of the queries
    memory: int  # length of what is attended to
    causal: bool = False
    beside: ClassVar[bool] = False
    roundings: ClassVar[int] = 7  # two products with their biases, scores, softmax, result

    @property
    def products(self) -> int:
        """Products summed to a query, to a score, to a result, and to an output."""
        return 2 * self.width + self.width // self.heads + self.memory

    def weights(self) -> dict[str, Weight]:
        """Three matrices and biases in one, and those of the output: N(0, 1 / width) and small."""
        width, scale = self.width, 1 / sqrt(self.width)
        return {
            f"{self.name}.in_proj_weight": Weight(shape=(3 * width, width), scale=scale, axes=(1, 0)),
            f"{self.name}.in_proj_bias": Weight(shape=(3 * width,), scale=0.01, is_partly_idle=True),
            f"{self.name}.out_proj.weight": Weight(shape=(width, width), scale=scale, axes=(1, 0)),
            f"{self.name}.out_proj.bias": Weight(shape=(width,), scale=0.01),
        }

    def flops(self, batch: int) -> int:
        """Projections of queries, result, keys and values; QKᵀ and PV of the pairs that a mask leaves."""
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.length * self.memory
        projected = 2 * (2 * self.length + 2 * self.memory) * self.width**2
        return batch * (projected + 4 * pairs * self.width)

    def elements(self, batch: int) -> int:
        """Operand and result of both projections and of attention, and the weights, each once."""
        moved = 6 * self.length + 5 * self.memory  # as of two Dense and one SelfAttention
        if self.memory == self.length:
            moved -= self.memory  # the operand is projected to queries, keys and values at once
        return batch * moved * self.width + sum(prod(weight.shape) for weight in self.weights().values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedDense(Dense):
    """A product with a table of embeddings that is another layer's, and a bias of its own."""

    def weights(self) -> dict[str, Weight]:
        return bias_of(self.name, self.outputs, self.bias)


@dataclass(frozen=True, kw_only=True)
class TransformerSize:
    """What all layers of an encoder or a decoder have in common."""

    width: int
    heads: int
    feed_forward: int

    def encoder_layer(self, name: str, length: int) -> Iterator[Layer]:
        """Layers by nn.TransformerEncoderLayer's names; the order of its norms has no part in cost."""
        yield self._attention(f"{name}.self_attn", length, length)
        yield from self._fed(name, length, norms=2)

    def decoder_layer(self, name: str, length: int, memory: int) -> Iterator[Layer]:
        """Layers by nn.TransformerDecoderLayer's names: causal, then over the memory."""
        yield self._attention(f"{name}.self_attn", length, length, causal=True)
        yield self._attention(f"{name}.multihead_attn", length, memory)
        yield from self._fed(name, length, norms=3)

    def _attention(self, name: str, length: int, memory: int, *, causal: bool = False) -> Layer:
        return MultiHeadAttention(
            name=name, width=self.width, heads=self.heads, length=length, memory=memory, causal=causal
        )

    def _fed(self, name: str, length: int, norms: int) -> Iterator[Layer]:
        yield Dense(name=f"{name}.linear1", inputs=self.width, outputs=self.feed_forward, rows=length)
        yield Dense(name=f"{name}.linear2", inputs=self.feed_forward, outputs=self.width, rows=length)
        for index in range(norms):
            yield Norm(name=f"{name}.norm{index + 1}", channels=self.width)
