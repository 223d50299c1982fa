"""Decoders: causal chains with a cache of keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads.causal import CausalChain

CACHE_MULTIPLE = 8  # a cache's length is rounded up to a multiple of this, so that its rows are aligned


class Decoder(CausalChain):
    """A language model that can generate. Its logits are products with its table of tokens.

    Besides training (`steps.py`), `generation.py` measures the processing of a prompt and the generation of a
    token.
    """

    width: int
    depth: int  # blocks
    heads: int
    kv_heads: int  # heads of keys and values

    head_counts = ("heads", "kv_heads")
    embedding_scale: ClassVar[float] = 0.02  # Radford et al. 2019

    def __post_init__(self) -> None:
        """Also raise UsageError for a width or heads that cannot be divided."""
        super().__post_init__()
        for name, value, divisor in (
            ("width", self.width, self.heads),
            ("heads", self.heads, self.kv_heads),
        ):
            if value % divisor:
                raise UsageError(f"{name}={value} must be a multiple of {divisor}.")

    def lengthened(self, stages: int) -> Self:
        return replace(self, depth=max(self.depth, stages))  # type: ignore[type-var]  # a dataclass

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def blocks(self) -> list[str]:
        return [f"layers.{index}" for index in range(self.depth)]

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """Shape of a block's keys and of its values: batch, heads, positions, width of a head."""
        positions = -(-self.length // CACHE_MULTIPLE) * CACHE_MULTIPLE
        return self.batch, self.kv_heads, positions, self.head
