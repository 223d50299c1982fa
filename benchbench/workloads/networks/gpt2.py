"""GPT-2: training, reading a prompt, and generating a token (Radford et al. 2019).

The defaults are the smallest of the published sizes, without biases, as nanoGPT trains it: 124 337 664
parameters; with biases it would be 102 144 more. A bias of the keys would change nothing that softmax sees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._forward import Forward, Place
from benchbench.workloads.causal import Decode, Decoder, Prefill
from benchbench.workloads.network import CAUSAL_LAYERS, Division, DivisionPlan
from benchbench.workloads.steps import PipelinedTraining

EXPANSION = 4  # of the hidden layer between `up` and `down`


@dataclass(frozen=True)
class Gpt2(Decoder):
    """Pre-norm, learnt positions, GELU by tanh, no dropout."""

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
        """Also raise UsageError for more tokens than positions."""
        super().__post_init__()
        if self.length > self.context:
            raise UsageError(f"length={self.length} must be at most context={self.context}.")

    @property
    def kv_heads(self) -> int:  # type: ignore[override]
        """Each head has keys and values of its own."""
        return self.heads

    def tiny(self) -> Self:
        """Two blocks, an even length that is not a power of two, and unused positions."""
        return replace(self, batch=2, length=14, width=32, depth=2, heads=2, vocabulary=96, context=17)

    def embed(self, nn: Forward, tokens: Any, place: Place) -> Any:
        scale = self.embedding_scale
        x = nn.embedding(tokens, "tokens", self.vocabulary, self.width, scale=scale, tied=True)
        return nn.add_positions(x, "positions", place, count=self.context, scale=scale)

    def block(self, nn: Forward, x: Any, place: Place) -> Any:
        """Attention and two dense layers, each added to its input."""
        y = nn.dense(nn.layer_norm(x, "norm1", bias=False), "qkv", 3 * self.width, bias=False)
        y = nn.causal_attention(*nn.query_key_value(y, self.head), place)
        x = nn.add(x, nn.dense(y, "out", self.width, bias=False))
        y = nn.dense(nn.layer_norm(x, "norm2", bias=False), "up", EXPANSION * self.width, bias=False)
        return nn.add(x, nn.dense(nn.gelu_tanh(y), "down", self.width, bias=False))

    def output(self, nn: Forward, x: Any) -> Any:
        x = nn.layer_norm(nn.last(x, self.logits), "norm", bias=False)
        return nn.tied_logits(x, "tokens", self.vocabulary)


@dataclass(frozen=True)
class Gpt2Train(PipelinedTraining, Gpt2):
    """Forward, backward and update; by default with AdamW."""

    optimizer: str = "adamw"

    summary = "train GPT-2 on the next token"
    added = Gpt2.added | PipelinedTraining.added


@dataclass(frozen=True)
class Gpt2Prefill(Prefill, Gpt2):
    """Process a prompt: fill the cache and compute the logits of the next token."""

    summary = "read a prompt with GPT-2: the time to the first token"


@dataclass(frozen=True)
class Gpt2Decode(Decode, Gpt2):
    """Compute one token from the cache of earlier ones."""

    summary = "generate a token with GPT-2 and a key-value cache"
