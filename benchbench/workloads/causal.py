"""Chains of causal blocks, written once for all frameworks, and generation with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._forward import LayerRecorder, Place
from benchbench.workloads._layers import Dense, Embedding, Layer, Norm, RmsNorm, Rotary, TiedLogits
from benchbench.workloads._programs import jax, tensorflow, torch, torch_layers
from benchbench.workloads._programs.numpy import ReferenceForward
from benchbench.workloads.base import DeviceContext, Draw, Program
from benchbench.workloads.network import BlockChain, Link
from benchbench.workloads.steps import Inference

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays


class CausalChain(BlockChain):
    """A language model. Implement `embed`, `block` and `output` with the operators of `Forward`.

    Layers, cost and programs are derived from these. Without positions, the tokens are the whole sequence.
    """

    length: int  # tokens per sample
    vocabulary: int

    input_names: ClassVar[tuple[str, ...]] = ("tokens",)
    images = frozenset()
    item = "token"

    @property
    def rows(self) -> int:
        """Tokens per sample that a step processes."""
        return self.length

    @property
    def logits(self) -> int:
        """Number of last tokens per sample for which the next token is predicted."""
        return self.rows

    @property
    def items(self) -> int:
        """Tokens of a step."""
        return self.batch * self.rows

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.logits, self.vocabulary

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Uniformly random tokens."""
        return {"tokens": draw.integers("tokens", self.batch, self.rows, below=self.vocabulary)}

    def links(self) -> list[Link]:
        """Embeddings, blocks, and logits."""
        place, links = Place(), []

        def record(shares: tuple[str, ...], part: Callable[..., Any], x: Any, scope: str = "") -> Any:
            nn = LayerRecorder(self.length)
            nn.scope = scope
            result = part(nn, x)
            links.append(Link(layers=tuple(nn.layers), outputs=prod(result), shares=(*shares, *nn.shared)))
            return result

        x = record((), partial(self.embed, place=place), (self.rows,))
        for name in self.blocks:
            x = record(self.read_by_blocks, partial(self.block, place=place), x, name)
        record((), self.output, x)
        return links

    def torch(self) -> Any:
        """torch.nn's layers and F.scaled_dot_product_attention, which selects the fused kernel."""
        return torch_module(self)


def torch_module(network: CausalChain) -> Any:
    """The network as a module with a submodule per block; parameters have the weights' names."""
    from torch import Tensor, nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, name: str, layers: Sequence[Layer]) -> None:
            super().__init__()
            _add_modules(self, layers, f"{name}.")
            self.nn = torch_layers.TorchForward(self)

        def forward(self, x: Tensor, place: Place = Place()) -> Tensor:  # noqa: B008 - Place is immutable
            return network.block(self.nn, x, place)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            first, *blocks, last = network.links()
            _add_modules(self, first.layers)
            names_and_links = zip(network.blocks, blocks, strict=True)
            self.layers = nn.ModuleList(Block(name, link.layers) for name, link in names_and_links)
            _add_modules(self, last.layers)
            self.nn = torch_layers.TorchForward(self)

        def forward(self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None) -> Tensor:
            tables = self.nn.tables(network.read_by_blocks, tokens, positions)
            x = network.embed(self.nn, tokens, Place(positions))
            for index, block in enumerate(self.layers):
                x = block(x, Place(positions, tables, cache and cache[index]))
            return self.output(x)

        def links(self) -> list[Callable[[Tensor], Tensor]]:
            return [self.embed, *(partial(self.block, block) for block in self.layers), self.output]

        def embed(self, tokens: Tensor) -> Tensor:
            return network.embed(self.nn, tokens, Place())

        def block(self, block: nn.Module, x: Tensor) -> Tensor:
            return block(x, Place(tables=self.nn.tables(network.read_by_blocks, x, None)))

        def output(self, x: Tensor) -> Tensor:
            return network.output(self.nn, x)

    return Model()


def _add_modules(module: Any, layers: Sequence[Layer], prefix: str = "") -> None:
    """Add a torch.nn module for each layer, or buffers for tables that are not learnt."""
    import torch

    for layer in layers:
        match layer:
            case Rotary():
                for name, weight in layer.weights().items():
                    module.register_buffer(name, torch.empty(weight.shape))
            case TiedLogits():
                module.logits = torch_layers.tied_dense()
            case Dense() | Norm() | RmsNorm() | Embedding():
                module.add_module(layer.name.removeprefix(prefix), torch_layers.module_of(layer))


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
    multiples = (("width", "heads"), ("heads", "kv_heads"))
    embedding_scale: ClassVar[float] = 0.02  # Radford et al. 2019

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


ROUNDING_WIDTH = 128  # a multiple of the heads of all tiny decoders


class Generation(Decoder, Inference):
    """The logits of one token."""

    @property
    def logits(self) -> int:
        return 1

    def rounding_size(self) -> Self:
        """As deep as the network and as wide as affordable, since longer sums have larger errors."""
        tiny = self.tiny()
        width = ROUNDING_WIDTH if self.width >= ROUNDING_WIDTH else tiny.width
        return replace(tiny, depth=self.depth, width=width)  # type: ignore[call-arg]  # each is a dataclass

    def build_torch(self, context: DeviceContext, arrays: Arrays) -> Program:
        """`nn.Module`; the cache's tensors are written in place."""
        return torch.generation(self, context, arrays)

    def build_tensorflow(self, context: DeviceContext, arrays: Arrays) -> Program:
        """TensorFlow operations on variables, including those of the cache."""
        return tensorflow.generation(self, context, arrays)

    def build_jax(self, context: DeviceContext, arrays: Arrays) -> Program:
        """Functions of the weights; the step takes the cache's arrays and returns them."""
        return jax.generation(self, context, arrays)


class Prefill(Generation):
    """A prompt of `length` tokens: the logits of the next token, and the cache. Times the first token."""


class Decode(Generation):
    """The token at position `length` − 1, with the `length` − 1 tokens before it in the cache."""

    input_names = ("prompt", "tokens")
    samples_apart = False  # each sample has its own prompt in the cache, which inputs do not replace

    @property
    def rows(self) -> int:
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 2:
            raise UsageError("length=1 leaves no prompt; it must be at least 2.")

    def is_input(self, name: str) -> bool:
        """The prompt is not an input, since it is in the cache."""
        return name == "tokens"

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """The prompt and the token after it."""
        prompt = draw.integers("prompt", self.batch, self.length - 1, below=self.vocabulary)
        return {"prompt": prompt, **super().inputs(draw)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Compute the whole sequence without a cache, like Prefill with one more token."""
        tokens = ops.np.concatenate([arrays["prompt"], arrays["tokens"]], axis=1)
        weights = {name: arrays[name] for name in self.weights()}
        return self.apply(ReferenceForward(ops, weights), tokens)
