"""Layers of networks in torch that torch.nn has not."""

from __future__ import annotations

from typing import Any


def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Of (batch, length, heads, dim) each: F.scaled_dot_product_attention, which picks the fused kernel."""
    import torch.nn.functional as F

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
