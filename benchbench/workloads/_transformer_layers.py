"""Encoder and decoder layers of Transformers: their weights, and their computation in `FunctionalForward`.

torch's programs use the layers of torch.nn, so a mistake in the order of operations would show as a deviation
of torch from the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import EPSILON, Dense, Layer, MultiHeadAttention, Norm


@dataclass(frozen=True, kw_only=True)
class TransformerLayers:
    """Sizes and kind of all layers of an encoder or a decoder, as in torch.nn."""

    width: int
    heads: int
    feed_forward: int
    activation: str = "relu"  # or "gelu", by the error function
    norm_first: bool = False
    epsilon: float = EPSILON

    def encoder_layer(self, name: str, length: int) -> Iterator[Layer]:
        """Layers with the names in nn.TransformerEncoderLayer. The order of norms does not affect cost."""
        yield self._attention(f"{name}.self_attn", length, length)
        yield from self._dense_and_norms(name, length, norms=2)

    def decoder_layer(self, name: str, length: int, memory: int) -> Iterator[Layer]:
        """Layers with the names in nn.TransformerDecoderLayer: causal attention, then over the memory."""
        yield self._attention(f"{name}.self_attn", length, length, causal=True)
        yield self._attention(f"{name}.multihead_attn", length, memory)
        yield from self._dense_and_norms(name, length, norms=3)

    def _attention(self, name: str, length: int, memory: int, *, causal: bool = False) -> Layer:
        return MultiHeadAttention(
            name=name, width=self.width, heads=self.heads, length=length, memory=memory, causal=causal
        )

    def _dense_and_norms(self, name: str, length: int, norms: int) -> Iterator[Layer]:
        yield Dense(name=f"{name}.linear1", inputs=self.width, outputs=self.feed_forward, rows=length)
        yield Dense(name=f"{name}.linear2", inputs=self.feed_forward, outputs=self.width, rows=length)
        for index in range(norms):
            yield Norm(name=f"{name}.norm{index + 1}", channels=self.width)

    def encode(self, nn: FunctionalForward, x: Any) -> Any:
        """Output of nn.TransformerEncoderLayer, whose name is the scope of `nn`."""
        x = self._residual(nn, x, "norm1", lambda x: self._self_attention(nn, x, causal=False))
        return self._residual(nn, x, "norm2", lambda x: self._feed_forward(nn, x))

    def decode(self, nn: FunctionalForward, x: Any, memory: Any) -> Any:
        """Output of nn.TransformerDecoderLayer, causal, whose name is the scope of `nn`."""
        x = self._residual(nn, x, "norm1", lambda x: self._self_attention(nn, x, causal=True))
        x = self._residual(nn, x, "norm2", lambda x: self._cross_attention(nn, x, memory))
        return self._residual(nn, x, "norm3", lambda x: self._feed_forward(nn, x))

    def _self_attention(self, nn: FunctionalForward, x: Any, *, causal: bool) -> Any:
        weight, bias = (nn.weights[nn.full(f"self_attn.in_proj_{part}")] for part in ("weight", "bias"))
        q, k, v = nn.split(nn.linear(x, weight, bias), 3)
        return self._attention_output(nn, "self_attn", q, k, v, causal=causal)

    def _cross_attention(self, nn: FunctionalForward, x: Any, memory: Any) -> Any:
        weight, bias = (nn.weights[nn.full(f"multihead_attn.in_proj_{part}")] for part in ("weight", "bias"))
        width = self.width
        q = nn.linear(x, nn.outputs_of(weight, 0, width), bias[:width])
        k, v = nn.split(nn.linear(memory, nn.outputs_of(weight, width, 3 * width), bias[width:]), 2)
        return self._attention_output(nn, "multihead_attn", q, k, v, causal=False)

    def _attention_output(
        self, nn: FunctionalForward, name: str, q: Any, k: Any, v: Any, *, causal: bool
    ) -> Any:
        heads = [nn.reshape(x, (*x.shape[:2], self.heads, -1)) for x in (q, k, v)]
        y = nn.reshape(nn.attention(*heads, causal=causal), q.shape)
        return nn.dense(y, f"{name}.out_proj")

    def _feed_forward(self, nn: FunctionalForward, x: Any) -> Any:
        y = nn.dense(x, "linear1")
        return nn.dense(nn.gelu(y) if self.activation == "gelu" else nn.relu(y), "linear2")

    def _residual(self, nn: FunctionalForward, x: Any, norm: str, part: Callable[[Any], Any]) -> Any:
        """Add the result of `part` to its input, with the norm before `part` or after the sum."""
        if self.norm_first:
            return nn.add(x, part(nn.layer_norm(x, norm, epsilon=self.epsilon)))
        return nn.layer_norm(nn.add(x, part(x)), norm, epsilon=self.epsilon)
