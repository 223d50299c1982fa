"""Networks that can be cut into stages: their layers are a chain, each given what the one before it gave."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Self

from benchbench.workloads._layers import Layer, weights_of
from benchbench.workloads.network import Network


@dataclass(frozen=True, kw_only=True)
class Link:
    """Layers that are cut from others, not from each other.

    `outputs`: elements that it hands on, of one sample. `shares`: weights of other links that it reads, too.
    """

    layers: tuple[Layer, ...]
    outputs: int
    shares: tuple[str, ...] = ()

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """By PyTorch's names, its own and those that it shares."""
        return (*weights_of(self.layers), *self.shares)

    @property
    def flops(self) -> int:
        """Of one sample's forward pass."""
        return sum(layer.flops(1) for layer in self.layers)


class Chain(Network):
    """A network of links. Its torch module is an `nn.Sequential`, or has `links()`, a function for each."""

    @abstractmethod
    def links(self) -> Sequence[Link]:
        """In the order in which they are applied."""

    def layers(self) -> Sequence[Layer]:
        """Of all links."""
        return [layer for link in self.links() for layer in link.layers]

    def lengthened(self, stages: int) -> Self:
        """With enough links for so many stages, where its depth can be chosen."""
        return self


class BlockChain(Chain):
    """A chain of equal blocks, between what makes their input and what makes the output of theirs."""

    @property
    @abstractmethod
    def blocks(self) -> list[str]:
        """What the names of their weights begin with."""

    @abstractmethod
    def jax_embed(self, weights: dict[str, Any], inputs: Any, /) -> Any:
        """What the first block is given."""

    @abstractmethod
    def jax_block(self, weights: dict[str, Any], name: str, x: Any) -> Any:
        """What the block of that name hands on."""

    @abstractmethod
    def jax_output(self, weights: dict[str, Any], x: Any) -> Any:
        """The network's, of what the last block hands on."""


def cut_chain(links: Sequence[Link], stages: int) -> list[Sequence[Link]]:
    """Consecutive links for each stage, so that the most FLOPs of a stage are as few as they can be.

    There are at least as many links as stages. Of cuts that are as good, the first stages have the fewest.
    """
    sums = list(accumulate((link.flops for link in links), initial=0))
    ends = _ends(len(links), stages, lambda start, end: sums[end] - sums[start])
    return [links[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _ends(count: int, parts: int, cost: Callable[[int, int], int]) -> list[int]:
    """Where `parts` consecutive parts of `count` things end: the largest cost is the least it can be."""
    best: dict[int, tuple[int, list[int]]] = {end: (cost(0, end), [end]) for end in range(1, count + 1)}
    for part in range(2, parts + 1):
        best = {
            end: min(
                (max(best[start][0], cost(start, end)), [*best[start][1], end])
                for start in range(part - 1, end)
            )
            for end in range(part, count + 1)
        }
    return best[count][1]
