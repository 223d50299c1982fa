"""Encoder and decoder layers of Transformers, in TensorFlow, JAX and NumPy.

The order of a layer's parts is written once for the three. torch's programs are torch.nn's own layers, so a
mistake in the order would show as theirs deviating from the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from benchbench.workloads._layers import EPSILON
from benchbench.workloads._programs import jax_layers, tensorflow_layers


@dataclass(frozen=True, kw_only=True)
class TransformerLayers(ABC):
    """Functions of the weights by torch.nn's names; `activation` and `norm_first` as torch.nn has them."""

    weights: dict[str, Any]
    heads: int
    activation: str = "relu"
    norm_first: bool = False
    epsilon: float = EPSILON

    def encoder_layer(self, x: Any, name: str) -> Any:
        """The computation of nn.TransformerEncoderLayer, by the weights of that name."""
        x = self._around(x, f"{name}.norm1", lambda x: self.self_attention(x, f"{name}.self_attn"))
        return self._around(x, f"{name}.norm2", lambda x: self._fed(x, name))

    def decoder_layer(self, x: Any, memory: Any, name: str) -> Any:
        """The computation of nn.TransformerDecoderLayer, causal, by the weights of that name."""
        x = self._around(
            x, f"{name}.norm1", lambda x: self.self_attention(x, f"{name}.self_attn", causal=True)
        )
        x = self._around(
            x, f"{name}.norm2", lambda x: self._cross_attention(x, memory, f"{name}.multihead_attn")
        )
        return self._around(x, f"{name}.norm3", lambda x: self._fed(x, name))

    def self_attention(self, x: Any, name: str, *, causal: bool = False) -> Any:
        """nn.MultiheadAttention of a sequence with itself."""
        weight, bias = (self.weights[f"{name}.in_proj_{part}"] for part in ("weight", "bias"))
        qkv = self.linear(x, weight, bias)
        return self._attended(name, *self.xp.split(qkv, 3, axis=-1), causal=causal)

    def dense(self, x: Any, name: str) -> Any:
        """The computation of nn.Linear, by the weights of that name."""
        return self.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _cross_attention(self, x: Any, memory: Any, name: str) -> Any:
        weight, bias = (self.weights[f"{name}.in_proj_{part}"] for part in ("weight", "bias"))
        width = x.shape[-1]
        q = self.linear(x, self.outputs(weight, 0, width), bias[:width])
        kv = self.linear(memory, self.outputs(weight, width, 3 * width), bias[width:])
        return self._attended(name, q, *self.xp.split(kv, 2, axis=-1), causal=False)

    def _attended(self, name: str, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        apart = [self.xp.reshape(x, (*x.shape[:2], self.heads, -1)) for x in (q, k, v)]
        y = self.xp.reshape(self.attention(*apart, causal=causal), q.shape)
        return self.dense(y, f"{name}.out_proj")

    def _fed(self, x: Any, name: str) -> Any:
        return self.dense(self.activate(self.dense(x, f"{name}.linear1")), f"{name}.linear2")

    def _around(self, x: Any, norm: str, part: Any) -> Any:
        """A part of a layer, added to what it was given, normalised before it or after."""
        if self.norm_first:
            return self.add(x, part(self.norm(x, norm)))
        return self.norm(self.add(x, part(x)), norm)

    def add(self, a: Any, b: Any) -> Any:
        """Elementwise sum."""
        return a + b

    @property
    @abstractmethod
    def xp(self) -> Any:
        """The framework's module with `reshape` and `split`."""

    @abstractmethod
    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """Product over the last axis, and the bias."""

    @abstractmethod
    def tied(self, x: Any, table: Any, name: str) -> Any:
        """Product over the last axis with the rows of a table, which embeds what is put out; and a bias."""

    def outputs(self, weight: Any, start: int, stop: int) -> Any:
        """The columns of a weight that give these outputs."""
        return weight[:, start:stop]

    @abstractmethod
    def norm(self, x: Any, name: str) -> Any:
        """Layer normalisation."""

    @abstractmethod
    def activate(self, x: Any) -> Any:
        """ReLU, or GELU by the error function."""

    @abstractmethod
    def attention(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        """Attention of (batch, length, heads, dim)."""


@dataclass(frozen=True, kw_only=True)
class TensorFlowTransformerLayers(TransformerLayers):
    """TensorFlow's operations on variables."""

    @property
    def xp(self) -> Any:
        import tensorflow as tf

        return tf

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return tensorflow_layers.dense(x, {"it.weight": weight, "it.bias": bias}, "it")

    def tied(self, x: Any, table: Any, name: str) -> Any:
        """The table is not transposed in memory."""
        y = self.xp.matmul(x, table, transpose_b=True)
        return self.xp.nn.bias_add(y, self.xp.cast(self.weights[f"{name}.bias"], y.dtype))

    def norm(self, x: Any, name: str) -> Any:
        return tensorflow_layers.layer_norm(x, self.weights, name, self.epsilon)

    def activate(self, x: Any) -> Any:
        return tensorflow_layers.gelu(x) if self.activation == "gelu" else self.xp.nn.relu(x)

    def attention(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        return tensorflow_layers.attention(q, k, v, causal=causal)


@dataclass(frozen=True, kw_only=True)
class JaxTransformerLayers(TransformerLayers):
    """Functions of the weights."""

    @property
    def xp(self) -> Any:
        import jax.numpy as jnp

        return jnp

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return jax_layers.dense(x, {"it.weight": weight, "it.bias": bias}, "it")

    def tied(self, x: Any, table: Any, name: str) -> Any:
        """XLA transposes nothing in memory."""
        return self.linear(x, table.T, self.weights[f"{name}.bias"])

    def norm(self, x: Any, name: str) -> Any:
        return jax_layers.layer_norm(x, self.weights, name, self.epsilon)

    def activate(self, x: Any) -> Any:
        import jax

        return jax.nn.gelu(x, approximate=False) if self.activation == "gelu" else jax.nn.relu(x)

    def attention(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        return jax_layers.attention(q, k, v, causal=causal)


@dataclass(frozen=True, kw_only=True)
class NumpyTransformerLayers(TransformerLayers):
    """The reference's operations, which round where asked to; weights lie as in PyTorch."""

    ops: Any = field(kw_only=True)

    @property
    def xp(self) -> Any:
        return self.ops.np

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.ops.linear(x, weight, bias)

    def tied(self, x: Any, table: Any, name: str) -> Any:
        """The table lies as a weight does."""
        return self.linear(x, table, self.weights[f"{name}.bias"])

    def outputs(self, weight: Any, start: int, stop: int) -> Any:
        return weight[start:stop]

    def norm(self, x: Any, name: str) -> Any:
        return self.ops.layer_norm(
            x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.epsilon
        )

    def activate(self, x: Any) -> Any:
        return self.ops.gelu(x) if self.activation == "gelu" else self.ops.relu(x)

    def attention(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        return self.ops.attention(q, k, v, causal=causal)

    def add(self, a: Any, b: Any) -> Any:
        return self.ops.add(a, b)
