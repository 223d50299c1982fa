"""Layers of networks in torch: modules for layers, operations that torch.nn lacks, and `TorchForward`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchbench.workloads._forward import Forward, Place
from benchbench.workloads._layers import EPSILON, Conv, ConvTranspose, Dense, Embedding, Norm, RmsNorm


def tied_dense(outputs: int | None = None) -> Any:
    """Product with the table of another layer, and with a bias if `outputs` is set."""
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
    """A list of nn.TransformerEncoderLayer with exact GELU, without dropout. `options` are passed on."""
    from torch import nn

    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, **options}
    return nn.ModuleList(
        nn.TransformerEncoderLayer(width, heads, feed_forward, **settings) for _ in range(depth)
    )


def module_of(layer: Conv | ConvTranspose | Dense | Embedding | Norm | RmsNorm) -> Any:
    """The torch.nn module of a layer. A `Norm` becomes a layer normalisation."""
    from torch import nn

    match layer:
        case Dense():
            return nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
        case Conv():
            kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[len(layer.sizes)]
            sizes = layer.kernels, layer.strides, layer.padding
            return kind(layer.inputs, layer.outputs, *sizes, bias=layer.bias)
        case ConvTranspose():
            kind, edge = nn.ConvTranspose2d, layer.edge
            return kind(layer.inputs, layer.outputs, layer.kernel, layer.stride, edge, bias=layer.bias)
        case Embedding():
            return nn.Embedding(layer.count, layer.width)
        case Norm():
            return nn.LayerNorm(layer.channels, bias=layer.shift is not None)
        case RmsNorm():
            return nn.RMSNorm(layer.channels, eps=EPSILON)


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """F.scaled_dot_product_attention of (batch, length, heads, dim), which selects the fused kernel.

    Heads of `k` and `v` serve groups of heads of `q`.
    """
    import torch.nn.functional as F

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = k.shape[1] < q.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return y.transpose(1, 2)


def attend(q: Any, k: Any, v: Any, positions: Any, cache: tuple[Any, Any] | None) -> Any:
    """Causal attention of (batch, length, heads, dim). Keys and values are written to the cache.

    A single query is a new token, which attends to the cache. Several are a prompt, and attend to each other.
    """
    import torch
    import torch.nn.functional as F

    if cache is not None:
        for buffer, new in zip(cache, (k, v), strict=True):
            buffer.index_copy_(2, positions, new.transpose(1, 2))
    if cache is None or q.shape[1] > 1:
        return attention(q, k, v, causal=True)
    keys, values = cache
    is_visible = torch.arange(keys.shape[2], device=keys.device) <= positions
    # The queries of a group are rows, since no fused kernel with a mask shares keys among heads.
    grouped = q.view(len(q), keys.shape[1], -1, q.shape[3])
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=is_visible[None]).view(q.shape)


class TorchForward(Forward):
    """Modules of torch.nn. Each keeps its operators, and these keep functions: the host's time counts."""

    def __init__(self, module: Any) -> None:
        """`module`: the network or a block, whose modules have the layers' names."""
        import torch
        import torch.nn.functional as F

        self.arange, self.cat = torch.arange, torch.cat
        self.gelu, self.gelu_tanh, self.silu = F.gelu, partial(F.gelu, approximate="tanh"), F.silu
        self.module = module
        self.parts = module._modules

    def dense(self, x: Any, name: str, outputs: int, **_: Any) -> Any:
        return self.parts[name](x)

    def layer_norm(self, x: Any, name: str, *, bias: bool = True) -> Any:
        return self.parts[name](x)

    def rms_norm(self, x: Any, name: str) -> Any:
        return self.parts[name](x)

    def embedding(self, x: Any, name: str, *_: Any, tied: bool = False, **__: Any) -> Any:
        return self.parts[name](x)

    def add_positions(self, x: Any, name: str, place: Place, *, all_positions: bool = False, **_: Any) -> Any:
        return x + self.parts[name](self._positions(x, place.positions))

    def tables(self, names: Sequence[str], x: Any, positions: Any) -> tuple[Any, ...]:
        if not names:
            return ()
        rows = self._positions(x, positions)
        return tuple(getattr(self.module, name)[rows][:, None] for name in names)

    def _positions(self, x: Any, positions: Any) -> Any:
        return self.arange(x.shape[1], device=x.device) if positions is None else positions

    def rotated(self, x: Any, place: Place) -> Any:
        cos, sin = place.tables
        first, second = x.chunk(2, dim=-1)
        return x * cos.to(x.dtype) + self.cat([-second, first], dim=-1) * sin.to(x.dtype)

    def heads(self, x: Any, width: int) -> Any:
        return x.unflatten(-1, (-1, width))

    def query_key_value(self, x: Any, width: int) -> tuple[Any, Any, Any]:
        return x.unflatten(-1, (3, -1, width)).unbind(2)  # type: ignore[no-any-return]

    def causal_attention(self, q: Any, k: Any, v: Any, place: Place) -> Any:
        return attend(q, k, v, place.positions, place.cache).flatten(2)

    def tied_logits(self, x: Any, name: str, count: int) -> Any:
        return self.parts["logits"](x, self.parts[name].weight)
