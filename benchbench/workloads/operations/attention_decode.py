"""Attention as a language model has it for each new token: one query, and the keys of all tokens so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from benchbench.workloads._attention import ScaledDotProduct


@dataclass(frozen=True)
class AttentionDecode(ScaledDotProduct):
    """The default heads are those of a layer of Llama 3 8B; the keys and values are most of what moves."""

    batch: int = 8
    heads: int = 32
    kv_heads: int = 8
    length: int = 2048
    dim: int = 128

    summary = "attention of one query to a cache of keys and values"

    @property
    def queries(self) -> int:
        return 1

    def tiny(self) -> Self:
        return replace(self, batch=2, heads=6, kv_heads=2, length=37, dim=24)
