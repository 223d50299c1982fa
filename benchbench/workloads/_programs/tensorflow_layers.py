"""Layers of networks in TensorFlow, as functions of NHWC tensors and of the weights by name."""

from __future__ import annotations

import math
from typing import Any

from benchbench.workloads._conv_layers import Conv, ConvTranspose
from benchbench.workloads._layers import DECAY, EPSILON

CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}  # by spatial axes; eager gradients of three need the name


def conv(x: Any, weights: dict[str, Any], conv: Conv) -> Any:
    """A convolution of images or videos, with its bias if any. SAME pads unevenly with a stride."""
    import tensorflow as tf

    filters, edges = weights[f"{conv.name}.weight"], [[0, 0], *([e, e] for e in conv.padding), [0, 0]]
    data_format = CHANNELS_LAST[len(conv.sizes)]
    if conv.keeps_size or not any(conv.padding):
        padding = "SAME" if conv.keeps_size else "VALID"
        y = tf.nn.convolution(x, filters, conv.strides, padding, data_format=data_format)
    elif len(conv.sizes) == 2:
        y = tf.nn.conv2d(x, filters, conv.strides, edges)
    else:  # only conv2d takes explicit padding
        y = tf.nn.convolution(tf.pad(x, edges), filters, conv.strides, "VALID", data_format=data_format)
    return _with_bias(y, weights, conv.name)


def leaky_relu(x: Any, slope: float) -> Any:
    """TensorFlow's operator; in float64 its formula, since the operator has its slope in float32."""
    import tensorflow as tf

    return tf.maximum(x, slope * x) if x.dtype == tf.float64 else tf.nn.leaky_relu(x, slope)


def conv_transpose(x: Any, weights: dict[str, Any], layer: ConvTranspose) -> Any:
    """A transposed convolution of images, with its bias if there is one."""
    import tensorflow as tf

    edge = [layer.edge, layer.edge]
    shape = (x.shape[0], layer.output_size, layer.output_size, layer.outputs)
    filters, edges = weights[f"{layer.name}.weight"], [[0, 0], edge, edge, [0, 0]]
    y = tf.nn.conv2d_transpose(x, filters, shape, layer.stride, edges if layer.edge else "VALID")
    return _with_bias(y, weights, layer.name)


def read_once(table: Any) -> Any:
    """A variable as a tensor, so that rows can be gathered from it, as in Keras' Embedding.

    If rows are gathered from the variable itself, every other read copies it from then on (TensorFlow's
    EnsureSparseVariableAccess). GPT-2 would copy its table for each token's product with it.
    """
    import tensorflow as tf

    return tf.convert_to_tensor(table)


def max_pool(x: Any, window: int) -> Any:
    """Maximum of windows that do not overlap."""
    import tensorflow as tf

    return tf.nn.max_pool2d(x, window, window, "VALID")


def dense(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Product over the last axis, with the bias if there is one."""
    import tensorflow as tf

    return _with_bias(tf.matmul(x, weights[f"{name}.weight"]), weights, name)


def layer_norm(x: Any, weights: dict[str, Any], name: str, epsilon: float = EPSILON) -> Any:
    """Layer normalisation in float32 or float64, as in Keras with mixed precision; the bias is optional."""
    import tensorflow as tf

    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    wide = tf.cast(x, real)
    gamma, beta = tf.cast(weights[f"{name}.weight"], real), weights.get(f"{name}.bias")
    beta = None if beta is None else tf.cast(beta, real)
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)
    return tf.cast(tf.nn.batch_normalization(wide, mean, variance, beta, gamma, epsilon), x.dtype)


def rms_norm(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Root mean square normalisation in float32 or float64, as in Keras."""
    import tensorflow as tf

    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    wide = tf.cast(x, real)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(wide), -1, keepdims=True) + EPSILON)
    return tf.cast(wide * scale * tf.cast(weights[f"{name}.weight"], real), x.dtype)


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


def batch_norm(
    x: Any, weights: dict[str, Any], name: str, *, training: bool, gathers_statistics: bool = False
) -> Any:
    """The fused kernel, with parameters and statistics in float32; training updates the statistics.

    This is TensorFlow's own operation. Keras 3 uses several, which take four times as long to trace. It takes
    images, so the frames of a video become rows. With `gathers_statistics`, the statistics are those of all
    replicas.
    """
    import tensorflow as tf

    if len(x.shape) > 4:
        batch, _, _, columns, channels = x.shape
        flat = tf.reshape(x, (batch, -1, columns, channels))
        options = {"training": training, "gathers_statistics": gathers_statistics}
        return tf.reshape(batch_norm(flat, weights, name, **options), x.shape)
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
    )
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


def _with_bias(y: Any, weights: dict[str, Any], name: str) -> Any:
    import tensorflow as tf

    bias = weights.get(f"{name}.bias")
    return y if bias is None else tf.nn.bias_add(y, tf.cast(bias, y.dtype))


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
