"""Layers of networks in torch that torch.nn has not."""

from __future__ import annotations

from typing import Any


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Of (batch, length, heads, dim): F.scaled_dot_product_attention, which picks the fused kernel.

    Heads of `k` and `v` serve groups of those of `q`.
    """
    import torch.nn.functional as F

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = k.shape[1] < q.shape[1]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
    return y.transpose(1, 2)
