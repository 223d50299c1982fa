"""The Transformer of Vaswani et al. 2017 with torch.nn.Transformer's defaults: an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._layers import Dense, Layer, Norm, TransformerSize
from benchbench.workloads._losses import MeanSquared
from benchbench.workloads._programs.transformer_layers import (
    JaxTransformerLayers,
    NumpyTransformerLayers,
    TensorFlowTransformerLayers,
    TransformerLayers,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Network
from benchbench.workloads.steps import Inference, TrainingStep

SIZE = frozenset({"hidden", "heads", "depth", "feed_forward"})


@dataclass(frozen=True)
class EncoderDecoder(Network):
    """44,140,544 parameters: normalised last, ReLU, causal decoder, no padding.

    As in torch.nn.Transformer, embeddings and the projection to a vocabulary are no part of it. Without
    dropout, whose random numbers differ between frameworks.
    """

    batch: int = 64
    source: int = 512
    target: int = 128
    hidden: int = 512
    heads: int = 8
    depth: int = 6  # layers of the encoder, and of the decoder
    feed_forward: int = 2048

    loss = MeanSquared()
    input_names = ("source", "target")
    images = frozenset()
    item = "token"
    added = SIZE

    def __post_init__(self) -> None:
        """Also raise UsageError for a width that cannot be divided among the heads."""
        super().__post_init__()
        if self.hidden % self.heads:
            raise UsageError(f"hidden={self.hidden} must be a multiple of heads={self.heads}.")

    @property
    def items(self) -> int:
        return self.batch * self.target

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.target, self.hidden

    def layers(self) -> list[Layer]:
        """Layers of the encoder, then of the decoder, with a norm at the end of each."""
        return list(self._layers())

    def _layers(self) -> Iterator[Layer]:
        size = TransformerSize(width=self.hidden, heads=self.heads, feed_forward=self.feed_forward)
        for index in range(self.depth):
            yield from size.encoder_layer(f"encoder.layers.{index}", self.source)
        yield Norm(name="encoder.norm", channels=self.hidden)
        for index in range(self.depth):
            yield from size.decoder_layer(f"decoder.layers.{index}", self.target, self.source)
        yield Norm(name="decoder.norm", channels=self.hidden)

    def first_layers(self) -> list[Dense]:
        """Source and target are each projected to queries, keys and values at once."""
        return [
            Dense(name="in_proj", inputs=self.hidden, outputs=3 * self.hidden, rows=rows)
            for rows in (self.source, self.target)
        ]

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {
            "source": draw.normal("source", self.batch, self.source, self.hidden),
            "target": draw.normal("target", *self.output_shape),
        }

    def tiny(self) -> Self:
        """One layer each, with even lengths, and so many ReLUs that some inputs change sign in any draw."""
        return replace(self, batch=2, source=18, target=14, hidden=64, heads=4, depth=1, feed_forward=400)

    def torch(self) -> Any:
        import torch
        from torch import nn

        class Model(nn.Transformer):  # type: ignore[misc]
            def forward(self, source: Any, target: Any) -> Any:
                length = target.shape[1]
                unseen = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
                return super().forward(source, target, tgt_mask=unseen, tgt_is_causal=True)

        depths = {"num_encoder_layers": self.depth, "num_decoder_layers": self.depth}
        return Model(
            self.hidden,
            self.heads,
            dim_feedforward=self.feed_forward,
            dropout=0.0,
            batch_first=True,
            **depths,
        )

    def tensorflow(self, weights: dict[str, Any], *inputs: Any, training: bool) -> Any:
        return self._forward(TensorFlowTransformerLayers(weights=weights, heads=self.heads), *inputs)

    def jax(self, weights: dict[str, Any], *inputs: Any, training: bool) -> Any:
        return self._forward(JaxTransformerLayers(weights=weights, heads=self.heads), *inputs)

    def numpy(self, ops: Any, weights: dict[str, Any], *inputs: Any, training: bool) -> Any:
        return self._forward(NumpyTransformerLayers(ops=ops, weights=weights, heads=self.heads), *inputs)

    def _forward(self, of: TransformerLayers, source: Any, target: Any) -> Any:
        memory, x = source, target
        for index in range(self.depth):
            memory = of.encoder_layer(memory, f"encoder.layers.{index}")
        memory = of.norm(memory, "encoder.norm")
        for index in range(self.depth):
            x = of.decoder_layer(x, memory, f"decoder.layers.{index}")
        return of.norm(x, "decoder.norm")


@dataclass(frozen=True)
class EncoderDecoderInfer(Inference, EncoderDecoder):
    """Output of the decoder at all positions at once, without a cache."""

    summary = "inference with nn.Transformer: 6 encoder and 6 decoder layers, all positions at once"

    def rounding_size(self) -> Self:
        return replace(self.tiny(), depth=self.depth)


@dataclass(frozen=True)
class EncoderDecoderTrain(TrainingStep, EncoderDecoder):
    """Forward, backward and update; by default with Adam."""

    optimizer: str = "adam"

    summary = "train nn.Transformer: 6 encoder and 6 decoder layers"
    version = 2  # torch, fully sharded, gathers its layers one by one
    added = SIZE | TrainingStep.added
