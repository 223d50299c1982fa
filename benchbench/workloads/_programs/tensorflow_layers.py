"""Layers of networks in TensorFlow: functions of NHWC tensors and of the weights by name."""

from __future__ import annotations

import math
from typing import Any

from benchbench.workloads._conv_layers import Conv, ConvTranspose
from benchbench.workloads._layers import DECAY, EPSILON

CHANNELS_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}  # by axes of an image: eager gradients of three want a name


def conv(x: Any, weights: dict[str, Any], conv: Conv) -> Any:
    """A convolution of images or videos, with its bias if any; SAME is lopsided under a stride."""
    import tensorflow as tf

    filters, edges = weights[f"{conv.name}.weight"], [[0, 0], *([e, e] for e in conv.padding), [0, 0]]
    lies = CHANNELS_LAST[len(conv.sizes)]
    if conv.keeps_size or not any(conv.padding):
        padding = "SAME" if conv.keeps_size else "VALID"
        y = tf.nn.convolution(x, filters, conv.strides, padding, data_format=lies)
    elif len(conv.sizes) == 2:
        y = tf.nn.conv2d(x, filters, conv.strides, edges)
    else:  # only conv2d takes explicit padding
        y = tf.nn.convolution(tf.pad(x, edges), filters, conv.strides, "VALID", data_format=lies)
    return _with_bias(y, weights, conv.name)


def leaky_relu(x: Any, slope: float) -> Any:
    """TensorFlow's operator; in float64 by hand, since the operator keeps its slope in float32."""
    import tensorflow as tf

    return tf.maximum(x, slope * x) if x.dtype == tf.float64 else tf.nn.leaky_relu(x, slope)


def conv_transpose(x: Any, weights: dict[str, Any], layer: ConvTranspose) -> Any:
    """A transposed convolution of images, with its bias where there is one."""
    import tensorflow as tf

    edge = [layer.edge, layer.edge]
    shape = (x.shape[0], layer.output_size, layer.output_size, layer.outputs)
    filters, edges = weights[f"{layer.name}.weight"], [[0, 0], edge, edge, [0, 0]]
    y = tf.nn.conv2d_transpose(x, filters, shape, layer.stride, edges if layer.edge else "VALID")
    return _with_bias(y, weights, layer.name)


def read_once(table: Any) -> Any:
    """A variable as a tensor, for rows to be gathered of it, as Keras' Embedding does.

    A variable that rows are gathered of is copied by every other read from then on (TensorFlow's
    EnsureSparseVariableAccess): the table of GPT-2 in each token's product with it.
    """
    import tensorflow as tf

    return tf.convert_to_tensor(table)


def max_pool(x: Any, window: int) -> Any:
    """Windows that do not overlap."""
    import tensorflow as tf

    return tf.nn.max_pool2d(x, window, window, "VALID")


def dense(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Product over the last axis, and the bias where there is one."""
    import tensorflow as tf

    return _with_bias(tf.matmul(x, weights[f"{name}.weight"]), weights, name)


def layer_norm(x: Any, weights: dict[str, Any], name: str, epsilon: float = EPSILON) -> Any:
    """Computed in float32 at least, as Keras does under mixed precision; with a bias where there is one."""
    import tensorflow as tf

    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    wide = tf.cast(x, real)
    gamma, beta = tf.cast(weights[f"{name}.weight"], real), weights.get(f"{name}.bias")
    beta = None if beta is None else tf.cast(beta, real)
    mean, variance = tf.nn.moments(wide, [-1], keepdims=True)
    return tf.cast(tf.nn.batch_normalization(wide, mean, variance, beta, gamma, epsilon), x.dtype)


def rms_norm(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Computed in float32 at least, as Keras does."""
    import tensorflow as tf

    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    wide = tf.cast(x, real)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(wide), -1, keepdims=True) + EPSILON)
    return tf.cast(wide * scale * tf.cast(weights[f"{name}.weight"], real), x.dtype)


def gelu(x: Any) -> Any:
    """x·Φ(x). tf.nn.gelu has its √2 in float32, whatever x is in."""
    import tensorflow as tf

    if x.dtype != tf.float64:
        return tf.nn.gelu(x)
    return 0.5 * x * (1 + tf.math.erf(x * tf.constant(math.sqrt(0.5), x.dtype)))


def gelu_tanh(x: Any) -> Any:
    """GELU by tanh. tf.nn.gelu has its constant in float32, whatever x is in."""
    import tensorflow as tf

    if x.dtype != tf.float64:
        return tf.nn.gelu(x, approximate=True)
    constant = tf.constant(0.044715, x.dtype)
    return 0.5 * x * (1 + tf.tanh(tf.constant(math.sqrt(2 / math.pi), x.dtype) * (x + constant * x**3)))


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Attention of (batch, length, heads, dim); heads of `k` and `v` serve groups of those of `q`."""
    import tensorflow as tf

    mask = causal_mask(q.shape[1], q.shape[2] // k.shape[2]) if causal else None
    q, k, v = (tf.transpose(x, [0, 2, 1, 3]) for x in (q, k, v))
    return tf.transpose(attention_products(q, k, v, mask), [0, 2, 1, 3])


def attention_products(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """softmax(q kᵀ / √d) v of (batch, heads, length, dim). TensorFlow has it not fused.

    Heads of `k` and `v` serve groups of those of `q`. `mask`, of (queries of a group, keys): who sees whom.
    """
    import tensorflow as tf

    batch, kv_heads, _, dim = k.shape
    grouped = tf.reshape(q * tf.constant(1 / math.sqrt(dim), q.dtype), [batch, kv_heads, -1, dim])
    scores = tf.matmul(grouped, k, transpose_b=True)
    if mask is not None:
        scores = tf.where(mask, scores, scores.dtype.min)
    return tf.reshape(tf.matmul(tf.nn.softmax(scores), v), q.shape)


def causal_mask(length: int, groups: int = 1) -> Any:
    """Each of `length` queries sees the keys up to its own; as often as heads share keys."""
    import tensorflow as tf

    return tf.tile(tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0), [groups, 1])


def batch_norm(
    x: Any, weights: dict[str, Any], name: str, *, training: bool, gathers_statistics: bool = False
) -> Any:
    """The fused kernel, whose parameters and statistics are float32 whatever x is; training moves these.

    TensorFlow's own operation: Keras 3 normalises in several, and takes four times as long to trace. It
    takes images: the frames of a video are rows to it. `gathers_statistics`: those of all replicas.
    """
    import tensorflow as tf

    if len(x.shape) > 4:
        batch, _, _, columns, channels = x.shape
        flat = tf.reshape(x, (batch, -1, columns, channels))
        kind = {"training": training, "gathers_statistics": gathers_statistics}
        return tf.reshape(batch_norm(flat, weights, name, **kind), x.shape)
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
    )
    if training and gathers_statistics:
        return _batch_norm_of_replicas(x, gamma, beta, mean, variance)
    if x.dtype == tf.float64:  # the fused kernel has none
        return _batch_norm64(x, gamma, beta, mean, variance, training=training)
    wide = [tf.cast(each, tf.float32) for each in (gamma, beta, mean, variance)]
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
    """Sums are all-reduced in float32 at least, as by Keras' BatchNormalization(synchronized=True)."""
    import tensorflow as tf

    wide = x if x.dtype == tf.float64 else tf.cast(x, tf.float32)
    own = [tf.reduce_mean(wide, [0, 1, 2]), tf.reduce_mean(tf.square(wide), [0, 1, 2])]
    replica = tf.distribute.get_replica_context()
    batch_mean, square = replica.all_reduce(tf.distribute.ReduceOp.MEAN, own)
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
    """Causal attention of (batch, length, heads, dim); keys and values are written to the cache.

    One query is a new token, and sees what is in the cache; several are a prompt, and see each other.
    """
    import tensorflow as tf

    if cache is not None:
        first, count = positions[0], q.shape[1]
        for held, new in zip(cache, (k, v), strict=True):
            held[:, :, first : first + count].assign(tf.transpose(new, [0, 2, 1, 3]))
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache
    seen = tf.range(keys.shape[2], dtype=positions.dtype) <= positions
    y = attention_products(tf.transpose(q, [0, 2, 1, 3]), keys, values, seen[None])
    return tf.transpose(y, [0, 2, 1, 3])
