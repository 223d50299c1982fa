"""Layers of networks in JAX, as functions of NHWC arrays, and `JaxForward`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from benchbench.model.note import Note, NoteKind, note
from benchbench.workloads._forward import FunctionalForward, Place
from benchbench.workloads._layers import DECAY, EPSILON, Conv, ConvTranspose

FUSED_FROM, WIDE_FROM = 8.0, 9.0  # least compute capability for cuDNN's fused attention, and for wide heads
MAX_HEAD_WIDTH = {False: 128, True: 256}  # by whether the GPU supports wide heads


def layer_norm(x: Any, gamma: Any, beta: Any = None, epsilon: float = EPSILON) -> Any:
    """Layer normalisation in float32 or float64, as in Flax."""
    import jax.numpy as jnp
    from jax import lax

    real = jnp.promote_types(x.dtype, jnp.float32)
    wide = x.astype(real)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    y = centred * lax.rsqrt(variance + epsilon) * gamma.astype(real)
    return (y if beta is None else y + beta.astype(real)).astype(x.dtype)


def rms_norm(x: Any, gamma: Any) -> Any:
    """Root mean square normalisation in float32 or float64, as in Flax."""
    import jax.numpy as jnp
    from jax import lax

    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    scale = lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + EPSILON)
    return (wide * scale * gamma.astype(wide.dtype)).astype(x.dtype)


def batch_norm(x: Any, scale: Any, shift: Any, running: Any = None) -> tuple[Any, Any, Any]:
    """Normalise channels, the last axis, by `running` statistics or the batch's. Return also those.

    Computed in float32 or float64, as in Flax. The batch's variance is E[x²] − E[x]², which reads x once.
    """
    import jax.numpy as jnp
    from jax import lax

    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if running:
        mean, variance = (statistic.astype(wide.dtype) for statistic in running)
    else:
        axes = tuple(range(x.ndim - 1))
        mean = wide.mean(axis=axes)
        variance = jnp.maximum((wide * wide).mean(axis=axes) - mean * mean, 0)
    factor = scale.astype(wide.dtype) * lax.rsqrt(variance + EPSILON)
    return ((wide - mean) * factor + shift.astype(wide.dtype)).astype(x.dtype), mean, variance


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


class JaxForward(FunctionalForward):
    """Functions of the weights. A block's next keys and values replace those in the cache."""

    def __init__(self, weights: dict[str, Any], *, training: bool = False) -> None:
        """The next running statistics are put into `weights`."""
        import jax
        import jax.numpy as jnp

        super().__init__(weights, training=training)
        self.xp = jnp
        self.relu, self.leaky_relu = jax.nn.relu, jax.nn.leaky_relu
        self.silu, self.tanh = jax.nn.silu, jnp.tanh
        self.gelu = partial(jax.nn.gelu, approximate=False)
        self.gelu_tanh = partial(jax.nn.gelu, approximate=True)
        self.normalise_rows, self.normalise_rms, self.attention = layer_norm, rms_norm, attention
        self.concatenate, self.cast = jnp.concatenate, jax.lax.convert_element_type
        self.constant = jax.lax.stop_gradient

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return self._add_bias(x @ weight, bias)

    def _add_bias(self, y: Any, bias: Any) -> Any:
        """Add in float32 or float64: XLA's CPU kernels sum a bias's gradient in the dtype of the addition."""
        real = self.xp.promote_types(y.dtype, self.xp.float32)
        return y if bias is None else (y.astype(real) + bias.astype(real)).astype(y.dtype)

    def batch_norm(self, x: Any, name: str) -> Any:
        weights, names = self.weights, (f"{name}.running_mean", f"{name}.running_var")
        running = [weights[statistic] for statistic in names]
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        y, *statistics = batch_norm(x, scale, shift, None if self.training else running)
        if self.training:
            for statistic, before, new in zip(names, running, statistics, strict=True):
                after = DECAY * before.astype(new.dtype) + (1 - DECAY) * new
                weights[statistic] = after.astype(before.dtype)
        return y

    def take(self, x: Any, places: Any) -> Any:
        return self.xp.take_along_axis(x, places[..., None], axis=1)

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        table = self.table(name)
        return x + (table if all_positions else table[self._positions(x, place.positions)])

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        return tuple(self.weights[name][self._positions(x, positions)][:, None] for name in names)

    def _positions(self, x: Any, positions: Any) -> Any:
        return slice(x.shape[1]) if positions is None else positions

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        parts = x.reshape(*x.shape[:-1], 3, -1, width)
        return parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        y = attend(q, k, v, place.positions, place.cache, self.scope)
        return y.reshape(*q.shape[:2], -1)

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return x @ self.table(name).T

    def tied_dense(self, x: Any, table: str, name: str) -> Any:
        """XLA does not transpose the table in memory."""
        return self.linear(x, self.table(table).T, self.weights[f"{name}.bias"])

    def conv(self, x: Any, layer: Conv) -> Any:
        """On the CPU, 1 × 1 convolutions are products.

        For the gradient of the filters of a convolution, XLA transposes the images, and training ResNet-50
        takes 0.63 times as long with products (docs/why_slower.md).
        """
        import jax
        from jax import lax

        filters, bias = self.weights[f"{layer.name}.weight"], self.weights.get(f"{layer.name}.bias")
        if set(layer.kernels) == {1} and not any(layer.padding) and jax.default_backend() == "cpu":
            return self._add_bias(_pixelwise(x, filters, layer.strides), bias)
        axes, edges = "DHW"[-len(layer.sizes) :], [(edge, edge) for edge in layer.padding]
        orders = f"N{axes}C", f"{axes}IO", f"N{axes}C"
        y = lax.conv_general_dilated(x, filters, layer.strides, edges, dimension_numbers=orders)
        return self._add_bias(y, bias)

    def conv_transpose(self, x: Any, layer: ConvTranspose) -> Any:
        """lax pads the image spread by the stride."""
        from jax import lax

        edge = layer.kernel - 1 - layer.edge
        y = lax.conv_transpose(
            x,
            self.weights[f"{layer.name}.weight"],
            (layer.stride, layer.stride),
            [(edge, edge)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            transpose_kernel=True,
        )
        return self._add_bias(y, self.weights.get(f"{layer.name}.bias"))

    def max_pool(self, x: Any, window: int) -> Any:
        """By a reshape, which takes half the time of reduce_window on a CPU."""
        batch, height, width, channels = x.shape
        rows, columns = height // window, width // window
        cropped = x[:, : rows * window, : columns * window]
        return cropped.reshape(batch, rows, window, columns, window, channels).max(axis=(2, 4))

    def overlapping_max_pool(self, x: Any) -> Any:
        from jax import lax

        edges = ((0, 0), (1, 1), (1, 1), (0, 0))
        return lax.reduce_window(x, -self.xp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)

    def mean_pixels(self, x: Any) -> Any:
        return x.mean(axis=tuple(range(1, x.ndim - 1)))


def _pixelwise(x: Any, filters: Any, strides: tuple[int, ...]) -> Any:
    """Product over the channels with a row per pixel, since more than two axes cost time."""
    x = x[(slice(None), *(slice(None, None, stride) for stride in strides))]
    inputs, outputs = filters.shape[-2:]
    return (x.reshape(-1, inputs) @ filters.reshape(inputs, outputs)).reshape(*x.shape[:-1], outputs)
