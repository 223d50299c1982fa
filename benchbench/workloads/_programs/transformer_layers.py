"""Encoder and decoder layers of Transformers in TensorFlow, JAX and NumPy.

The order of operations in a layer is written once for the three. torch's programs use the layers of torch.nn,
so a mistake in the order would show as a deviation of torch from the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from benchbench.workloads._layers import EPSILON
from benchbench.workloads._programs import jax_layers, tensorflow_layers


@dataclass(frozen=True, kw_only=True)
class TransformerLayers(ABC):
    """Functions of the weights by torch.nn's names. `activation` and `norm_first` are as in torch.nn."""

    weights: dict[str, Any]
    heads: int
    activation: str = "relu"
    norm_first: bool = False
    epsilon: float = EPSILON

    def encoder_layer(self, x: Any, name: str) -> Any:
        """The computation of nn.TransformerEncoderLayer with the weights of this name."""
        x = self._residual(x, f"{name}.norm1", lambda x: self.self_attention(x, f"{name}.self_attn"))
        return self._residual(x, f"{name}.norm2", lambda x: self._feed_forward(x, name))

    def decoder_layer(self, x: Any, memory: Any, name: str) -> Any:
        """The computation of nn.TransformerDecoderLayer, causal, with the weights of this name."""
        x = self._residual(
            x, f"{name}.norm1", lambda x: self.self_attention(x, f"{name}.self_attn", causal=True)
        )
        x = self._residual(
            x, f"{name}.norm2", lambda x: self._cross_attention(x, memory, f"{name}.multihead_attn")
        )
        return self._residual(x, f"{name}.norm3", lambda x: self._feed_forward(x, name))

    def self_attention(self, x: Any, name: str, *, causal: bool = False) -> Any:
        """nn.MultiheadAttention of a sequence with itself."""
        weight, bias = (self.weights[f"{name}.in_proj_{part}"] for part in ("weight", "bias"))
        qkv = self.linear(x, weight, bias)
        return self._attention_output(name, *self.xp.split(qkv, 3, axis=-1), causal=causal)

    def dense(self, x: Any, name: str) -> Any:
        """The computation of nn.Linear with the weights of this name."""
        return self.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _cross_attention(self, x: Any, memory: Any, name: str) -> Any:
        weight, bias = (self.weights[f"{name}.in_proj_{part}"] for part in ("weight", "bias"))
        width = x.shape[-1]
        q = self.linear(x, self.outputs(weight, 0, width), bias[:width])
        kv = self.linear(memory, self.outputs(weight, width, 3 * width), bias[width:])
        return self._attention_output(name, q, *self.xp.split(kv, 2, axis=-1), causal=False)

    def _attention_output(self, name: str, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        heads = [self.xp.reshape(x, (*x.shape[:2], self.heads, -1)) for x in (q, k, v)]
        y = self.xp.reshape(self.attention(*heads, causal=causal), q.shape)
        return self.dense(y, f"{name}.out_proj")

    def _feed_forward(self, x: Any, name: str) -> Any:
        return self.dense(self.activate(self.dense(x, f"{name}.linear1")), f"{name}.linear2")

    def _residual(self, x: Any, norm: str, part: Any) -> Any:
        """Add the result of `part` to its input, with the norm before `part` or after the sum."""
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
        """Product over the last axis with the rows of an embedding's table, and a bias."""

    def outputs(self, weight: Any, start: int, stop: int) -> Any:
        """Columns of a weight for these outputs."""
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
    """TensorFlow operations on variables."""

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
        """XLA does not transpose the table in memory."""
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
    """The reference's operations, which may round. Weights have PyTorch's layout."""

    ops: Any = field(kw_only=True)

    @property
    def xp(self) -> Any:
        return self.ops.np

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.ops.linear(x, weight, bias)

    def tied(self, x: Any, table: Any, name: str) -> Any:
        """The table has the layout of a weight."""
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
