"""What a decoder is: a network of causal blocks, which may have a cache of keys and values.

What is measured of it is training (`steps.py`), and what `generation.py` says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._layers import CausalAttention, Embedding, Layer, TiedLogits
from benchbench.workloads.base import Draw
from benchbench.workloads.network import BlockChain, Link

CACHE_MULTIPLE = 8  # to which a cache's length is rounded up, so that its rows are aligned


class Decoder(BlockChain):
    """A language model of causal blocks, whose logits are products with its table of tokens.

    Its forward functions take, besides the weights and the tokens, a `cache` of keys and values by block and
    the tokens' `positions`; without them the tokens are the whole sequence.
    """

    length: int  # tokens of a sample
    width: int
    depth: int  # blocks
    heads: int
    kv_heads: int  # of keys and values
    vocabulary: int

    input_names: ClassVar[tuple[str, ...]] = ("tokens",)
    images = frozenset()
    head_counts = ("heads", "kv_heads")
    item = "token"
    embedding_scale: ClassVar[float] = 0.02  # Radford et al. 2019
    read_by_blocks: ClassVar[tuple[str, ...]] = ()  # weights that every block reads

    def __post_init__(self) -> None:
        """Raise UsageError also for a width or heads that cannot be divided."""
        super().__post_init__()
        for name, value, divisor in (
            ("width", self.width, self.heads),
            ("heads", self.heads, self.kv_heads),
        ):
            if value % divisor:
                raise UsageError(f"{name}={value} must be a multiple of {divisor}.")

    @abstractmethod
    def block(self, name: str) -> Iterator[Layer]:
        """The layers of a block."""

    @abstractmethod
    def embeddings(self) -> Sequence[Layer]:
        """Tables of tokens and of positions."""

    @abstractmethod
    def last_norm(self) -> Layer:
        """The norm before the logits."""

    def links(self) -> list[Link]:
        """Embeddings, the blocks, and the logits, which read the tokens' table, too."""
        handed_on = self.rows * self.width
        return [
            Link(layers=tuple(self.embeddings()), outputs=handed_on),
            *(
                Link(layers=tuple(self.block(name)), outputs=handed_on, shares=self.read_by_blocks)
                for name in self.blocks
            ),
            Link(
                layers=(self.last_norm(), self.tied_logits),
                outputs=self.logits * self.vocabulary,
                shares=("tokens.weight",),
            ),
        ]

    def lengthened(self, stages: int) -> Self:
        return replace(self, depth=max(self.depth, stages))  # type: ignore[type-var]  # each is a dataclass

    def jax(
        self,
        weights: dict[str, Any],
        tokens: Any,
        *,
        training: bool,
        positions: Any = None,
        cache: Any = None,
    ) -> Any:
        x = self.jax_embed(weights, tokens, positions)
        for name in self.blocks:
            x = self.jax_block(weights, name, x, positions, cache)
        return self.jax_output(weights, x)

    @abstractmethod
    def jax_embed(self, weights: dict[str, Any], tokens: Any, positions: Any = None) -> Any:
        """Tokens as they enter the first block: (batch, tokens, width)."""

    @abstractmethod
    def jax_block(
        self, weights: dict[str, Any], name: str, x: Any, positions: Any = None, cache: Any = None
    ) -> Any:
        """What a block makes of its input, in the same shape."""

    @property
    def head(self) -> int:
        """The width of one."""
        return self.width // self.heads

    @property
    def rows(self) -> int:
        """Tokens of a sample that a step computes with."""
        return self.length

    @property
    def logits(self) -> int:
        """The last tokens whose next one is asked for: how many."""
        return self.rows

    @property
    def blocks(self) -> list[str]:
        return [f"layers.{index}" for index in range(self.depth)]

    @property
    def items(self) -> int:
        return self.batch * self.rows

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.logits, self.vocabulary

    def table(self, name: str, count: int) -> Embedding:
        """The embedding of tokens or of positions."""
        return Embedding(name=name, count=count, width=self.width, rows=self.rows, scale=self.embedding_scale)

    @property
    def attention(self) -> CausalAttention:
        """A block's attention."""
        return CausalAttention(
            rows=self.rows,
            length=self.length,
            width=self.width,
            heads=self.heads,
            kv_heads=self.kv_heads,
        )

    @property
    def tied_logits(self) -> TiedLogits:
        """Logits of the tokens that are asked for, by the table that embeds them."""
        return TiedLogits(width=self.width, vocabulary=self.vocabulary, rows=self.logits)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Any token is as likely as any other."""
        return {"tokens": draw.integers("tokens", self.batch, self.rows, below=self.vocabulary)}

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        """The shape of a block's keys, and of its values: batch, heads, positions, width of a head."""
        positions = -(-self.length // CACHE_MULTIPLE) * CACHE_MULTIPLE
        return self.batch, self.kv_heads, positions, self.head
