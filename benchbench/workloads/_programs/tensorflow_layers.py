"""Layers of networks in TensorFlow, as functions of NHWC tensors, and `TensorFlowForward`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchbench.workloads._forward import FunctionalForward, Place
from benchbench.workloads._layers import DECAY, EPSILON, Conv, ConvTranspose

CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}  # by spatial axes; eager gradients of three need the name


def layer_norm(x: Any, gamma: Any, beta: Any = None, epsilon: float = EPSILON) -> Any:
    """Layer normalisation in float32 or float64, as in Keras with mixed precision."""
    import tensorflow as tf

    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    wide = tf.cast(x, real)
    gamma, beta = tf.cast(gamma, real), None if beta is None else tf.cast(beta, real)
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)
    return tf.cast(tf.nn.batch_normalization(wide, mean, variance, beta, gamma, epsilon), x.dtype)


def rms_norm(x: Any, gamma: Any) -> Any:
    """Root mean square normalisation in float32 or float64, as in Keras."""
    import tensorflow as tf

    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    wide = tf.cast(x, real)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(wide), -1, keepdims=True) + EPSILON)
    return tf.cast(wide * scale * tf.cast(gamma, real), x.dtype)


def gelu(x: Any) -> Any:
    """x·Φ(x). In float64 by its formula, since tf.nn.gelu has its √2 in float32."""
    import tensorflow as tf

    if x.dtype != tf.float64:
        return tf.nn.gelu(x)
    return 0.5 * x * (1 + tf.math.erf(x * tf.constant(math.sqrt(0.5), x.dtype)))


def gelu_tanh(x: Any) -> Any:
    """GELU by tanh. In float64 by its formula, since tf.nn.gelu has its constant in float32."""
    import tensorflow as tf

    if x.dtype != tf.float64:
        return tf.nn.gelu(x, approximate=True)
    constant = tf.constant(0.044715, x.dtype)
    return 0.5 * x * (1 + tf.tanh(tf.constant(math.sqrt(2 / math.pi), x.dtype) * (x + constant * x**3)))


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Attention of (batch, length, heads, dim); heads of `k` and `v` serve groups of heads of `q`."""
    import tensorflow as tf

    mask = causal_mask(q.shape[1], q.shape[2] // k.shape[2]) if causal else None
    q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
    return tf.transpose(attention_products(q, k, v, mask), [0, 2, 1, 3])


def attention_products(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """softmax(q kᵀ / √d) v of (batch, heads, length, dim). TensorFlow has no fused operation for this.

    Heads of `k` and `v` serve groups of heads of `q`. `mask` (queries of a group, keys) is True where a query
    attends to a key.
    """
    import tensorflow as tf

    batch, kv_heads, _, dim = k.shape
    grouped = tf.reshape(q * tf.constant(1 / math.sqrt(dim), q.dtype), [batch, kv_heads, -1, dim])
    scores = tf.matmul(grouped, k, transpose_b=True)
    if mask is not None:
        scores = tf.where(mask, scores, scores.dtype.min)
    return tf.reshape(tf.matmul(tf.nn.softmax(scores), v), q.shape)


def causal_mask(length: int, groups: int = 1) -> Any:
    """Mask in which each of `length` queries attends to the keys up to its own, repeated for each group."""
    import tensorflow as tf

    return tf.tile(tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0), [groups, 1])


def batch_norm(x: Any, parameters: Any, *, training: bool, gathers_statistics: bool) -> Any:
    """The fused kernel, with parameters and statistics in float32; training updates the statistics.

    `parameters` are scale, shift, running mean and running variance. This is TensorFlow's own operation.
    Keras 3 uses several, which take four times as long to trace. It takes images, so the frames of a video
    become rows. With `gathers_statistics`, the statistics are those of all replicas.
    """
    import tensorflow as tf

    if len(x.shape) > 4:
        batch, _, _, columns, channels = x.shape
        flat = tf.reshape(x, (batch, -1, columns, channels))
        y = batch_norm(flat, parameters, training=training, gathers_statistics=gathers_statistics)
        return tf.reshape(y, x.shape)
    gamma, beta, mean, variance = parameters
    if training and gathers_statistics:
        return _batch_norm_of_replicas(x, gamma, beta, mean, variance)
    if x.dtype == tf.float64:  # not supported by the fused kernel
        return _batch_norm64(x, gamma, beta, mean, variance, training=training)
    wide = [tf.cast(parameter, tf.float32) for parameter in (gamma, beta, mean, variance)]
    y, next_mean, next_variance = tf.compat.v1.nn.fused_batch_norm(
        x, *wide, epsilon=EPSILON, is_training=training, exponential_avg_factor=1 - DECAY
    )
    if training:
        mean.assign(tf.cast(next_mean, mean.dtype))
        variance.assign(tf.cast(next_variance, variance.dtype))
    return y


def _batch_norm64(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any, *, training: bool) -> Any:
    import tensorflow as tf

    if not training:
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, EPSILON)
    batch_mean, batch_variance = tf.nn.moments(x, [0, 1, 2])
    mean.assign(DECAY * mean + (1 - DECAY) * batch_mean)
    variance.assign(DECAY * variance + (1 - DECAY) * batch_variance)
    return tf.nn.batch_normalization(x, batch_mean, batch_variance, beta, gamma, EPSILON)


def _batch_norm_of_replicas(x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    """All-reduce the sums in float32 or float64, as Keras' BatchNormalization(synchronized=True)."""
    import tensorflow as tf

    wide = x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    local_means = [tf.reduce_mean(wide, [0, 1, 2]), tf.reduce_mean(tf.square(wide), [0, 1, 2])]
    replica = tf.distribute.get_replica_context()
    batch_mean, square = replica.all_reduce(tf.distribute.ReduceOp.MEAN, local_means)
    batch_variance = tf.maximum(square - tf.square(batch_mean), 0)
    for running, new in ((mean, batch_mean), (variance, batch_variance)):
        running.assign(DECAY * running + (1 - DECAY) * tf.cast(new, running.dtype))
    scale, shift = tf.cast(gamma, wide.dtype), tf.cast(beta, wide.dtype)
    y = tf.nn.batch_normalization(wide, batch_mean, batch_variance, shift, scale, EPSILON)
    return tf.cast(y, x.dtype)


def attend(q: Any, k: Any, v: Any, positions: Any, cache: tuple[Any, Any] | None) -> Any:
    """Causal attention of (batch, length, heads, dim). Keys and values are written to the cache.

    A single query is a new token, which attends to the cache. Several are a prompt, and attend to each other.
    """
    import tensorflow as tf

    if cache is not None:
        first, count = positions[0], q.shape[1]
        for buffer, new in zip(cache, (k, v), strict=True):
            buffer[:, :, first : first + count].assign(tf.transpose(new, [0, 2, 1, 3]))
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache
    is_visible = tf.range(keys.shape[2], dtype=positions.dtype) <= positions
    y = attention_products(tf.transpose(q, [0, 2, 1, 3]), keys, values, is_visible[None])
    return tf.transpose(y, [0, 2, 1, 3])


class TensorFlowForward(FunctionalForward):
    """TensorFlow's operations on variables."""

    def __init__(
        self, weights: dict[str, Any], *, training: bool = False, gathers_statistics: bool = False
    ) -> None:
        """`gathers_statistics`: batch norm uses the statistics of all replicas."""
        import tensorflow as tf

        super().__init__(weights, training=training)
        self.xp = tf
        self.relu, self.silu, self.tanh = tf.nn.relu, tf.nn.silu, tf.tanh
        self.gelu, self.gelu_tanh = gelu, gelu_tanh
        self.normalise_rows, self.normalise_rms, self.attention = layer_norm, rms_norm, attention
        self.concatenate, self.cast, self.constant = tf.concat, tf.cast, tf.stop_gradient
        self.gathers_statistics = gathers_statistics
        self.tied_tables: dict[str, Any] = {}  # as tensors

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self._add_bias(self.xp.matmul(x, weight), bias)

    def _add_bias(self, y: Any, bias: Any) -> Any:
        return y if bias is None else self.xp.nn.bias_add(y, self.xp.cast(bias, y.dtype))

    def batch_norm(self, x: Any, name: str) -> Any:
        parts = ("weight", "bias", "running_mean", "running_var")
        parameters = [self.weights[f"{name}.{part}"] for part in parts]
        return batch_norm(x, parameters, training=self.training, gathers_statistics=self.gathers_statistics)

    def embedding(self, x: Any, name: str, *_: Any, tied: bool = False, **__: Any) -> Any:
        if tied:
            table = self.tied_tables[name] = self.table(name)
            return self.rows(table, x)
        return self.rows(self.weights[f"{name}.weight"], x)

    def table(self, name: str) -> Any:
        """The variable as a tensor, as in Keras' Embedding.

        If rows are gathered from the variable itself, every other read copies it from then on (TensorFlow's
        EnsureSparseVariableAccess). GPT-2 would copy its table for each token's product with it.
        """
        return self.xp.convert_to_tensor(self.weights[f"{name}.weight"])

    def rows(self, table: Any, index: Any) -> Any:
        return self.xp.gather(table, index)

    def take(self, x: Any, places: Any) -> Any:
        return self.xp.gather(x, places, batch_dims=1)

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        table = self.weights[f"{name}.weight"]
        return x + (table if all_positions else self.rows(table, self._positions(x, place.positions)))

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        if not names:
            return ()
        rows = self._positions(x, positions)
        return tuple(self.rows(self.weights[name], rows)[:, None] for name in names)

    def _positions(self, x: Any, positions: Any) -> Any:
        return self.xp.range(x.shape[1]) if positions is None else positions

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        parts = self.reshape(x, [*x.shape[:-1], 3, x.shape[-1] // (3 * width), width])
        return self.xp.unstack(parts, axis=2)  # type: ignore[no-any-return]

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        cache = place.cache and place.cache[self.scope]
        y = attend(q, k, v, place.positions, cache)
        return self.reshape(y, [*q.shape[:2], q.shape[2] * q.shape[3]])

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return self.xp.matmul(x, self.tied_tables[name], transpose_b=True)

    def tied_dense(self, x: Any, table: str, name: str) -> Any:
        """The table is not transposed in memory."""
        y = self.xp.matmul(x, self.weights[f"{table}.weight"], transpose_b=True)
        return self._add_bias(y, self.weights[f"{name}.bias"])

    def conv(self, x: Any, layer: Conv) -> Any:
        """SAME pads unevenly with a stride."""
        tf, filters = self.xp, self.weights[f"{layer.name}.weight"]
        edges = [[0, 0], *([edge, edge] for edge in layer.padding), [0, 0]]
        data_format = CHANNELS_LAST[len(layer.sizes)]
        if layer.keeps_size or not any(layer.padding):
            padding = "SAME" if layer.keeps_size else "VALID"
            y = tf.nn.convolution(x, filters, layer.strides, padding, data_format=data_format)
        elif len(layer.sizes) == 2:
            y = tf.nn.conv2d(x, filters, layer.strides, edges)
        else:  # only conv2d takes explicit padding
            y = tf.nn.convolution(tf.pad(x, edges), filters, layer.strides, "VALID", data_format=data_format)
        return self._add_bias(y, self.weights.get(f"{layer.name}.bias"))

    def conv_transpose(self, x: Any, layer: ConvTranspose) -> Any:
        edge = [layer.edge, layer.edge]
        shape = (x.shape[0], layer.output_size, layer.output_size, layer.outputs)
        filters, edges = self.weights[f"{layer.name}.weight"], [[0, 0], edge, edge, [0, 0]]
        padding = edges if layer.edge else "VALID"
        y = self.xp.nn.conv2d_transpose(x, filters, shape, layer.stride, padding)
        return self._add_bias(y, self.weights.get(f"{layer.name}.bias"))

    def max_pool(self, x: Any, window: int) -> Any:
        return self.xp.nn.max_pool2d(x, window, window, "VALID")

    def overlapping_max_pool(self, x: Any) -> Any:
        return self.xp.nn.max_pool2d(self.xp.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")

    def mean_pixels(self, x: Any) -> Any:
        return self.xp.reduce_mean(x, list(range(1, len(x.shape) - 1)))

    def leaky_relu(self, x: Any, slope: float) -> Any:
        """TensorFlow's operator; in float64 its formula, since the operator has its slope in float32."""
        tf = self.xp
        return tf.maximum(x, slope * x) if x.dtype == tf.float64 else tf.nn.leaky_relu(x, slope)
