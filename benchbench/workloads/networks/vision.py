"""Networks of images that are no classifiers: U-Net, the head of SSD, and DCGAN."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Indices
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv, ConvTranspose, Layer, Norm
from benchbench.workloads._losses import COORDINATES, MultiBox
from benchbench.workloads._optimizers import Adam, Optimizer
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.network import Network
from benchbench.workloads.steps import (
    DISCRIMINATOR,
    GENERATOR,
    AdversarialStep,
    Inference,
    TrainingStep,
    torch_adversaries,
)

if TYPE_CHECKING:
    import numpy as np

    from benchbench.workloads.base import Draw


UNET_DEPTH = 4  # number of times that the image is halved and doubled again
UNET_CLASSES = 2


@dataclass(frozen=True)
class Unet(Network):
    """31,030,658 parameters: a gray image, two classes of pixels."""

    batch: int = 8
    image: int = 256  # pixels on a side
    width: int = 64  # channels at the image's size, twice as many each time it is halved

    multiples = (("image", 2**UNET_DEPTH),)
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.image, self.image, UNET_CLASSES

    def layers(self) -> list[Conv | ConvTranspose]:
        """Layers of the contracting path, the bottom, the expanding path, and the classes of each pixel."""
        contracting = [
            *(self.pair("down", level) for level in range(UNET_DEPTH)),
            self.pair("bottom", UNET_DEPTH),
        ]
        expanding = [(self.up(level), *self.pair("up", level)) for level in reversed(range(UNET_DEPTH))]
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
        return Conv(
            name="head", inputs=self.width, outputs=UNET_CLASSES, kernel=1, size=self.image, bias=True
        )

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
        for level in range(UNET_DEPTH):
            skipped.append(pair(x, "down", level))
            x = nn.max_pool(skipped[-1], 2)
        x = pair(x, "bottom", UNET_DEPTH)
        for level in reversed(range(UNET_DEPTH)):
            raised = nn.conv_transpose(x, self.up(level))
            x = pair(nn.concatenate([skipped[level], raised], nn.channel_axis), "up", level)
        return nn.channels_last(nn.conv(x, self.head()))


@dataclass(frozen=True)
class UnetInfer(Inference, Unet):
    summary = "inference with U-Net: classes of the pixels of a gray image"


@dataclass(frozen=True)
class UnetTrain(TrainingStep, Unet):
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
            for level in range(UNET_DEPTH):
                skipped.append(self.pair(x, "down", level))
                x = F.max_pool2d(skipped[-1], 2)
            x = self.pair(x, "bottom", UNET_DEPTH)
            for level in reversed(range(UNET_DEPTH)):
                x = torch.cat([skipped[level], self[f"up{level}"](x)], dim=1)
                x = self.pair(x, "up", level)
            return self["head"](x).permute(0, 2, 3, 1)

    return Model()


SSD_CHANNELS = (8, 16, 8, 4, 4, 4)  # of each map, in widths: conv4_3 and fc7 of VGG-16, and four later ones
SSD_BOXES = (4, 6, 6, 6, 4, 4)  # per pixel of each map
SSD_MIN_SIDE = 33  # pixels; the last map then has one


@dataclass(frozen=True)
class SsdHead(Network):
    """3,341,550 parameters; 8732 boxes of VOC's 20 classes and the background, in six maps of a backbone.

    The output has the logits of each box's classes, then its coordinates. The backbone is not trained, so
    maps get no gradient. The selection of boxes is not included.
    """

    batch: int = 32
    side: int = 38  # of the finest map, in pixels
    width: int = 64  # channels of all maps grow with it
    classes: int = 21  # including the background

    loss = MultiBox()
    input_names = tuple(f"map{at}" for at in range(len(SSD_BOXES)))
    images = frozenset(input_names)
    added = frozenset({"side", "width", "classes"})
    version = 2  # on CUDA channels first where no tensor cores multiply
    least: ClassVar[Mapping[str, int]] = {"side": SSD_MIN_SIDE}

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return self.batch, sum(self.boxes()), self.classes + COORDINATES

    def boxes(self) -> list[int]:
        """Number of boxes of each map."""
        return [count * side**2 for count, side in zip(SSD_BOXES, self.sides(), strict=True)]

    def sides(self) -> list[int]:
        """Sides of the maps in pixels: halved three times, then reduced by two pixels twice."""
        sides = [self.side]
        for _ in range(3):
            sides.append((sides[-1] + 1) // 2)
        return [*sides, sides[-1] - 2, sides[-1] - 4]

    def predictors(self) -> list[tuple[Conv, Conv]]:
        """Convolutions for the scores and for the coordinates of the boxes of each map."""
        sizes = zip(SSD_CHANNELS, SSD_BOXES, self.sides(), strict=True)
        return [
            (
                self._conv(f"scores.{at}", channels, boxes * self.classes, side),
                self._conv(f"places.{at}", channels, boxes * COORDINATES, side),
            )
            for at, (channels, boxes, side) in enumerate(sizes)
        ]

    def _conv(self, name: str, widths: int, outputs: int, side: int) -> Conv:
        """A 3 × 3 convolution with He's fan-in initialisation.

        All of them are in parallel, so one alone counts for the longest path.
        """
        inputs, gain = widths * self.width, sqrt(outputs / (widths * self.width))
        return Conv(
            name=name, inputs=inputs, outputs=outputs, kernel=3, size=side, bias=True, gain=gain,
            is_short_branch=name != "scores.1",
        )  # fmt: skip

    def layers(self) -> list[Conv]:
        return [conv for pair in self.predictors() for conv in pair]

    def first_layers(self) -> list[Conv]:
        return self.layers()

    def inputs(self, draw: Draw) -> dict[str, Array]:
        sizes = zip(self.input_names, SSD_CHANNELS, self.sides(), strict=True)
        return {
            name: draw.normal(name, self.batch, widths * self.width, side, side)
            for name, widths, side in sizes
        }

    def tiny(self) -> Self:
        """As many maps, of which the last has one pixel."""
        return replace(self, batch=2, side=SSD_MIN_SIDE, width=4, classes=5)

    def torch(self) -> Any:
        """torchvision.models.detection.ssd.SSDHead, with one tensor as result."""
        import torch
        from torch import Tensor, nn

        numbers, pairs = (self.classes, COORDINATES), self.predictors()

        class Head(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.scores = nn.ModuleList(torch_layers.module_of(scores) for scores, _ in pairs)
                self.places = nn.ModuleList(torch_layers.module_of(places) for _, places in pairs)

            def forward(self, *maps: Tensor) -> Tensor:
                kinds = zip((self.scores, self.places), numbers, strict=True)
                return torch.cat([torch.cat(predict(maps, *kind), 1) for kind in kinds], -1)

        def predict(maps: Sequence[Tensor], convs: Any, count: int) -> list[Tensor]:
            results = [conv(x).permute(0, 2, 3, 1) for x, conv in zip(maps, convs, strict=True)]
            return [y.reshape(len(y), -1, count) for y in results]

        return Head()

    def apply(self, nn: FunctionalForward, *maps: Any) -> Any:
        def rows(x: Any, conv: Conv, count: int) -> Any:
            return nn.reshape(nn.channels_last(nn.conv(x, conv)), (x.shape[0], -1, count))

        pairs = list(zip(maps, self.predictors(), strict=True))
        scores = [rows(x, scoring, self.classes) for x, (scoring, _) in pairs]
        coordinates = [rows(x, placing, COORDINATES) for x, (_, placing) in pairs]
        return nn.concatenate([nn.concatenate(scores, 1), nn.concatenate(coordinates, 1)], -1)


@dataclass(frozen=True)
class SsdHeadInfer(Inference, SsdHead):
    summary = "inference with the head of SSD300, a detector, on a backbone's feature maps"

    def sample(self, source: np.random.Generator, count: int) -> Indices:
        """Sample as many boxes of each map, since the last has only four of thousands."""
        import numpy as np

        index, boxes = super().sample(source, count), np.array(self.boxes())
        maps, ends = source.integers(0, len(boxes), size=count), np.cumsum(boxes)
        index[:, 1] = source.integers(ends[maps] - boxes[maps], ends[maps])
        return index


@dataclass(frozen=True)
class SsdHeadTrain(TrainingStep, SsdHead):
    summary = "train the head of SSD300, a detector, on a backbone's feature maps"
    added = frozenset({"side", "width", "classes", "optimizer"})


LATENT = 100  # random numbers per generated image
DCGAN_STAGES = (8, 4, 2, 1)  # channels in widths, from 4 × 4 to 32 × 32 pixels
DCGAN_IMAGE, COLOURS = 64, 3
SLOPE = 0.2  # of leaky ReLU below 0
DCGAN_ADAM = Adam(learning_rate=2e-4, beta1=0.5)  # section 4


@dataclass(frozen=True)
class Dcgan(Network):
    """3,576,704 parameters in the generator, 2,765,568 in the discriminator; He's initialisation."""

    batch: int = 128
    width: int = 64  # channels of the widest feature maps; all others grow with it

    version = 2  # on CUDA channels first where no tensor cores multiply

    input_names: ClassVar[tuple[str, ...]] = ("noise",)
    images = frozenset({"noise"})

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        return self.batch, DCGAN_IMAGE, DCGAN_IMAGE, COLOURS

    def layers(self) -> list[Layer]:
        """Layers of the generator: batch norm and ReLU after each layer but the last, which tanh follows."""
        *normed, last = self.generator()
        return [*(layer for conv in normed for layer in (conv, dcgan_norm(conv))), last]

    def generator(self) -> list[ConvTranspose]:
        """Layers from one pixel of `LATENT` channels. Each but the first doubles the size."""
        channels = [LATENT, *(widths * self.width for widths in DCGAN_STAGES), COLOURS]
        first = ConvTranspose(name=f"{GENERATOR}.conv0", inputs=LATENT, outputs=channels[1], kernel=4, size=1)
        return [first] + [
            ConvTranspose(
                name=f"{GENERATOR}.conv{at}", inputs=channels[at], outputs=channels[at + 1],
                kernel=4, stride=2, edge=1, size=2 ** (at + 1),
            )
            for at in range(1, len(DCGAN_STAGES) + 1)
        ]  # fmt: skip

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"noise": draw.normal("noise", self.batch, LATENT, 1, 1)}

    def tiny(self) -> Self:
        return replace(self, batch=3, width=4)

    def torch(self) -> Any:
        from torch import Tensor, nn

        generator = torch_dcgan_part(self.generator(), nn.ReLU(inplace=True))

        class Model(nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.generator = generator

            def forward(self, noise: Tensor) -> Tensor:
                return self.generator(noise).tanh().permute(0, 2, 3, 1)

        return Model()

    def apply(self, nn: FunctionalForward, *inputs: Any, **options: Any) -> Any:
        (x,), (*normed, last) = inputs, self.generator()
        for conv in normed:
            x = nn.relu(nn.batch_norm(nn.conv_transpose(x, conv), dcgan_norm(conv).name))
        return nn.channels_last(nn.tanh(nn.conv_transpose(x, last)))


@dataclass(frozen=True)
class DcganInfer(Inference, Dcgan):
    summary = "images of DCGAN's generator"


@dataclass(frozen=True)
class DcganTrain(AdversarialStep, Dcgan):
    """DCGAN trained with Adam as published, unless another optimizer is chosen."""

    optimizer: str = "adam"

    summary = "train DCGAN: an update of the discriminator and one of the generator"
    images = frozenset({"images", "noise", "new_noise"})

    @property
    def update(self) -> Optimizer:
        """Adam with the paper's settings."""
        return DCGAN_ADAM if self.optimizer == "adam" else super().update

    def layers(self) -> list[Layer]:
        """Generator and discriminator. The discriminator's first and last layers have no batch norm."""
        first, *middle, last = self.discriminator()
        normed = [layer for conv in middle for layer in (conv, dcgan_norm(conv))]
        return [*super().layers(), first, *normed, last]

    def discriminator(self) -> list[Conv]:
        """Layers that halve the size, except the last, with leaky ReLUs between them."""
        channels = [COLOURS, *(widths * self.width for widths in reversed(DCGAN_STAGES))]
        last = Conv(
            name=f"{DISCRIMINATOR}.conv{len(DCGAN_STAGES)}",
            inputs=channels[-1],
            outputs=1,
            kernel=4,
            edge=0,
            size=4,
        )
        return [
            Conv(
                name=f"{DISCRIMINATOR}.conv{at}", inputs=channels[at], outputs=channels[at + 1],
                kernel=4, stride=2, edge=1, size=DCGAN_IMAGE // 2**at,
            )
            for at in range(len(DCGAN_STAGES))
        ] + [last]  # fmt: skip

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Real images, and noise for each of the two updates."""
        images = draw.normal("images", self.batch, COLOURS, DCGAN_IMAGE, DCGAN_IMAGE, scale=0.5)
        new_noise = draw.normal("new_noise", self.batch, LATENT, 1, 1)
        return {"images": images, **super().inputs(draw), "new_noise": new_noise}

    def torch(self) -> Any:
        from torch import nn

        generator = torch_dcgan_part(self.generator(), nn.ReLU(inplace=True))
        discriminator = torch_dcgan_part(self.discriminator(), nn.LeakyReLU(SLOPE, inplace=True))
        return torch_adversaries(generator.append(nn.Tanh()), discriminator)

    def judge(self, nn: FunctionalForward, images: Any) -> Any:
        x, (first, *middle, last) = images, self.discriminator()
        x = nn.leaky_relu(nn.conv(x, first), SLOPE)
        for conv in middle:
            x = nn.leaky_relu(nn.batch_norm(nn.conv(x, conv), dcgan_norm(conv).name), SLOPE)
        return nn.conv(x, last)


def dcgan_norm(conv: Conv | ConvTranspose) -> Norm:
    """The batch norm after `conv`. In the first layer, the noise reaches each pixel once."""
    variance = 1 / 8 if conv.inputs == LATENT else 1.0
    return Norm(name=conv.name.replace("conv", "norm"), channels=conv.outputs, variance=variance)


def torch_dcgan_part(convs: Sequence[Conv | ConvTranspose], activation: Any) -> Any:
    """Convolutions with activations between them, and batch norms except after the images."""
    from torch import nn

    modules: OrderedDict[str, Any] = OrderedDict()
    for at, conv in enumerate(convs):
        modules[f"conv{at}"] = torch_layers.module_of(conv)
        if at < len(convs) - 1:
            if conv.inputs != COLOURS:
                modules[f"norm{at}"] = nn.BatchNorm2d(conv.outputs)
            modules[f"act{at}"] = activation
    return nn.Sequential(modules)
