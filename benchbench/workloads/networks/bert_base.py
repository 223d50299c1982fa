"""BERT base with its head for masked tokens, as in the published code of Devlin et al. 2018."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._layers import Dense, Embedding, Layer, Norm, TiedDense, TransformerSize
from benchbench.workloads._programs import torch_layers
from benchbench.workloads._programs.tensorflow_layers import read_once
from benchbench.workloads._programs.transformer_layers import (
    JaxTransformerLayers,
    NumpyTransformerLayers,
    TensorFlowTransformerLayers,
    TransformerLayers,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.network import ENCODER_LAYERS, Division, DivisionPlan, Network
from benchbench.workloads.steps import Inference, TrainingStep

SIZE = frozenset({"hidden", "heads", "depth", "vocabulary", "positions"})
SEGMENTS = 2
EXPANSION = 4
EPSILON = 1e-12


@dataclass(frozen=True)
class BertBase(Network):
    """109,514,298 parameters: layers normalised last, exact GELU, the output tied to the embedding.

    The masked positions alone are projected to the vocabulary, 20 of 128 in the published recipe. Sequences
    are full, so there is no padding. Without dropout, whose random numbers differ between frameworks, and
    without the prediction of the next sentence.
    """

    batch: int = 32
    length: int = 128
    masked: int = 20
    hidden: int = 768
    heads: int = 12
    depth: int = 12
    vocabulary: int = 30_522
    positions: int = 512  # that have an embedding

    input_names = ("tokens", "segments", "places")
    images = frozenset()
    item = "token"
    head_counts = ("heads",)
    tensor_parallel: ClassVar[DivisionPlan] = {
        **ENCODER_LAYERS,
        "tokens": Division.VOCABULARY,
        "head": Division.LOGITS,
    }
    added = SIZE

    def __post_init__(self) -> None:
        """Also raise UsageError for sizes that do not fit each other."""
        super().__post_init__()
        if self.hidden % self.heads:
            raise UsageError(f"hidden={self.hidden} must be a multiple of heads={self.heads}.")
        if not self.masked <= self.length <= self.positions:
            raise UsageError(
                f"length={self.length} must be between masked={self.masked} and positions={self.positions}."
            )

    @property
    def items(self) -> int:
        return self.batch * self.length

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.masked, self.vocabulary

    def layers(self) -> list[Layer]:
        """Embeddings are summed before the first norm."""
        return list(self._layers())

    def _layers(self) -> Iterator[Layer]:
        width = self.hidden
        size = TransformerSize(width=width, heads=self.heads, feed_forward=EXPANSION * width)
        yield Embedding(name="tokens", count=self.vocabulary, width=width, rows=self.length)
        yield Embedding(name="positions", count=self.positions, width=width, rows=self.length)
        yield Embedding(name="segments", count=SEGMENTS, width=width, rows=self.length)
        yield Norm(name="norm", channels=width)
        for index in range(self.depth):
            yield from size.encoder_layer(f"layers.{index}", self.length)
        yield Dense(name="transform", inputs=width, outputs=width, rows=self.masked)
        yield Norm(name="transform_norm", channels=width)
        yield TiedDense(name="head", inputs=width, outputs=self.vocabulary, rows=self.masked)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Uniformly random tokens; masked positions may coincide."""
        shape = self.batch, self.length
        return {
            "tokens": draw.integers("tokens", *shape, below=self.vocabulary),
            "segments": draw.integers("segments", *shape, below=SEGMENTS),
            "places": draw.integers("places", self.batch, self.masked, below=self.length),
        }

    def tiny(self) -> Self:
        """One layer of four heads; the length is even and not a power of two."""
        small = replace(self, batch=2, length=14, masked=5, hidden=64, heads=4, depth=1)
        return replace(small, vocabulary=96, positions=17)

    def torch(self) -> Any:
        return torch_bert(self)

    def tensorflow(self, weights: dict[str, Any], *inputs: Any, training: bool) -> Any:
        import tensorflow as tf

        of = TensorFlowTransformerLayers(weights=weights, **self._kind())
        tokens, segments, masked_positions = inputs
        words, positions, kinds = map(read_once, self._tables(weights))
        x = tf.gather(words, tokens) + positions[: self.length] + tf.gather(kinds, segments)
        return self._logits(of, tf.gather(self._encoded(of, x), masked_positions, batch_dims=1))

    def jax(self, weights: dict[str, Any], *inputs: Any, training: bool) -> Any:
        import jax.numpy as jnp

        of = JaxTransformerLayers(weights=weights, **self._kind())
        tokens, segments, masked_positions = inputs
        words, positions, kinds = self._tables(weights)
        x = self._encoded(of, words[tokens] + positions[: self.length] + kinds[segments])
        return self._logits(of, jnp.take_along_axis(x, masked_positions[..., None], axis=1))

    def numpy(self, ops: Any, weights: dict[str, Any], *inputs: Any, training: bool) -> Any:
        of = NumpyTransformerLayers(ops=ops, weights=weights, **self._kind())
        tokens, segments, masked_positions = inputs
        words, positions, kinds = self._tables(weights)
        x = ops.add(ops.embedding(words, tokens), positions[: self.length])
        x = self._encoded(of, ops.add(x, ops.embedding(kinds, segments)))
        return self._logits(of, x[ops.np.arange(len(masked_positions))[:, None], masked_positions])

    def _tables(self, weights: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(weights[f"{name}.weight"] for name in ("tokens", "positions", "segments"))

    def _kind(self) -> dict[str, Any]:
        return {"heads": self.heads, "activation": "gelu", "epsilon": EPSILON}

    def _encoded(self, of: TransformerLayers, x: Any) -> Any:
        x = of.norm(x, "norm")
        for index in range(self.depth):
            x = of.encoder_layer(x, f"layers.{index}")
        return x

    def _logits(self, of: TransformerLayers, x: Any) -> Any:
        x = of.norm(of.activate(of.dense(x, "transform")), "transform_norm")
        return of.tied(x, of.weights["tokens.weight"], "head")


@dataclass(frozen=True)
class BertBaseInfer(Inference, BertBase):
    """Logits of the masked positions."""

    summary = "inference with BERT base: logits of masked tokens"

    def rounding_size(self) -> Self:
        return replace(self.tiny(), depth=self.depth)


@dataclass(frozen=True)
class BertBaseTrain(TrainingStep, BertBase):
    """Forward, backward and update; by default with AdamW."""

    optimizer: str = "adamw"

    summary = "train BERT base on masked tokens"
    added = SIZE | TrainingStep.added


def torch_bert(network: BertBase) -> Any:
    """The module in the style of PyTorch users."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    width = network.hidden

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(network.vocabulary, width)
            self.positions = nn.Embedding(network.positions, width)
            self.segments = nn.Embedding(SEGMENTS, width)
            self.norm, self.transform_norm = (nn.LayerNorm(width, EPSILON) for _ in range(2))
            self.layers = torch_layers.encoder_layers(
                network.depth, width, network.heads, EXPANSION * width, layer_norm_eps=EPSILON
            )
            self.transform = nn.Linear(width, width)
            self.head = torch_layers.tied_dense(network.vocabulary)

        def forward(self, tokens: Tensor, segments: Tensor, places: Tensor) -> Tensor:
            positions = self.positions.weight[: network.length]
            x = self.norm(self.tokens(tokens) + positions + self.segments(segments))
            for layer in self.layers:
                x = layer(x)
            x = x.take_along_dim(places[..., None], dim=1)
            x = self.transform_norm(F.gelu(self.transform(x)))
            return self.head(x, self.tokens.weight)

    return Model()
