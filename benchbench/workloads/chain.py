"""Networks that can be cut into stages: chains of layers, each fed by the one before."""

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
    """Consecutive layers that stay together: a chain is cut into stages between its links.

    `outputs`: how many elements of a sample it hands on. `shares`: weights of other links that it also reads.
    """

    layers: tuple[Layer, ...]
    outputs: int
    shares: tuple[str, ...] = ()

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Weights by PyTorch's names, its own and those that it shares."""
        return (*weights_of(self.layers), *self.shares)

    @property
    def flops(self) -> int:
        """FLOPs of one sample's forward pass."""
        return sum(layer.flops(1) for layer in self.layers)


class Chain(Network):
    """A network of links. Its torch module is an `nn.Sequential`, or has `links()`, a function for each."""

    flat = True

    @abstractmethod
    def links(self) -> Sequence[Link]:
        """Links in the order in which they are applied."""

    def layers(self) -> Sequence[Layer]:
        return [layer for link in self.links() for layer in link.layers]

    def lengthened(self, stages: int) -> Self:
        """The network with enough links for that many stages, where its depth can be chosen."""
        return self


class BlockChain(Chain):
    """A chain of equal blocks between an embedding, which makes their input, and an output layer."""

    flat = False

    @property
    @abstractmethod
    def blocks(self) -> list[str]:
        """The names of the blocks, with which those of their weights begin."""

    def jax(self, weights: dict[str, Any], *inputs: Any, **training: Any) -> Any:
        x = self.jax_embed(weights, *inputs)
        for name in self.blocks:
            x = self.jax_block(weights, name, x)
        return self.jax_output(weights, x)

    @abstractmethod
    def jax_embed(self, weights: dict[str, Any], inputs: Any, /) -> Any:
        """The first block's input."""

    @abstractmethod
    def jax_block(self, weights: dict[str, Any], name: str, x: Any) -> Any:
        """The output of the block of that name."""

    @abstractmethod
    def jax_output(self, weights: dict[str, Any], x: Any) -> Any:
        """The network's output, from the last block's."""


def cut_chain(links: Sequence[Link], stages: int) -> list[Sequence[Link]]:
    """Divide the links into consecutive stages, so that the largest stage has as few FLOPs as possible.

    There must be at least as many links as stages. Of equally good cuts, one is taken whose stages before the
    last are cut best among themselves.
    """
    sums = list(accumulate((link.flops for link in links), initial=0))
    ends = _ends(len(links), stages, lambda start, end: sums[end] - sums[start])
    return [links[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _ends(count: int, parts: int, cost: Callable[[int, int], int]) -> list[int]:
    """The ends of `parts` consecutive parts of `count` things; the costliest is as cheap as possible."""
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
