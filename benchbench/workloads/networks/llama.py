"""A decoder as Llama 3.2 is: training, reading a prompt, and generating a token (Grattafiori et al. 2024).

The defaults are a model for a laptop. Llama 3.2 1B is `width=2048,depth=16,heads=32,kv_heads=8,hidden=8192,
vocabulary=128256`: 1 235 814 400 parameters. Frequencies are not stretched for contexts beyond 8192 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._layers import EPSILON, Dense, Layer, RmsNorm, Rotary
from benchbench.workloads._programs import (
    jax_layers,
    tensorflow_layers,
    torch_layers,
)
from benchbench.workloads.decoder import Decoder
from benchbench.workloads.generation import Decode, Prefill
from benchbench.workloads.network import Division, DivisionPlan
from benchbench.workloads.steps import PipelinedTraining

BASE = 500_000.0  # of the rotary frequencies


@dataclass(frozen=True)
class Llama(Decoder):
    """RMSNorm first, rotary positions, keys and values shared by groups of heads, SwiGLU; no biases."""

    batch: int = 1
    length: int = 512
    width: int = 512
    depth: int = 8
    heads: int = 8
    kv_heads: int = 2
    hidden: int = 2048
    vocabulary: int = 32000

    read_by_blocks = ("rotary_cos", "rotary_sin")
    tensor_parallel: ClassVar[DivisionPlan] = {
        "tokens": Division.VOCABULARY,
        "logits": Division.LOGITS,
        **{f"layers.*.{name}": Division.COLUMNS for name in ("query", "key", "value", "gate", "up")},
        **{f"layers.*.{name}": Division.ROWS for name in ("out", "down")},
    }

    def __post_init__(self) -> None:
        """Raise UsageError also for heads of an odd width, which rotary positions cannot pair."""
        super().__post_init__()
        if self.head % 2:
            raise UsageError(f"width / heads = {self.head} must be even.")

    def tiny(self) -> Self:
        """Two blocks, two groups of heads, a length that is even and no power of two."""
        small = {"width": 32, "depth": 2, "heads": 4, "kv_heads": 2, "hidden": 40, "vocabulary": 96}
        return replace(self, batch=2, length=14, **small)

    def embeddings(self) -> list[Layer]:
        """Positions are not learnt."""
        rotary = Rotary(name="rotary", length=self.length, dim=self.head, base=BASE)
        return [self.table("tokens", self.vocabulary), rotary]

    def last_norm(self) -> RmsNorm:
        return RmsNorm(name="norm", channels=self.width)

    def block(self, name: str) -> Iterator[Layer]:
        """Attention, then the gated hidden layer (Shazeer 2020): each is added to what it was given."""
        width, shared = self.width, self.kv_heads * self.head
        dense = partial(Dense, rows=self.rows, bias=False)
        yield RmsNorm(name=f"{name}.norm1", channels=width)
        yield dense(name=f"{name}.query", inputs=width, outputs=width)
        yield dense(name=f"{name}.key", inputs=width, outputs=shared, beside=True)
        yield dense(name=f"{name}.value", inputs=width, outputs=shared, beside=True)
        yield self.attention
        yield dense(name=f"{name}.out", inputs=width, outputs=width)
        yield RmsNorm(name=f"{name}.norm2", channels=width)
        yield dense(name=f"{name}.gate", inputs=width, outputs=self.hidden)
        yield dense(name=f"{name}.up", inputs=width, outputs=self.hidden, beside=True)
        yield dense(name=f"{name}.down", inputs=self.hidden, outputs=width)

    def torch(self) -> Any:
        """torch.nn's layers and F.scaled_dot_product_attention, which picks the fused kernel."""
        return llama_module(self)

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

        at = tf.range(tokens.shape[1]) if positions is None else positions
        cos, sin = (tf.gather(weights[f"rotary_{part}"], at)[:, None] for part in ("cos", "sin"))

        def dense(x: Any, name: str) -> Any:
            return tensorflow_layers.dense(x, weights, name)

        def norm(x: Any, name: str) -> Any:
            return tensorflow_layers.rms_norm(x, weights, name)

        def heads(x: Any, name: str) -> Any:
            return tf.reshape(dense(x, name), [*tokens.shape, -1, self.head])

        def rotated(x: Any) -> Any:
            first, second = tf.split(x, 2, axis=-1)
            turned = tf.concat([-second, first], axis=-1)
            return x * tf.cast(cos, x.dtype) + turned * tf.cast(sin, x.dtype)

        def attention(x: Any, name: str) -> Any:
            q, k, v = (heads(x, f"{name}.{part}") for part in ("query", "key", "value"))
            y = tensorflow_layers.attend(rotated(q), rotated(k), v, positions, cache and cache[name])
            return dense(tf.reshape(y, x.shape), f"{name}.out")

        table = tensorflow_layers.read_once(weights["tokens.weight"])
        x = tf.gather(table, tokens)
        for name in self.blocks:
            x += attention(norm(x, f"{name}.norm1"), name)
            y = norm(x, f"{name}.norm2")
            x += dense(tf.nn.silu(dense(y, f"{name}.gate")) * dense(y, f"{name}.up"), f"{name}.down")
        return tf.matmul(norm(x[:, -self.logits :], "norm"), table, transpose_b=True)

    def jax_embed(self, weights: dict[str, Any], tokens: Any, positions: Any = None) -> Any:
        return weights["tokens.weight"][tokens]

    def jax_block(
        self, weights: dict[str, Any], name: str, x: Any, positions: Any = None, cache: Any = None
    ) -> Any:
        import jax
        import jax.numpy as jnp

        at = slice(x.shape[1]) if positions is None else positions
        cos, sin = (weights[f"rotary_{part}"][at][:, None] for part in ("cos", "sin"))

        def dense(x: Any, name: str) -> Any:
            return jax_layers.dense(x, weights, name)

        def norm(x: Any, name: str) -> Any:
            return jax_layers.rms_norm(x, weights, name)

        def heads(x: Any, name: str) -> Any:
            return dense(x, name).reshape(*x.shape[:2], -1, self.head)

        def rotated(x: Any) -> Any:
            first, second = jnp.split(x, 2, axis=-1)
            turned = jnp.concatenate([-second, first], axis=-1)
            return x * cos.astype(x.dtype) + turned * sin.astype(x.dtype)

        y = norm(x, f"{name}.norm1")
        q, k, v = (heads(y, f"{name}.{part}") for part in ("query", "key", "value"))
        y = jax_layers.attend(rotated(q), rotated(k), v, positions, cache, name)
        x += dense(y.reshape(x.shape), f"{name}.out")
        y = norm(x, f"{name}.norm2")
        return x + dense(jax.nn.silu(dense(y, f"{name}.gate")) * dense(y, f"{name}.up"), f"{name}.down")

    def jax_output(self, weights: dict[str, Any], x: Any) -> Any:
        x = jax_layers.rms_norm(x[:, -self.logits :], weights, "norm")
        return x @ weights["tokens.weight"].T

    def numpy(self, ops: Any, weights: dict[str, Any], tokens: Any, *, training: bool) -> Any:
        cos, sin = (weights[f"rotary_{part}"][: tokens.shape[1], None] for part in ("cos", "sin"))

        def dense(x: Any, name: str) -> Any:
            return ops.linear(x, weights[f"{name}.weight"])

        def norm(x: Any, name: str) -> Any:
            return ops.rms_norm(x, weights[f"{name}.weight"])

        def rotated(x: Any) -> Any:
            first, second = ops.np.split(x, 2, axis=-1)
            turned = ops.np.concatenate([-second, first], axis=-1)
            return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

        def attention(x: Any, name: str) -> Any:
            q, k, v = (
                dense(x, f"{name}.{part}").reshape(*tokens.shape, -1, self.head)
                for part in ("query", "key", "value")
            )
            y = ops.attention(rotated(q), rotated(k), v, causal=True)
            return dense(y.reshape(x.shape), f"{name}.out")

        table = weights["tokens.weight"]
        x = ops.embedding(table, tokens)
        for name in self.blocks:
            x = ops.add(x, attention(norm(x, f"{name}.norm1"), name))
            y = norm(x, f"{name}.norm2")
            gated = ops.multiply(ops.silu(dense(y, f"{name}.gate")), dense(y, f"{name}.up"))
            x = ops.add(x, dense(gated, f"{name}.down"))
        return ops.linear(norm(x[:, -self.logits :], "norm"), table)


@dataclass(frozen=True)
class LlamaTrain(PipelinedTraining, Llama):
    """Forward, backward and update, with AdamW unless said otherwise."""

    optimizer: str = "adamw"

    summary = "train a Llama-style decoder on the next token"


@dataclass(frozen=True)
class LlamaPrefill(Prefill, Llama):
    """The prompt into the cache, and the logits of the token after it."""

    summary = "read a prompt with a Llama-style decoder: the time to the first token"


@dataclass(frozen=True)
class LlamaDecode(Decode, Llama):
    """One token, from the cache of those before it."""

    summary = "generate a token with a Llama-style decoder and a key-value cache"


def torch_llama_block(network: Llama) -> Any:
    """The module of a block."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    width, shared = network.width, network.kv_heads * network.head
    linear, norm = partial(nn.Linear, bias=False), partial(nn.RMSNorm, width, eps=EPSILON)

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos.to(x.dtype) + torch.cat([-second, first], dim=-1) * sin.to(x.dtype)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = norm(), norm()
            self.query, self.out = linear(width, width), linear(width, width)
            self.key, self.value = linear(width, shared), linear(width, shared)
            self.gate, self.up = linear(width, network.hidden), linear(width, network.hidden)
            self.down = linear(network.hidden, width)

        def forward(self, x: Tensor, tables: Any, positions: Tensor | None, cache: Any) -> Tensor:
            y = self.norm1(x)
            q, k, v = (
                part(y).unflatten(-1, (-1, network.head)) for part in (self.query, self.key, self.value)
            )
            y = torch_layers.attend(rotated(q, *tables), rotated(k, *tables), v, positions, cache)
            x = x + self.out(y.flatten(2))
            y = self.norm2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    return Block


def llama_module(network: Llama) -> Any:
    """The module as a user of PyTorch writes it."""
    import torch
    from torch import Tensor, nn

    width, block = network.width, torch_llama_block(network)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(network.vocabulary, width)
            self.register_buffer("rotary_cos", torch.empty(network.length, network.head))
            self.register_buffer("rotary_sin", torch.empty(network.length, network.head))
            self.layers = nn.ModuleList(block() for _ in range(network.depth))
            self.norm = nn.RMSNorm(width, eps=EPSILON)
            self.logits = torch_layers.tied_dense()

        def forward(self, tokens: Tensor, positions: Tensor | None = None, cache: Any = None) -> Tensor:
            tables = self.tables(tokens, positions)
            x = self.tokens(tokens)
            for index, layer in enumerate(self.layers):
                x = layer(x, tables, positions, cache and cache[index])
            return self.output(x)

        def links(self) -> list[Callable[[Tensor], Tensor]]:
            return [self.tokens, *(partial(self.block, layer) for layer in self.layers), self.output]

        def tables(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
            at = torch.arange(x.shape[1], device=x.device) if positions is None else positions
            return self.rotary_cos[at][:, None], self.rotary_sin[at][:, None]

        def block(self, layer: nn.Module, x: Tensor) -> Tensor:
            return layer(x, self.tables(x), None, None)

        def output(self, x: Tensor) -> Tensor:
            return self.logits(self.norm(x[:, -network.logits :]), self.tokens.weight)

    return Model()
