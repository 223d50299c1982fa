"""U-Net: Ronneberger et al. 2015, "Convolutional networks for biomedical image segmentation".

Convolutions are padded, so that the classes have the image's size, where the paper's shrink it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv, ConvTranspose
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.network import Network
from benchbench.workloads.steps import Inference, TrainingStep

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

DEPTH = 4  # number of times that the image is halved and doubled again
CLASSES = 2


@dataclass(frozen=True)
class Unet(Network):
    """31,030,658 parameters: a gray image, two classes of pixels."""

    batch: int = 8
    image: int = 256  # pixels on a side
    width: int = 64  # channels at the image's size, twice as many each time it is halved

    multiples = (("image", 2**DEPTH),)
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.image, self.image, CLASSES

    def layers(self) -> list[Conv | ConvTranspose]:
        """Layers of the contracting path, the bottom, the expanding path, and the classes of each pixel."""
        contracting = [*(self.pair("down", level) for level in range(DEPTH)), self.pair("bottom", DEPTH)]
        expanding = [(self.up(level), *self.pair("up", level)) for level in reversed(range(DEPTH))]
        return [layer for layers in (*contracting, *expanding) for layer in layers] + [self.head()]

    def pair(self, way: str, level: int) -> tuple[Conv, Conv]:
        """The two convolutions of a level ("down", "bottom" or "up"). Level 0 has the image's size."""
        outputs, size = self.width * 2**level, self.image // 2**level
        inputs = 2 * outputs if way == "up" else outputs // 2 if level else 1

        def conv(index: int, inputs: int) -> Conv:
            name = f"{way}{level}_conv{index}"
            return Conv(name=name, inputs=inputs, outputs=outputs, kernel=3, size=size, bias=True)

        return conv(1, inputs), conv(2, outputs)

    def up(self, level: int) -> ConvTranspose:
        """The transposed convolution from the level below."""
        outputs, size = self.width * 2**level, self.image // 2 ** (level + 1)
        name = f"up{level}"
        return ConvTranspose(
            name=name, inputs=2 * outputs, outputs=outputs, kernel=2, stride=2, size=size, bias=True
        )

    def head(self) -> Conv:
        """A convolution of 1 × 1."""
        return Conv(name="head", inputs=self.width, outputs=CLASSES, kernel=1, size=self.image, bias=True)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"images": draw.normal("images", self.batch, 1, self.image, self.image)}

    def tiny(self) -> Self:
        """Five channels, 2 × 2 pixels at the bottom."""
        return replace(self, batch=2, image=32, width=5)

    def torch(self) -> Any:
        """A module with classes as the last axis, as the loss needs them."""
        return torch_unet(self)

    def apply(self, nn: FunctionalForward, images: Any) -> Any:
        def pair(x: Any, way: str, level: int) -> Any:
            for conv in self.pair(way, level):
                x = nn.relu(nn.conv(x, conv))
            return x

        x, skipped = images, []
        for level in range(DEPTH):
            skipped.append(pair(x, "down", level))
            x = nn.max_pool(skipped[-1], 2)
        x = pair(x, "bottom", DEPTH)
        for level in reversed(range(DEPTH)):
            raised = nn.conv_transpose(x, self.up(level))
            x = pair(nn.concatenate([skipped[level], raised], nn.channel_axis), "up", level)
        return nn.channels_last(nn.conv(x, self.head()))


@dataclass(frozen=True)
class UnetInfer(Inference, Unet):
    """Logits of the classes of each pixel."""

    summary = "inference with U-Net: classes of the pixels of a gray image"


@dataclass(frozen=True)
class UnetTrain(TrainingStep, Unet):
    """Forward, backward and update."""

    summary = "train U-Net on the classes of pixels"
    version = 3  # torch, fully sharded, gathers its layers one by one


def torch_unet(network: Unet) -> Any:
    """The module, whose submodules have the layers' names."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    class Model(nn.ModuleDict):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__({layer.name: torch_layers.module_of(layer) for layer in network.layers()})

        def pair(self, x: Tensor, way: str, level: int) -> Tensor:
            for conv in network.pair(way, level):
                x = F.relu(self[conv.name](x), inplace=True)
            return x

        def forward(self, x: Tensor) -> Tensor:
            skipped = []
            for level in range(DEPTH):
                skipped.append(self.pair(x, "down", level))
                x = F.max_pool2d(skipped[-1], 2)
            x = self.pair(x, "bottom", DEPTH)
            for level in reversed(range(DEPTH)):
                x = torch.cat([skipped[level], self[f"up{level}"](x)], dim=1)
                x = self.pair(x, "up", level)
            return self["head"](x).permute(0, 2, 3, 1)

    return Model()
