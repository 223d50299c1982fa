"""A language model of two Transformer layers, as GPT-2 has them: normalised first, causal, exact GELU.

Vaswani et al. 2017; Radford et al. 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from benchbench.errors import UsageError
from benchbench.workloads._forward import Forward, Place
from benchbench.workloads.causal import CausalChain
from benchbench.workloads.network import CAUSAL_LAYERS, Division, DivisionPlan
from benchbench.workloads.steps import Inference, PipelinedTraining

LAYERS = 2
HEAD = 64  # the width of one
EXPANSION = 4  # of the hidden layer between `up` and `down`
NAMES = [f"layers.{index}" for index in range(LAYERS)]


@dataclass(frozen=True)
class Transformer(CausalChain):
    """Logits of the next tokens; learnt positions, no dropout, embedding and output not tied."""

    batch: int = 16
    length: int = 256
    hidden: int = 512
    vocabulary: int = 8192

    head_counts = ("heads",)
    tensor_parallel: ClassVar[DivisionPlan] = {
        "tokens": Division.VOCABULARY,
        **CAUSAL_LAYERS,
        "head": Division.LOGITS,
    }

    def __post_init__(self) -> None:
        """Also raise UsageError for a hidden width that is not a multiple of a head's."""
        super().__post_init__()
        if self.hidden % HEAD:
            raise UsageError(f"hidden={self.hidden} must be a multiple of {HEAD}.")

    @property
    def heads(self) -> int:
        """Heads of each layer."""
        return self.hidden // HEAD

    @property
    def blocks(self) -> list[str]:
        return NAMES

    def tiny(self) -> Self:
        return replace(self, batch=2, length=14, hidden=2 * HEAD, vocabulary=96)

    def embed(self, nn: Forward, tokens: Any, place: Place) -> Any:
        x = nn.embedding(tokens, "tokens", self.vocabulary, self.hidden)
        return nn.add_positions(x, "positions", place, count=self.length, all_positions=True)

    def block(self, nn: Forward, x: Any, place: Place) -> Any:
        """Attention and two dense layers, each added to its input."""
        # Softmax does not see a bias of the keys: its gradient would be rounding, which Adam makes large.
        y = nn.dense(nn.layer_norm(x, "norm1"), "qkv", 3 * self.hidden, bias=False)
        y = nn.causal_attention(*nn.query_key_value(y, HEAD), place)
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
    """Forward, backward and update; by default with Adam."""

    optimizer: str = "adam"

    summary = "train a two-layer Transformer on the next token"
