"""GPT-2: training, reading a prompt, and generating a token (Radford et al. 2019).

The defaults are the smallest of the published sizes, without biases, as nanoGPT trains it: 124 337 664
parameters; with biases it would be 102 144 more. A bias of the keys would change nothing that softmax sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._layers import Dense, Layer, Norm
from benchbench.workloads._programs import (
    jax_layers,
    tensorflow_layers,
    torch_layers,
)
from benchbench.workloads.decoder import Decoder
from benchbench.workloads.generation import Decode, Prefill
from benchbench.workloads.network import CAUSAL_LAYERS, Division, DivisionPlan
from benchbench.workloads.steps import PipelinedTraining

EXPANSION = 4  # of the hidden layer between `up` and `down`


@dataclass(frozen=True)
class Gpt2(Decoder):
    """Normalised first, learnt positions, GELU by tanh; no dropout."""

    batch: int = 1
    length: int = 1024
    width: int = 768
    depth: int = 12
    heads: int = 12
    vocabulary: int = 50257
    context: int = 1024  # positions that are learnt

    tensor_parallel: ClassVar[DivisionPlan] = {
        "tokens": Division.VOCABULARY,
        **CAUSAL_LAYERS,
        "logits": Division.LOGITS,
    }
    added = frozenset({"width", "depth", "heads", "vocabulary", "context"})

    def __post_init__(self) -> None:
        """Raise UsageError also for more tokens than positions."""
        super().__post_init__()
        if self.length > self.context:
            raise UsageError(f"length={self.length} must be at most context={self.context}.")

    @property
    def kv_heads(self) -> int:  # type: ignore[override]
        """Each head has keys and values of its own."""
        return self.heads

    def tiny(self) -> Self:
        """Two blocks, a length that is even and no power of two, positions that are not used."""
        return replace(self, batch=2, length=14, width=32, depth=2, heads=2, vocabulary=96, context=17)

    def embeddings(self) -> list[Layer]:
        return [self.table("tokens", self.vocabulary), self.table("positions", self.context)]

    def last_norm(self) -> Norm:
        """Norms have no shift here."""
        return Norm(name="norm", channels=self.width, shift=None)

    def block(self, name: str) -> Iterator[Layer]:
        """Attention, then two dense layers: each half is added to what it was given."""
        width, rows = self.width, self.rows
        yield Norm(name=f"{name}.norm1", channels=width, shift=None)
        yield Dense(name=f"{name}.qkv", inputs=width, outputs=3 * width, rows=rows, bias=False)
        yield self.attention
        yield Dense(name=f"{name}.out", inputs=width, outputs=width, rows=rows, bias=False)
        yield Norm(name=f"{name}.norm2", channels=width, shift=None)
        yield Dense(name=f"{name}.up", inputs=width, outputs=EXPANSION * width, rows=rows, bias=False)
        yield Dense(name=f"{name}.down", inputs=EXPANSION * width, outputs=width, rows=rows, bias=False)

    def torch(self) -> Any:
        """torch.nn's layers and F.scaled_dot_product_attention, which picks the fused kernel."""
        return gpt2_module(self)

    def tensorflow(
        self,
        weights: dict[str, Any],
        tokens: Any,
        *,
        training: bool,
        positions: Any = None,
        cache: Any = None,
    ) -> Any:
        import tensorflow as tf

        def dense(x: Any, name: str) -> Any:
            return tensorflow_layers.dense(x, weights, name)

        def norm(x: Any, name: str) -> Any:
            return tensorflow_layers.layer_norm(x, weights, name)

        def attention(x: Any, name: str) -> Any:
            parts = tf.reshape(dense(x, f"{name}.qkv"), [*tokens.shape, 3, self.heads, self.head])
            q, k, v = tf.unstack(parts, axis=2)
            y = tensorflow_layers.attend(q, k, v, positions, cache and cache[name])
            return dense(tf.reshape(y, x.shape), f"{name}.out")

        at = tf.range(tokens.shape[1]) if positions is None else positions
        table = tensorflow_layers.read_once(weights["tokens.weight"])
        x = tf.gather(table, tokens) + tf.gather(weights["positions.weight"], at)
        for name in self.blocks:
            x += attention(norm(x, f"{name}.norm1"), name)
            up = dense(norm(x, f"{name}.norm2"), f"{name}.up")
            x += dense(tensorflow_layers.gelu_tanh(up), f"{name}.down")
        return tf.matmul(norm(x[:, -self.logits :], "norm"), table, transpose_b=True)

    def jax_embed(self, weights: dict[str, Any], tokens: Any, positions: Any = None) -> Any:
        at = slice(tokens.shape[1]) if positions is None else positions
        return weights["tokens.weight"][tokens] + weights["positions.weight"][at]

    def jax_block(
        self, weights: dict[str, Any], name: str, x: Any, positions: Any = None, cache: Any = None
    ) -> Any:
        import jax

        def dense(x: Any, name: str) -> Any:
            return jax_layers.dense(x, weights, name)

        def norm(x: Any, name: str) -> Any:
            return jax_layers.layer_norm(x, weights, name)

        parts = dense(norm(x, f"{name}.norm1"), f"{name}.qkv")
        parts = parts.reshape(*x.shape[:2], 3, self.heads, self.head)
        q, k, v = (parts[:, :, part] for part in range(3))
        y = jax_layers.attend(q, k, v, positions, cache, name)
        x += dense(y.reshape(x.shape), f"{name}.out")
        up = dense(norm(x, f"{name}.norm2"), f"{name}.up")
        return x + dense(jax.nn.gelu(up, approximate=True), f"{name}.down")

    def jax_output(self, weights: dict[str, Any], x: Any) -> Any:
        x = jax_layers.layer_norm(x[:, -self.logits :], weights, "norm")
        return x @ weights["tokens.weight"].T

    def numpy(self, ops: Any, weights: dict[str, Any], tokens: Any, *, training: bool) -> Any:
        def dense(x: Any, name: str) -> Any:
            return ops.linear(x, weights[f"{name}.weight"])

        def norm(x: Any, name: str) -> Any:
            return ops.layer_norm(x, weights[f"{name}.weight"], 0.0)

        def attention(x: Any, name: str) -> Any:
            parts = ops.np.split(dense(x, f"{name}.qkv"), 3, axis=-1)
            heads = (part.reshape(*tokens.shape, self.heads, self.head) for part in parts)
            return dense(ops.attention(*heads, causal=True).reshape(x.shape), f"{name}.out")

        table, positions = weights["tokens.weight"], weights["positions.weight"]
        x = ops.add(ops.embedding(table, tokens), positions[: tokens.shape[1]])
        for name in self.blocks:
            x = ops.add(x, attention(norm(x, f"{name}.norm1"), name))
            up = dense(norm(x, f"{name}.norm2"), f"{name}.up")
            x = ops.add(x, dense(ops.gelu_tanh(up), f"{name}.down"))
        return ops.linear(norm(x[:, -self.logits :], "norm"), table)


@dataclass(frozen=True)
class Gpt2Train(PipelinedTraining, Gpt2):
    """Forward, backward and update, with AdamW unless said otherwise."""

    optimizer: str = "adamw"

    summary = "train GPT-2 on the next token"
    added = Gpt2.added | PipelinedTraining.added


@dataclass(frozen=True)
class Gpt2Prefill(Prefill, Gpt2):
    """The prompt into the cache, and the logits of the token after it."""

    summary = "read a prompt with GPT-2: the time to the first token"


@dataclass(frozen=True)
class Gpt2Decode(Decode, Gpt2):
    """One token, from the cache of those before it."""

    summary = "generate a token with GPT-2 and a key-value cache"


def torch_gpt2_block(network: Gpt2) -> Any:
    """The module of a block."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    width = network.width
    linear, norm = partial(nn.Linear, bias=False), partial(nn.LayerNorm, width, bias=False)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = norm(), norm()
            self.qkv, self.out = linear(width, 3 * width), linear(width, width)
            self.up, self.down = linear(width, EXPANSION * width), linear(EXPANSION * width, width)

        def forward(self, x: Tensor, positions: Tensor | None = None, cache: Any = None) -> Tensor:
            parts = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, network.head))
            q, k, v = parts.unbind(2)
            x = x + self.out(torch_layers.attend(q, k, v, positions, cache).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    return Block


def gpt2_module(network: Gpt2) -> Any:
    """The module as a user of PyTorch writes it."""
    import torch
    from torch import Tensor, nn

    width, block = network.width, torch_gpt2_block(network)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(network.vocabulary, width)
            self.positions = nn.Embedding(network.context, width)
            self.layers = nn.ModuleList(block() for _ in range(network.depth))
            self.norm = nn.LayerNorm(width, bias=False)
            self.logits = torch_layers.tied_dense()

        def forward(self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None) -> Tensor:
            x = self.embed(tokens, positions)
            for index, layer in enumerate(self.layers):
                x = layer(x, positions, cache and cache[index])
            return self.output(x)

        def links(self) -> list[Callable[[Tensor], Tensor]]:
            return [self.embed, *self.layers, self.output]

        def embed(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
            at = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions
            return self.tokens(tokens) + self.positions(at)

        def output(self, x: Tensor) -> Tensor:
            return self.logits(self.norm(x[:, -network.logits :]), self.tokens.weight)

    return Model()
