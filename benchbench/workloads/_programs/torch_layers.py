"""Layers of networks in torch: modules of a layer's data, and what torch.nn has not."""

from __future__ import annotations

from typing import Any

from benchbench.workloads._conv_layers import Conv, ConvTranspose
from benchbench.workloads._layers import EPSILON, Dense, Embedding, Norm, RmsNorm


def conv(layer: Conv) -> Any:
    """nn.Conv2d, or its like in another number of dimensions."""
    from torch import nn

    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    return kinds[len(layer.sizes)](
        layer.inputs, layer.outputs, layer.kernels, layer.strides, layer.padding, bias=layer.bias
    )


def conv_transpose(layer: ConvTranspose) -> Any:
    """An nn.ConvTranspose2d of the layer's sizes."""
    from torch import nn

    return nn.ConvTranspose2d(
        layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.edge, bias=layer.bias
    )


def dense(layer: Dense) -> Any:
    """An nn.Linear of the layer's sizes."""
    from torch import nn

    return nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)


def tied_dense(outputs: int | None = None) -> Any:
    """A product with a table that is another layer's; with a bias where it has `outputs`."""
    import torch.nn.functional as F
    from torch import Tensor, nn, zeros

    class TiedDense(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bias = None if outputs is None else nn.Parameter(zeros(outputs))

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return F.linear(x, table, self.bias)

    return TiedDense()


def encoder_layers(depth: int, width: int, heads: int, feed_forward: int, **options: Any) -> Any:
    """A list of nn.TransformerEncoderLayer with exact GELU and without dropout; `options` are passed on."""
    from torch import nn

    own = {"dropout": 0.0, "activation": "gelu", "batch_first": True, **options}
    return nn.ModuleList(nn.TransformerEncoderLayer(width, heads, feed_forward, **own) for _ in range(depth))


def module_of(layer: Conv | ConvTranspose | Dense | Embedding | Norm | RmsNorm) -> Any:
    """The module of torch.nn for a layer; of norms, layer normalisation."""
    from torch import nn

    match layer:
        case Dense():
            return dense(layer)
        case Conv():
            return conv(layer)
        case ConvTranspose():
            return conv_transpose(layer)
        case Embedding():
            return nn.Embedding(layer.count, layer.width)
        case Norm():
            return nn.LayerNorm(layer.channels, bias=layer.shift is not None)
        case RmsNorm():
            return nn.RMSNorm(layer.channels, eps=EPSILON)


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """F.scaled_dot_product_attention of (batch, length, heads, dim), which picks the fused kernel.

    Heads of `k` and `v` serve groups of those of `q`.
    """
    import torch.nn.functional as F

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = k.shape[1] < q.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return y.transpose(1, 2)


def attend(q: Any, k: Any, v: Any, positions: Any, cache: tuple[Any, Any] | None) -> Any:
    """Causal attention of (batch, length, heads, dim); keys and values are written to the cache.

    One query is a new token, and sees what is in the cache; several are a prompt, and see each other.
    """
    import torch
    import torch.nn.functional as F

    if cache is not None:
        for held, new in zip(cache, (k, v), strict=True):
            held.index_copy_(2, positions, new.transpose(1, 2))
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache
    seen = torch.arange(keys.shape[2], device=keys.device) <= positions
    # The queries of a group as rows: with a mask, no fused kernel shares keys among heads.
    grouped = q.view(len(q), keys.shape[1], -1, q.shape[3])
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[None]).view(q.shape)
