"""Encoders of text and speech, and an encoder with a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._forward import FunctionalForward, Place, TransformerLayers
from benchbench.workloads._layers import Conv, Dense, Embedding, Layer, Norm, TiedDense, Weight
from benchbench.workloads._losses import MeanSquared
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.base import Draw
from benchbench.workloads.network import ENCODER_LAYERS, BlockChain, Division, DivisionPlan, Link, Network
from benchbench.workloads.steps import Inference, PipelinedTraining, TrainingStep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BERT_SIZES = frozenset({"hidden", "heads", "depth", "vocabulary", "positions"})
BERT_SEGMENTS = 2
BERT_EXPANSION = 4
BERT_EPSILON = 1e-12


@dataclass(frozen=True)
class BertBase(Network):
    """BERT base with its head for masked tokens, as in the published code of Devlin et al. 2018.

    109,514,298 parameters: layers normalised last, exact GELU, the output tied to the embedding.

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
    multiples = (("hidden", "heads"),)
    added = BERT_SIZES

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @property
    def size(self) -> TransformerLayers:
        """Sizes of the layers, and their kind."""
        return TransformerLayers(
            width=self.hidden,
            heads=self.heads,
            feed_forward=BERT_EXPANSION * self.hidden,
            activation="gelu",
            epsilon=BERT_EPSILON,
        )

    def layers(self) -> list[Layer]:
        """The layers in order, for weights and cost. Embeddings are summed before the first norm."""
        return list(self._layers())

    def _layers(self) -> Iterator[Layer]:
        width = self.hidden
        yield Embedding(name="tokens", count=self.vocabulary, width=width, rows=self.length)
        yield Embedding(name="positions", count=self.positions, width=width, rows=self.length)
        yield Embedding(name="segments", count=BERT_SEGMENTS, width=width, rows=self.length)
        yield Norm(name="norm", channels=width)
        for index in range(self.depth):
            yield from self.size.encoder_layer(f"layers.{index}", self.length)
        yield Dense(name="transform", inputs=width, outputs=width, rows=self.masked)
        yield Norm(name="transform_norm", channels=width)
        yield TiedDense(name="head", inputs=width, outputs=self.vocabulary, rows=self.masked)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Uniformly random tokens; masked positions may coincide."""
        shape = self.batch, self.length
        return {
            "tokens": draw.integers("tokens", *shape, below=self.vocabulary),
            "segments": draw.integers("segments", *shape, below=BERT_SEGMENTS),
            "places": draw.integers("places", self.batch, self.masked, below=self.length),
        }

    def tiny(self) -> Self:
        """One layer of four heads; the length is even and not a power of two."""
        small = replace(self, batch=2, length=14, masked=5, hidden=64, heads=4, depth=1)
        return replace(small, vocabulary=96, positions=17)

    def torch(self) -> Any:
        return torch_bert(self)

    def apply(self, nn: FunctionalForward, tokens: Any, segments: Any, places: Any) -> Any:
        words, positions, kinds = map(nn.table, ("tokens", "positions", "segments"))
        x = nn.add(nn.rows(words, tokens), positions[: self.length])
        x = nn.layer_norm(nn.add(x, nn.rows(kinds, segments)), "norm", epsilon=BERT_EPSILON)
        for index in range(self.depth):
            x = self.size.encode(nn.within(f"layers.{index}"), x)
        x = nn.gelu(nn.dense(nn.take(x, places), "transform"))
        return nn.tied_dense(nn.layer_norm(x, "transform_norm", epsilon=BERT_EPSILON), "tokens", "head")


@dataclass(frozen=True)
class BertBaseInfer(Inference, BertBase):
    summary = "inference with BERT base: logits of masked tokens"

    def rounding_size(self) -> Self:
        return replace(self.tiny(), depth=self.depth)


@dataclass(frozen=True)
class BertBaseTrain(TrainingStep, BertBase):
    optimizer: str = "adamw"

    summary = "train BERT base on masked tokens"
    added = BERT_SIZES | TrainingStep.added


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
            self.segments = nn.Embedding(BERT_SEGMENTS, width)
            self.norm, self.transform_norm = (nn.LayerNorm(width, BERT_EPSILON) for _ in range(2))
            self.layers = torch_layers.encoder_layers(
                network.depth, width, network.heads, BERT_EXPANSION * width, layer_norm_eps=BERT_EPSILON
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


ENCODER_DECODER_SIZES = frozenset({"hidden", "heads", "depth", "feed_forward"})


@dataclass(frozen=True)
class EncoderDecoder(Network):
    """The Transformer of Vaswani et al. 2017 with torch.nn.Transformer's defaults: 44,140,544 parameters.

    Layers are normalised last, with ReLU, a causal decoder and no padding.

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
    multiples = (("hidden", "heads"),)
    added = ENCODER_DECODER_SIZES

    @property
    def items(self) -> int:
        return self.batch * self.target

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.target, self.hidden

    @property
    def size(self) -> TransformerLayers:
        """Sizes of the layers."""
        return TransformerLayers(width=self.hidden, heads=self.heads, feed_forward=self.feed_forward)

    def layers(self) -> list[Layer]:
        """Layers of the encoder, then of the decoder, with a norm at the end of each."""
        return list(self._layers())

    def _layers(self) -> Iterator[Layer]:
        for index in range(self.depth):
            yield from self.size.encoder_layer(f"encoder.layers.{index}", self.source)
        yield Norm(name="encoder.norm", channels=self.hidden)
        for index in range(self.depth):
            yield from self.size.decoder_layer(f"decoder.layers.{index}", self.target, self.source)
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

    def apply(self, nn: FunctionalForward, source: Any, target: Any) -> Any:
        memory, x = source, target
        for index in range(self.depth):
            memory = self.size.encode(nn.within(f"encoder.layers.{index}"), memory)
        memory = nn.layer_norm(memory, "encoder.norm")
        for index in range(self.depth):
            x = self.size.decode(nn.within(f"decoder.layers.{index}"), x, memory)
        return nn.layer_norm(x, "decoder.norm")


@dataclass(frozen=True)
class EncoderDecoderInfer(Inference, EncoderDecoder):
    """Output of the decoder at all positions at once, without a cache."""

    summary = "inference with nn.Transformer: 6 encoder and 6 decoder layers, all positions at once"

    def rounding_size(self) -> Self:
        return replace(self.tiny(), depth=self.depth)


@dataclass(frozen=True)
class EncoderDecoderTrain(TrainingStep, EncoderDecoder):
    optimizer: str = "adam"

    summary = "train nn.Transformer: 6 encoder and 6 decoder layers"
    version = 2  # torch, fully sharded, gathers its layers one by one
    added = ENCODER_DECODER_SIZES | TrainingStep.added


SPEECH_SIZES = frozenset({"hidden", "heads", "depth"})
SPEECH_MELS = 80
SPEECH_STRIDE = 2  # of the second convolution: mel frames per output frame
SPEECH_EXPANSION = 4
SINUSOID_PERIOD = 10_000  # longest period of the sinusoids, divided by 2π


@dataclass(frozen=True)
class SpeechEncoder(BlockChain):
    """7,633,920 parameters: two convolutions, sinusoidal positions, layers normalised first, exact GELU.

    The second convolution has stride 2: 3000 mel frames, 30 seconds, become 1500. Keys have a bias, as in
    nn.MultiheadAttention, which Whisper's have not (1536 parameters). Without dropout. Training regresses
    features (mean squared error), as when a larger encoder is distilled: without CTC, nor a decoder.
    """

    batch: int = 8
    frames: int = 1500
    hidden: int = 384
    heads: int = 6
    depth: int = 4

    loss = MeanSquared()
    input_names = ("mels",)
    images = frozenset()
    item = "frame"
    head_counts = ("heads",)
    tensor_parallel: ClassVar[DivisionPlan] = ENCODER_LAYERS
    multiples = (("hidden", "heads"), ("hidden", 2))  # 2: sine and cosine
    added = SPEECH_SIZES

    @property
    def items(self) -> int:
        """Frames of the result: 50 to a second of speech."""
        return self.batch * self.frames

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, self.frames, self.hidden

    @property
    def convs(self) -> tuple[Conv, Conv]:
        """A GELU follows each."""
        mel_frames, width = (SPEECH_STRIDE * self.frames,), self.hidden
        return (
            Conv(name="conv1", inputs=SPEECH_MELS, outputs=width, kernel=3, size=mel_frames, bias=True),
            Conv(
                name="conv2",
                inputs=width,
                outputs=width,
                kernel=3,
                size=mel_frames,
                stride=SPEECH_STRIDE,
                bias=True,
            ),
        )

    @property
    def blocks(self) -> list[str]:
        return [f"layers.{index}" for index in range(self.depth)]

    @property
    def size(self) -> TransformerLayers:
        """Sizes of the layers, and their kind."""
        return TransformerLayers(
            width=self.hidden,
            heads=self.heads,
            feed_forward=SPEECH_EXPANSION * self.hidden,
            activation="gelu",
            norm_first=True,
        )

    def links(self) -> list[Link]:
        handed_on = self.frames * self.hidden
        positions = Positions(frames=self.frames, width=self.hidden)
        return [
            Link(layers=(*self.convs, positions), outputs=handed_on),
            *(
                Link(layers=tuple(self.size.encoder_layer(name, self.frames)), outputs=handed_on)
                for name in self.blocks
            ),
            Link(layers=(Norm(name="norm", channels=self.hidden),), outputs=handed_on),
        ]

    def lengthened(self, stages: int) -> Self:
        return replace(self, depth=max(self.depth, stages))

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Log-mel spectrograms, N(0, 1): (batch, mel frames, bins)."""
        return {"mels": draw.normal("mels", self.batch, SPEECH_STRIDE * self.frames, SPEECH_MELS)}

    def tiny(self) -> Self:
        """One layer of four heads, an even length."""
        return replace(self, batch=2, frames=14, hidden=64, heads=4, depth=1)

    def torch(self) -> Any:
        return torch_speech_encoder(self)

    def embed(self, nn: FunctionalForward, mels: Any, place: Place) -> Any:
        x = nn.channels_first(mels)
        for conv in self.convs:
            x = nn.gelu(nn.conv(x, conv))
        return nn.add_table(nn.channels_last(x), "positions")

    def block(self, nn: FunctionalForward, x: Any, place: Place) -> Any:
        return self.size.encode(nn, x)

    def output(self, nn: FunctionalForward, x: Any) -> Any:
        return nn.layer_norm(x, "norm")


@dataclass(frozen=True)
class SpeechEncoderInfer(Inference, SpeechEncoder):
    summary = "inference with a speech encoder: two convolutions and a Transformer over 30 seconds"

    def rounding_size(self) -> Self:
        return replace(self.tiny(), depth=self.depth)


@dataclass(frozen=True)
class SpeechEncoderTrain(PipelinedTraining, SpeechEncoder):
    optimizer: str = "adamw"

    summary = "train a speech encoder: two convolutions and a Transformer over 30 seconds"
    added = SPEECH_SIZES | PipelinedTraining.added


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinusoids(Weight):
    """Sine and cosine of each position at periods from 2π to 2π · `SINUSOID_PERIOD`.

    Vaswani et al. 2017, 3.5.
    """

    def draw(self, draw: Draw, name: str) -> NDArray[np.float32]:
        import numpy as np

        length, width = self.shape
        angles = np.arange(length)[:, None] * SINUSOID_PERIOD ** -np.linspace(0, 1, width // 2)
        return draw.rounded(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions(Layer):
    """A fixed table that is added to the output of the convolutions."""

    frames: int
    width: int
    roundings = 1

    def weights(self) -> dict[str, Weight]:
        """The table by name."""
        return {"positions": Sinusoids(shape=(self.frames, self.width), scale=1.0, is_learnt=False)}

    def elements(self, batch: int) -> int:
        """The table's elements; the sum can be fused with the next layer."""
        return self.frames * self.width


def torch_speech_encoder(network: SpeechEncoder) -> Any:
    """The module in the style of PyTorch users."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    width = network.hidden

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = (torch_layers.module_of(conv) for conv in network.convs)
            self.register_buffer("positions", torch.empty(network.frames, width))
            self.layers = torch_layers.encoder_layers(
                network.depth, width, network.heads, SPEECH_EXPANSION * width, norm_first=True
            )
            self.norm = nn.LayerNorm(width)

        def forward(self, mels: Tensor) -> Tensor:
            x = self.embed(mels)
            for layer in self.layers:
                x = layer(x)
            return self.norm(x)

        def links(self) -> list[Callable[[Tensor], Tensor]]:
            return [self.embed, *self.layers, self.norm]

        def embed(self, mels: Tensor) -> Tensor:
            x = F.gelu(self.conv2(F.gelu(self.conv1(mels.transpose(1, 2))))).transpose(1, 2)
            return x + self.positions.to(x.dtype)

    return Model()
