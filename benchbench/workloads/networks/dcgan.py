"""DCGAN of 64 × 64 pixels: Radford et al. 2016, "Unsupervised representation learning with DCGANs"."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv, ConvTranspose, Layer, Norm
from benchbench.workloads._optimizers import Adam, Optimizer
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.network import Network
from benchbench.workloads.steps import DISCRIMINATOR, GENERATOR, AdversarialStep, Inference, torch_adversaries

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

LATENT = 100  # random numbers per generated image
STAGES = (8, 4, 2, 1)  # channels in widths, from 4 × 4 to 32 × 32 pixels
IMAGE, COLOURS = 64, 3
SLOPE = 0.2  # of leaky ReLU below 0
ADAM = Adam(learning_rate=2e-4, beta1=0.5)  # section 4


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
        return self.batch, IMAGE, IMAGE, COLOURS

    def layers(self) -> list[Layer]:
        """Layers of the generator: batch norm and ReLU after each layer but the last, which tanh follows."""
        *normed, last = self.generator()
        return [*(layer for conv in normed for layer in (conv, batch_norm_of(conv))), last]

    def generator(self) -> list[ConvTranspose]:
        """Layers from one pixel of `LATENT` channels. Each but the first doubles the size."""
        channels = [LATENT, *(widths * self.width for widths in STAGES), COLOURS]
        first = ConvTranspose(name=f"{GENERATOR}.conv0", inputs=LATENT, outputs=channels[1], kernel=4, size=1)
        return [first] + [
            ConvTranspose(
                name=f"{GENERATOR}.conv{at}", inputs=channels[at], outputs=channels[at + 1],
                kernel=4, stride=2, edge=1, size=2 ** (at + 1),
            )
            for at in range(1, len(STAGES) + 1)
        ]  # fmt: skip

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"noise": draw.normal("noise", self.batch, LATENT, 1, 1)}

    def tiny(self) -> Self:
        return replace(self, batch=3, width=4)

    def torch(self) -> Any:
        from torch import Tensor, nn

        generator = torch_chain(self.generator(), nn.ReLU(inplace=True))

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
            x = nn.relu(nn.batch_norm(nn.conv_transpose(x, conv), batch_norm_of(conv).name))
        return nn.channels_last(nn.tanh(nn.conv_transpose(x, last)))


@dataclass(frozen=True)
class DcganInfer(Inference, Dcgan):
    """Images of the generator."""

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
        return ADAM if self.optimizer == "adam" else super().update

    def layers(self) -> list[Layer]:
        """Generator and discriminator. The discriminator's first and last layers have no batch norm."""
        first, *middle, last = self.discriminator()
        normed = [layer for conv in middle for layer in (conv, batch_norm_of(conv))]
        return [*super().layers(), first, *normed, last]

    def discriminator(self) -> list[Conv]:
        """Layers that halve the size, except the last, with leaky ReLUs between them."""
        channels = [COLOURS, *(widths * self.width for widths in reversed(STAGES))]
        last = Conv(
            name=f"{DISCRIMINATOR}.conv{len(STAGES)}",
            inputs=channels[-1],
            outputs=1,
            kernel=4,
            edge=0,
            size=4,
        )
        return [
            Conv(
                name=f"{DISCRIMINATOR}.conv{at}", inputs=channels[at], outputs=channels[at + 1],
                kernel=4, stride=2, edge=1, size=IMAGE // 2**at,
            )
            for at in range(len(STAGES))
        ] + [last]  # fmt: skip

    def inputs(self, draw: Draw) -> dict[str, Array]:
        """Real images, and noise for each of the two updates."""
        images = draw.normal("images", self.batch, COLOURS, IMAGE, IMAGE, scale=0.5)
        new_noise = draw.normal("new_noise", self.batch, LATENT, 1, 1)
        return {"images": images, **super().inputs(draw), "new_noise": new_noise}

    def torch(self) -> Any:
        from torch import nn

        generator = torch_chain(self.generator(), nn.ReLU(inplace=True))
        discriminator = torch_chain(self.discriminator(), nn.LeakyReLU(SLOPE, inplace=True))
        return torch_adversaries(generator.append(nn.Tanh()), discriminator)

    def judge(self, nn: FunctionalForward, images: Any) -> Any:
        x, (first, *middle, last) = images, self.discriminator()
        x = nn.leaky_relu(nn.conv(x, first), SLOPE)
        for conv in middle:
            x = nn.leaky_relu(nn.batch_norm(nn.conv(x, conv), batch_norm_of(conv).name), SLOPE)
        return nn.conv(x, last)


def batch_norm_of(conv: Conv | ConvTranspose) -> Norm:
    """The batch norm after `conv`. In the first layer, the noise reaches each pixel once."""
    variance = 1 / 8 if conv.inputs == LATENT else 1.0
    return Norm(name=conv.name.replace("conv", "norm"), channels=conv.outputs, variance=variance)


def torch_chain(convs: Sequence[Conv | ConvTranspose], activation: Any) -> Any:
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
