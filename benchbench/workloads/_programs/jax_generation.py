"""Decoders with a key-value cache in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchbench.workloads._programs.jax import put
from benchbench.workloads._programs.jax_layers import attention, attention_products
from benchbench.workloads.base import DeviceContext, Program

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays
    from benchbench.workloads.decoder import Decoder


def generation(network: Decoder, context: DeviceContext, arrays: Arrays) -> Program:
    """The state is the cache, whose memory is given to the next one."""
    import jax
    import numpy as np

    def step(cache: Any, weights: Any, tokens: Any, positions: Any) -> Any:
        after = dict(cache)
        logits = network.jax(dict(weights), tokens, training=False, positions=positions, cache=after)
        return after, logits

    weights, first = put(network, context, arrays), network.length - network.rows
    zeros = np.zeros(network.cache_shape, np.float32)
    cache = {name: (context.put(zeros), context.put(zeros)) for name in network.blocks}
    if first:
        cache, _ = jax.jit(step)(cache, weights, context.put(arrays["prompt"]), context.put(np.arange(first)))
    positions = context.put(np.arange(first, network.length))

    def given(arrays: Arrays) -> tuple[Any, ...]:
        return weights, context.put(arrays["tokens"]), positions

    return Program(step, given(arrays), (cache,), inputs_of=given)


def attend(q: Any, k: Any, v: Any, positions: Any, cache: dict[str, Any] | None, name: str) -> Any:
    """Causal attention of (batch, length, heads, dim); a block's next keys and values are put into `cache`.

    One query is a new token, and sees what is in the cache; several are a prompt, and see each other.
    """
    import jax.numpy as jnp
    from jax import lax

    if cache is not None:
        cache[name] = tuple(
            lax.dynamic_update_slice_in_dim(held, new.swapaxes(1, 2), positions[0], axis=2)
            for held, new in zip(cache[name], (k, v), strict=True)
        )
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache[name]
    seen = jnp.arange(keys.shape[2]) <= positions
    return attention_products(q.swapaxes(1, 2), keys, values, seen[None]).swapaxes(1, 2)
