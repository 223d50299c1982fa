"""Decoders with a key-value cache in TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads._programs.tensorflow import variables
from benchbench.workloads._programs.tensorflow_layers import attention, attention_products
from benchbench.workloads.base import DeviceContext, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays
    from benchbench.workloads.decoder import Decoder


def generation(network: Decoder, context: DeviceContext, arrays: Arrays) -> Program:
    """The cache is variables, of which a step assigns a slice."""
    import numpy as np
    import tensorflow as tf

    weights = variables(network, context, arrays)
    zeros = context.put(np.zeros(network.cache_shape, np.float32))
    with tf.device(context.device):
        cache = {
            name: tuple(tf.Variable(zeros, trainable=False) for _ in ("keys", "values"))
            for name in network.blocks
        }

    def step(tokens: Any, positions: Any) -> Any:
        return network.tensorflow(weights, tokens, training=False, positions=positions, cache=cache)

    first = network.length - network.rows
    if first:
        step(context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return context.put(arrays["tokens"]), positions

    return Program(step, given(arrays), inputs_of=given)


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
