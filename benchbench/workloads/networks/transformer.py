"""A language model of two Transformer layers, as GPT-2 has them: normalised first, causal, exact GELU.

Vaswani et al. 2017; Radford et al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._layers import Dense, Embedding, Layer, Norm, SelfAttention
from benchbench.workloads._programs import jax_layers, tensorflow_layers, torch_layers
from benchbench.workloads.base import Draw
from benchbench.workloads.network import CAUSAL_LAYERS, BlockChain, Division, DivisionPlan, Link
from benchbench.workloads.steps import Inference, PipelinedTraining

LAYERS = 2
HEAD = 64  # the width of one
EXPANSION = 4  # of the hidden layer between `up` and `down`
NAMES = [f"layers.{index}" for index in range(LAYERS)]


@dataclass(frozen=True)
class Transformer(BlockChain):
    """The logits of each next token; learnt positions, no dropout, the embedding not tied to the output."""

    batch: int = 16
    length: int = 256
    hidden: int = 512
    vocabulary: int = 8192

    input_names = ("tokens",)
    images = frozenset()
    item = "token"
    head_counts = ("heads",)
    tensor_parallel: ClassVar[DivisionPlan] = {
        "tokens": Division.VOCABULARY,
        **CAUSAL_LAYERS,
        "head": Division.LOGITS,
    }

    def __post_init__(self) -> None:
        """Raise UsageError also for a hidden width that is no multiple of a head's."""
        super().__post_init__()
        if self.hidden % HEAD:
            raise UsageError(f"hidden={self.hidden} must be a multiple of {HEAD}.")

    @property
    def heads(self) -> int:
        """Heads of each layer."""
        return self.hidden // HEAD

    @property
    def items(self) -> int:
        return self.batch * self.length

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.length, self.vocabulary

    @property
    def blocks(self) -> list[str]:
        return NAMES

    def links(self) -> list[Link]:
        """Embeddings, the blocks, and the output; each of a block's halves is added to what it was given."""
        width, length = self.hidden, self.length
        tables = [("tokens", self.vocabulary), ("positions", length)]
        embeddings = (Embedding(name=name, count=n, width=width, rows=length) for name, n in tables)
        head = Dense(name="head", inputs=width, outputs=self.vocabulary, rows=length)
        return [
            Link(layers=tuple(embeddings), outputs=length * width),
            *(Link(layers=tuple(self._layer(name)), outputs=length * width) for name in NAMES),
            Link(layers=(Norm(name="norm", channels=width), head), outputs=length * self.vocabulary),
        ]

    def _layer(self, name: str) -> Iterator[Layer]:
        width, length = self.hidden, self.length
        yield Norm(name=f"{name}.norm1", channels=width)
        # Softmax does not see a bias of the keys: its gradient would be rounding, which Adam makes large.
        yield Dense(name=f"{name}.qkv", inputs=width, outputs=3 * width, rows=length, bias=False)
        yield SelfAttention(length=length, width=width, heads=self.heads, causal=True)
        yield Dense(name=f"{name}.out", inputs=width, outputs=width, rows=length)
        yield Norm(name=f"{name}.norm2", channels=width)
        yield Dense(name=f"{name}.up", inputs=width, outputs=EXPANSION * width, rows=length)
        yield Dense(name=f"{name}.down", inputs=EXPANSION * width, outputs=width, rows=length)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Any token is as likely as any other."""
        return {"tokens": draw.integers("tokens", self.batch, self.length, below=self.vocabulary)}

    def tiny(self) -> Self:
        return replace(self, batch=2, length=14, hidden=2 * HEAD, vocabulary=96)

    def torch(self) -> Any:
        return torch_model(self)

    def tensorflow(self, weights: dict[str, Any], tokens: Any, *, training: bool) -> Any:
        import tensorflow as tf

        def dense(x: Any, name: str) -> Any:
            return tensorflow_layers.dense(x, weights, name)

        def norm(x: Any, name: str) -> Any:
            return tensorflow_layers.layer_norm(x, weights, name)

        def attention(qkv: Any) -> Any:
            q, k, v = tf.unstack(tf.reshape(qkv, [*tokens.shape, 3, self.heads, HEAD]), axis=2)
            y = tensorflow_layers.attention(q, k, v, causal=True)
            return tf.reshape(y, [*tokens.shape, self.hidden])

        x = tf.gather(weights["tokens.weight"], tokens) + weights["positions.weight"]
        for name in NAMES:
            x += dense(attention(dense(norm(x, f"{name}.norm1"), f"{name}.qkv")), f"{name}.out")
            up = dense(norm(x, f"{name}.norm2"), f"{name}.up")
            x += dense(tensorflow_layers.gelu(up), f"{name}.down")
        return dense(norm(x, "norm"), "head")

    def jax_embed(self, weights: dict[str, Any], tokens: Any) -> Any:
        return weights["tokens.weight"][tokens] + weights["positions.weight"]

    def jax_block(self, weights: dict[str, Any], name: str, x: Any) -> Any:
        import jax

        def dense(x: Any, name: str) -> Any:
            return jax_layers.dense(x, weights, name)

        def norm(x: Any, name: str) -> Any:
            return jax_layers.layer_norm(x, weights, name)

        qkv = dense(norm(x, f"{name}.norm1"), f"{name}.qkv")
        q, k, v = (part.reshape(*x.shape[:2], self.heads, HEAD) for part in jax.numpy.split(qkv, 3, axis=-1))
        x += dense(jax_layers.attention(q, k, v, causal=True).reshape(x.shape), f"{name}.out")
        up = dense(norm(x, f"{name}.norm2"), f"{name}.up")
        return x + dense(jax.nn.gelu(up, approximate=False), f"{name}.down")

    def jax_output(self, weights: dict[str, Any], x: Any) -> Any:
        return jax_layers.dense(jax_layers.layer_norm(x, weights, "norm"), weights, "head")

    def numpy(self, ops: Any, weights: dict[str, Any], tokens: Any, *, training: bool) -> Any:
        def dense(x: Any, name: str) -> Any:
            return ops.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

        def norm(x: Any, name: str) -> Any:
            return ops.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

        def attention(qkv: Any) -> Any:
            rows = qkv.shape[:2]
            parts = (part.reshape(*rows, self.heads, HEAD) for part in ops.np.split(qkv, 3, axis=-1))
            return ops.attention(*parts, causal=True).reshape(*rows, self.hidden)

        x = ops.add(ops.embedding(weights["tokens.weight"], tokens), weights["positions.weight"])
        for name in NAMES:
            x = ops.add(x, dense(attention(dense(norm(x, f"{name}.norm1"), f"{name}.qkv")), f"{name}.out"))
            x = ops.add(x, dense(ops.gelu(dense(norm(x, f"{name}.norm2"), f"{name}.up")), f"{name}.down"))
        return dense(norm(x, "norm"), "head")


@dataclass(frozen=True)
class TransformerInfer(Inference, Transformer):
    """Logits of every position: prefill, without a cache."""

    summary = "inference with a two-layer Transformer, all positions at once"


@dataclass(frozen=True)
class TransformerTrain(PipelinedTraining, Transformer):
    """Forward, backward and update, with Adam unless said otherwise."""

    optimizer: str = "adam"

    summary = "train a two-layer Transformer on the next token"


def torch_transformer_block(network: Transformer) -> Any:
    """The module of a block."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    width = network.hidden

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, EXPANSION * width), nn.Linear(EXPANSION * width, width)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, HEAD)).unbind(2)
            x = x + self.out(torch_layers.attention(q, k, v, causal=True).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    return Block


def torch_model(network: Transformer) -> Any:
    """The module as a user of PyTorch writes it."""
    import torch
    from torch import Tensor, nn

    width, block = network.hidden, torch_transformer_block(network)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(network.vocabulary, width)
            self.positions = nn.Embedding(network.length, width)
            self.layers = nn.ModuleList(block() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, network.vocabulary)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.output(x)

        def links(self) -> list[Callable[[Tensor], Tensor]]:
            return [self.embed, *self.layers, self.output]

        def embed(self, tokens: Tensor) -> Tensor:
            at = torch.arange(network.length, device=tokens.device)
            return self.tokens(tokens) + self.positions(at)

        def output(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x))

    return Model()
