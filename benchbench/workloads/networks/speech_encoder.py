"""A speech encoder: the encoder of Whisper tiny (Radford et al. 2022), from mel bins to features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.workloads._forward import FunctionalForward, Place, TransformerLayers
from benchbench.workloads._layers import Conv, Layer, Norm, Weight
from benchbench.workloads._losses import MeanSquared
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.base import Draw
from benchbench.workloads.network import ENCODER_LAYERS, BlockChain, DivisionPlan, Link
from benchbench.workloads.steps import Inference, PipelinedTraining

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIZE = frozenset({"hidden", "heads", "depth"})
MELS = 80
STRIDE = 2  # of the second convolution: mel frames per output frame
EXPANSION = 4
PERIOD = 10_000  # longest period of the sinusoids, divided by 2π


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
    added = SIZE

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
        mel_frames, width = (STRIDE * self.frames,), self.hidden
        return (
            Conv(name="conv1", inputs=MELS, outputs=width, kernel=3, size=mel_frames, bias=True),
            Conv(
                name="conv2", inputs=width, outputs=width, kernel=3, size=mel_frames, stride=STRIDE, bias=True
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
            feed_forward=EXPANSION * self.hidden,
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
        return {"mels": draw.normal("mels", self.batch, STRIDE * self.frames, MELS)}

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
    """Features of every frame."""

    summary = "inference with a speech encoder: two convolutions and a Transformer over 30 seconds"

    def rounding_size(self) -> Self:
        return replace(self.tiny(), depth=self.depth)


@dataclass(frozen=True)
class SpeechEncoderTrain(PipelinedTraining, SpeechEncoder):
    """Forward, backward and update; by default with AdamW."""

    optimizer: str = "adamw"

    summary = "train a speech encoder: two convolutions and a Transformer over 30 seconds"
    added = SIZE | PipelinedTraining.added


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinusoids(Weight):
    """Sine and cosine of each position at periods between 2π and 2π · `PERIOD` (Vaswani et al. 2017, 3.5)."""

    def draw(self, draw: Draw, name: str) -> NDArray[np.float32]:
        import numpy as np

        length, width = self.shape
        angles = np.arange(length)[:, None] * PERIOD ** -np.linspace(0, 1, width // 2)
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
                network.depth, width, network.heads, EXPANSION * width, norm_first=True
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
