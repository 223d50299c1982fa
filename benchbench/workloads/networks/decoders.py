"""Language models: training, reading a prompt, and generating a token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._forward import Forward, Place
from benchbench.workloads.causal import CausalChain, Decode, Decoder, Prefill
from benchbench.workloads.network import CAUSAL_LAYERS, Division, DivisionPlan
from benchbench.workloads.steps import Inference, PipelinedTraining

EXPANSION = 4  # of the hidden layer between `up` and `down`


@dataclass(frozen=True)
class Gpt2(Decoder):
    """GPT-2 (Radford et al. 2019): pre-norm, learnt positions, GELU by tanh, no dropout.

    The defaults are the smallest of the published sizes, without biases, as nanoGPT trains it: 124 337 664
    parameters; with biases it would be 102 144 more. A bias of the keys would change nothing that softmax
    sees.
    """

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
    optimizer: str = "adamw"

    summary = "train GPT-2 on the next token"
    added = Gpt2.added | PipelinedTraining.added


@dataclass(frozen=True)
class Gpt2Prefill(Prefill, Gpt2):
    summary = "read a prompt with GPT-2: the time to the first token"


@dataclass(frozen=True)
class Gpt2Decode(Decode, Gpt2):
    summary = "generate a token with GPT-2 and a key-value cache"


ROTARY_BASE = 500_000.0  # of the rotary frequencies


@dataclass(frozen=True)
class Llama(Decoder):
    """Llama 3.2 (Grattafiori et al. 2024): RMSNorm first, rotary positions, grouped-query attention, SwiGLU.

    It has no biases. The defaults are a model for a laptop. Llama 3.2 1B is `width=2048,depth=16,heads=32,
    kv_heads=8,hidden=8192,vocabulary=128256`: 1 235 814 400 parameters. Frequencies are not stretched for
    contexts beyond 8192 tokens.
    """

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
        super().__post_init__()
        if self.head % 2:  # rotary positions turn pairs
            raise UsageError(f"width / heads = {self.head} must be even.")

    def tiny(self) -> Self:
        """Two blocks, two groups of heads, an even length that is not a power of two."""
        small = {"width": 32, "depth": 2, "heads": 4, "kv_heads": 2, "hidden": 40, "vocabulary": 96}
        return replace(self, batch=2, length=14, **small)

    def embed(self, nn: Forward, tokens: Any, place: Place) -> Any:
        """Rows of the table of tokens. Positions are not learnt but rotate queries and keys in each block."""
        scale = self.embedding_scale
        x = nn.embedding(tokens, "tokens", self.vocabulary, self.width, scale=scale, tied=True)
        nn.rotary("rotary", self.length, self.head, ROTARY_BASE)
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
    optimizer: str = "adamw"

    summary = "train a Llama-style decoder on the next token"


@dataclass(frozen=True)
class LlamaPrefill(Prefill, Llama):
    summary = "read a prompt with a Llama-style decoder: the time to the first token"


@dataclass(frozen=True)
class LlamaDecode(Decode, Llama):
    summary = "generate a token with a Llama-style decoder and a key-value cache"


SMALL_LAYERS = 2
SMALL_HEAD = 64  # the width of one
SMALL_NAMES = [f"layers.{index}" for index in range(SMALL_LAYERS)]


@dataclass(frozen=True)
class Transformer(CausalChain):
    """A language model of two Transformer layers, as GPT-2 has them: normalised first, causal, exact GELU.

    Positions are learnt, embedding and output are not tied, and there is no dropout (Vaswani et al. 2017;
    Radford et al. 2019).
    """

    batch: int = 16
    length: int = 256
    hidden: int = 512
    vocabulary: int = 8192

    head_counts = ("heads",)
    multiples = (("hidden", SMALL_HEAD),)
    tensor_parallel: ClassVar[DivisionPlan] = {
        "tokens": Division.VOCABULARY,
        **CAUSAL_LAYERS,
        "head": Division.LOGITS,
    }

    @property
    def heads(self) -> int:
        """Heads of each layer."""
        return self.hidden // SMALL_HEAD

    @property
    def blocks(self) -> list[str]:
        return SMALL_NAMES

    def tiny(self) -> Self:
        return replace(self, batch=2, length=14, hidden=2 * SMALL_HEAD, vocabulary=96)

    def embed(self, nn: Forward, tokens: Any, place: Place) -> Any:
        x = nn.embedding(tokens, "tokens", self.vocabulary, self.hidden)
        return nn.add_positions(x, "positions", place, count=self.length, all_positions=True)

    def block(self, nn: Forward, x: Any, place: Place) -> Any:
        """Attention and two dense layers, each added to its input."""
        # Softmax does not see a bias of the keys: its gradient would be rounding, which Adam makes large.
        y = nn.dense(nn.layer_norm(x, "norm1"), "qkv", 3 * self.hidden, bias=False)
        y = nn.causal_attention(*nn.query_key_value(y, SMALL_HEAD), place)
        x = nn.add(x, nn.dense(y, "out", self.hidden))
        y = nn.dense(nn.layer_norm(x, "norm2"), "up", EXPANSION * self.hidden)
        return nn.add(x, nn.dense(nn.gelu(y), "down", self.hidden))

    def output(self, nn: Forward, x: Any) -> Any:
        return nn.dense(nn.layer_norm(x, "norm"), "head", self.vocabulary)


@dataclass(frozen=True)
class TransformerInfer(Inference, Transformer):
    """Logits of every position: prefill, without a cache."""

    summary = "inference with a two-layer Transformer, all positions at once"


@dataclass(frozen=True)
class TransformerTrain(PipelinedTraining, Transformer):
    optimizer: str = "adam"

    summary = "train a two-layer Transformer on the next token"
