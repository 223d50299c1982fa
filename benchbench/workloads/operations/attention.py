"""Self-attention, causal or not, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from benchbench.workloads._attention import ScaledDotProduct
from benchbench.workloads.backward import Backward


@dataclass(frozen=True)
class Attention(ScaledDotProduct):
    """Attention with as many queries as keys (Vaswani et al. 2017)."""

    batch: int = 4
    heads: int = 8
    length: int = 512
    dim: int = 64
    causal: bool = False
    kv_heads: int = 0

    summary = "scaled dot-product attention, fused where the framework has it"
    added = frozenset({"kv_heads"})

    def tiny(self) -> Self:
        """Odd length, distinct sizes, a width whose root no float has."""
        heads = 6 if self.kv_heads else 3
        return replace(self, batch=2, heads=heads, length=37, dim=24, kv_heads=2 if self.kv_heads else 0)


@dataclass(frozen=True)
class AttentionBackward(Backward, Attention):
    """Gradients of queries, keys and values."""

    summary = "gradients of scaled dot-product attention"
