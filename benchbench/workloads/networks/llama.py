"""A decoder as Llama 3.2 is: training, reading a prompt, and generating a token (Grattafiori et al. 2024).

The defaults are a model for a laptop. Llama 3.2 1B is `width=2048,depth=16,heads=32,kv_heads=8,hidden=8192,
vocabulary=128256`: 1 235 814 400 parameters. Frequencies are not stretched for contexts beyond 8192 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._forward import Forward, Place
from benchbench.workloads.causal import Decode, Decoder, Prefill
from benchbench.workloads.network import Division, DivisionPlan
from benchbench.workloads.steps import PipelinedTraining

BASE = 500_000.0  # of the rotary frequencies


@dataclass(frozen=True)
class Llama(Decoder):
    """RMSNorm first, rotary positions, grouped-query attention, SwiGLU, no biases."""

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
        """Also raise UsageError for an odd head width, since rotary positions need pairs."""
        super().__post_init__()
        if self.head % 2:
            raise UsageError(f"width / heads = {self.head} must be even.")

    def tiny(self) -> Self:
        """Two blocks, two groups of heads, an even length that is not a power of two."""
        small = {"width": 32, "depth": 2, "heads": 4, "kv_heads": 2, "hidden": 40, "vocabulary": 96}
        return replace(self, batch=2, length=14, **small)

    def embed(self, nn: Forward, tokens: Any, place: Place) -> Any:
        """Rows of the table of tokens. Positions are not learnt but rotate queries and keys in each block."""
        scale = self.embedding_scale
        x = nn.embedding(tokens, "tokens", self.vocabulary, self.width, scale=scale, tied=True)
        nn.rotary("rotary", self.length, self.head, BASE)
        return x

    def block(self, nn: Forward, x: Any, place: Place) -> Any:
        """Attention and the gated hidden layer (Shazeer 2020), each added to its input."""
        dense, head = partial(nn.dense, bias=False), self.head
        y, shared = nn.rms_norm(x, "norm1"), self.kv_heads * head
        q = nn.heads(dense(y, "query", self.width), head)
        k = nn.heads(dense(y, "key", shared, is_short_branch=True), head)
        v = nn.heads(dense(y, "value", shared, is_short_branch=True), head)
        y = nn.causal_attention(nn.rotated(q, place), nn.rotated(k, place), v, place)
        x = nn.add(x, dense(y, "out", self.width))
        y = nn.rms_norm(x, "norm2")
        gate = nn.silu(dense(y, "gate", self.hidden))
        y = nn.multiply(gate, dense(y, "up", self.hidden, is_short_branch=True))
        return nn.add(x, dense(y, "down", self.width))

    def output(self, nn: Forward, x: Any) -> Any:
        x = nn.rms_norm(nn.last(x, self.logits), "norm")
        return nn.tied_logits(x, "tokens", self.vocabulary)


@dataclass(frozen=True)
class LlamaTrain(PipelinedTraining, Llama):
    """Forward, backward and update; by default with AdamW."""

    optimizer: str = "adamw"

    summary = "train a Llama-style decoder on the next token"


@dataclass(frozen=True)
class LlamaPrefill(Prefill, Llama):
    """Process a prompt: fill the cache and compute the logits of the next token."""

    summary = "read a prompt with a Llama-style decoder: the time to the first token"


@dataclass(frozen=True)
class LlamaDecode(Decode, Llama):
    """Compute one token from the cache of earlier ones."""

    summary = "generate a token with a Llama-style decoder and a key-value cache"
