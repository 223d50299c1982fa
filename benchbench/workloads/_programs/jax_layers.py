"""Layers of networks in JAX, as functions of NHWC arrays and of the weights by name."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from benchbench.model.note import Note, NoteKind, note
from benchbench.workloads._conv_layers import Conv, ConvTranspose
from benchbench.workloads._layers import DECAY, EPSILON

FUSED_FROM, WIDE_FROM = 8.0, 9.0  # least compute capability for cuDNN's fused attention, and for wide heads
MAX_HEAD_WIDTH = {False: 128, True: 256}  # by whether the GPU supports wide heads


def conv(x: Any, weights: dict[str, Any], conv: Conv) -> Any:
    """A convolution in as many dimensions as the layer has, with its bias if there is one.

    On the CPU, 1 × 1 convolutions are products. For the gradient of the filters of a convolution, XLA
    transposes the images, and training ResNet-50 takes 0.63 times as long with products (docs/why_slower.md).
    """
    import jax
    from jax import lax

    filters = weights[f"{conv.name}.weight"]
    if set(conv.kernels) == {1} and not any(conv.padding) and jax.default_backend() == "cpu":
        return _with_bias(_pixelwise(x, filters, conv.strides), weights, conv.name)
    axes, edges = "DHW"[-len(conv.sizes) :], [(edge, edge) for edge in conv.padding]
    orders = f"N{axes}C", f"{axes}IO", f"N{axes}C"
    y = lax.conv_general_dilated(x, filters, conv.strides, edges, dimension_numbers=orders)
    return _with_bias(y, weights, conv.name)


def _pixelwise(x: Any, filters: Any, strides: tuple[int, ...]) -> Any:
    """Product over the channels with a row per pixel, since more than two axes cost time."""
    x = x[(slice(None), *(slice(None, None, stride) for stride in strides))]
    inputs, outputs = filters.shape[-2:]
    return (x.reshape(-1, inputs) @ filters.reshape(inputs, outputs)).reshape(*x.shape[:-1], outputs)


def conv_transpose(x: Any, weights: dict[str, Any], layer: ConvTranspose) -> Any:
    """A transposed convolution of images, with its bias if any. lax pads the image spread by the stride."""
    from jax import lax

    edge = layer.kernel - 1 - layer.edge
    y = lax.conv_transpose(
        x,
        weights[f"{layer.name}.weight"],
        (layer.stride, layer.stride),
        [(edge, edge)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        transpose_kernel=True,
    )
    return _with_bias(y, weights, layer.name)


def max_pool(x: Any, window: int) -> Any:
    """Maximum of windows that do not overlap, by a reshape: half the time of reduce_window on a CPU."""
    batch, height, width, channels = x.shape
    rows, columns = height // window, width // window
    cropped = x[:, : rows * window, : columns * window]
    return cropped.reshape(batch, rows, window, columns, window, channels).max(axis=(2, 4))


def dense(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Product over the last axis, with the bias if there is one."""
    return _with_bias(x @ weights[f"{name}.weight"], weights, name)


def layer_norm(x: Any, weights: dict[str, Any], name: str, epsilon: float = EPSILON) -> Any:
    """Layer normalisation in float32 or float64, as in Flax, with a bias if there is one."""
    import jax.numpy as jnp
    from jax import lax

    real = jnp.promote_types(x.dtype, jnp.float32)
    gamma, beta = weights[f"{name}.weight"].astype(real), weights.get(f"{name}.bias")
    wide = x.astype(real)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    y = centred * lax.rsqrt(variance + epsilon) * gamma
    return (y if beta is None else y + beta.astype(real)).astype(x.dtype)


def rms_norm(x: Any, weights: dict[str, Any], name: str) -> Any:
    """Root mean square normalisation in float32 or float64, as in Flax."""
    import jax.numpy as jnp
    from jax import lax

    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + EPSILON)
    return (wide * scale * weights[f"{name}.weight"].astype(wide.dtype)).astype(x.dtype)


def batch_norm(x: Any, weights: dict[str, Any], name: str, *, training: bool) -> Any:
    """Batch normalisation in float32 or float64, as in Flax. Training updates the statistics in `weights`.

    The variance is E[x²] − E[x]², which reads x once.
    """
    import jax.numpy as jnp
    from jax import lax

    real = jnp.promote_types(x.dtype, jnp.float32)
    storage_dtype = weights[f"{name}.running_mean"].dtype
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"].astype(real) for part in ("weight", "bias", "running_mean", "running_var")
    )
    wide = x.astype(real)
    if training:
        axes = tuple(range(x.ndim - 1))
        batch_mean = wide.mean(axis=axes)
        batch_variance = jnp.maximum((wide * wide).mean(axis=axes) - batch_mean * batch_mean, 0)
        weights[f"{name}.running_mean"] = (DECAY * mean + (1 - DECAY) * batch_mean).astype(storage_dtype)
        weights[f"{name}.running_var"] = (DECAY * variance + (1 - DECAY) * batch_variance).astype(
            storage_dtype
        )
        mean, variance = batch_mean, batch_variance
    scale = gamma * lax.rsqrt(variance + EPSILON)
    return ((wide - mean) * scale + beta).astype(x.dtype)


def attention(q: Any, k: Any, v: Any, *, causal: bool = False, differentiated: bool = True) -> Any:
    """Attention of (batch, length, heads, dim): by cuDNN if possible, and by products on the CPU.

    Heads of `k` and `v` serve groups of heads of `q`. On the CPU, the fused call has no kernel of its own: it
    ran at half the speed of the products, and does not support float16. In float64 it computes the scores in
    float32. `differentiated` means that gradients may be computed.
    """
    import jax
    import jax.numpy as jnp

    if jax.default_backend() != "cpu" and q.dtype != jnp.float64:
        lengths = q.shape[1], k.shape[1]
        implementation = (
            "xla" if unfused(q.dtype, q.shape[-1], lengths, differentiated=differentiated) else "cudnn"
        )
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=implementation)
    mask = causal_mask(q.shape[1], q.shape[2] // k.shape[2]) if causal else None
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return attention_products(q, k, v, mask).swapaxes(1, 2)


def unfused(dtype: Any, width: int, lengths: Collection[int], *, differentiated: bool = True) -> str:
    """Reason why cuDNN has no fused attention for this head width and these sequence lengths, or "".

    JAX raises if a condition does not hold (jax/_src/cudnn/fused_attention_stablehlo.py). It reads the
    compute capability of its first device, and rejects odd lengths only if gradients are computed.
    """
    import jax

    device = jax.devices()[0]
    if "rocm" in getattr(device.client, "platform_version", "").lower():
        return "cuDNN runs on NVIDIA's GPUs, not on AMD's"
    if device.platform != "gpu":
        return f"cuDNN runs on NVIDIA's GPUs, not on {device.platform}"
    if dtype.itemsize != 2:
        return f"cuDNN has it in 16 bits, not in {dtype}"
    capability = float(device.compute_capability)
    if capability < FUSED_FROM:
        return f"cuDNN has it from compute capability {FUSED_FROM}; this GPU has {capability}"
    max_width = MAX_HEAD_WIDTH[capability >= WIDE_FROM]
    if width > max_width or width % 8:
        return f"cuDNN has it for heads of a multiple of 8, at most {max_width}; these have {width}"
    odd = [length for length in lengths if length % 2 and differentiated]
    return f"cuDNN has its gradients for even lengths; this one is {odd[0]}" if odd else ""


def attention_notes(
    dtype: Any, width: int, lengths: Collection[int], *, differentiated: bool = True
) -> tuple[Note, ...]:
    """A note on the implementation that `attention` calls; none if it uses products."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() == "cpu" or dtype == jnp.float64:
        return ()
    reason = unfused(dtype, width, lengths, differentiated=differentiated)
    by = f"XLA's, which stores the scores ({reason})" if reason else "cuDNN's fused kernel"
    return (note(NoteKind.ATTENTION, by=by),)


def attention_products(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """softmax(q kᵀ / √d) v of (batch, heads, length, dim).

    Heads of `k` and `v` serve groups of heads of `q`. `mask` (queries of a group, keys) is True where a query
    attends to a key.
    """
    import jax
    import jax.numpy as jnp

    batch, kv_heads, _, dim = k.shape
    grouped = (q * (1 / math.sqrt(dim))).reshape(batch, kv_heads, -1, dim)
    scores = jnp.matmul(grouped, k.swapaxes(-1, -2))
    return jnp.matmul(jax.nn.softmax(scores, where=mask), v).reshape(q.shape)


def causal_mask(length: int, groups: int = 1) -> Any:
    """Mask in which each of `length` queries attends to the keys up to its own, repeated for each group."""
    import jax.numpy as jnp

    return jnp.tile(jnp.tril(jnp.ones((length, length), bool)), (groups, 1))


def _with_bias(y: Any, weights: dict[str, Any], name: str) -> Any:
    """Add the bias in float32 or float64: XLA's CPU kernels sum its gradient in the dtype of the addition."""
    import jax.numpy as jnp

    bias, real = weights.get(f"{name}.bias"), jnp.promote_types(y.dtype, jnp.float32)
    return y if bias is None else (y.astype(real) + bias.astype(real)).astype(y.dtype)


def attend(q: Any, k: Any, v: Any, positions: Any, cache: dict[str, Any] | None, name: str) -> Any:
    """Causal attention of (batch, length, heads, dim). The block's next keys and values are put into `cache`.

    A single query is a new token, which attends to the cache. Several are a prompt, and attend to each other.
    """
    import jax.numpy as jnp
    from jax import lax

    if cache is not None:
        cache[name] = tuple(
            lax.dynamic_update_slice_in_dim(previous, new.swapaxes(1, 2), positions[0], axis=2)
            for previous, new in zip(cache[name], (k, v), strict=True)
        )
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache[name]
    is_visible = jnp.arange(keys.shape[2]) <= positions
    return attention_products(q.swapaxes(1, 2), keys, values, is_visible[None]).swapaxes(1, 2)
