"""Networks of residual blocks: a stem, blocks with shortcuts, and a dense layer.

A subclass defines the sizes, the convolutions of stem and blocks, and torch's module of a block.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.model.case import streams_obstacle
from benchbench.workloads._forward import FunctionalForward
from benchbench.workloads._layers import Conv, Dense, Norm
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.base import Draw
from benchbench.workloads.network import Chain, Link
from benchbench.workloads.steps import Inference, PipelinedTraining

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

Shape = tuple[int, ...]  # size of an image or video along each axis
GAIN = 4.0  # of the convolutions, relative to He's initialisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Convolutions with a shortcut from the input, which is projected if the shapes differ."""

    stage: str
    convs: tuple[Conv, ...]  # one after the other
    projection: Conv | None

    def members(self) -> tuple[Conv, ...]:
        """All convolutions of the block."""
        return (*self.convs, self.projection) if self.projection else self.convs


class ResidualNetwork(Chain):
    """Base of residual networks, with batch norm after each convolution and ReLU after it or the addition."""

    depth: int  # a key of `depths`
    depths: ClassVar[Mapping[int, tuple[int, ...]]]  # layers on the longest path → blocks of each stage
    last_norm: ClassVar[str]  # name of the norm at the end of a block
    pool: ClassVar[int] = 1  # stride of the max-pool after the stem; 1: none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depth not in self.depths:
            raise UsageError(f"depth={self.depth} must be {' or '.join(map(str, self.depths))}.")

    @property
    @abstractmethod
    def stem(self) -> Conv:
        """The convolution before the first block."""

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Channels within a block of each stage."""

    @abstractmethod
    def block(self, stage: str, index: int, inputs: int, width: int, stride: int, size: Shape) -> Block:
        """Block `index` of a stage, whose input has this number of channels and this size."""

    def blocks(self) -> Iterator[Block]:
        """Blocks in the order in which they are applied."""
        inputs, size = self.stem.outputs, tuple(side // self.pool for side in self.stem.output_sizes)
        for stage, (count, width) in enumerate(
            zip(self.depths[self.depth], self.widths, strict=True), start=1
        ):
            for index in range(count):
                stride = 2 if stage > 1 and index == 0 else 1
                yield (block := self.block(f"layer{stage}", index, inputs, width, stride, size))
                inputs, size = block.convs[-1].outputs, block.convs[-1].output_sizes

    @property
    @abstractmethod
    def head(self) -> Dense:
        """The dense layer after the mean over all pixels."""

    def torch_stem(self) -> Any:
        """The `nn.Sequential` before the first block."""
        from torch import nn

        return torch_conv_norm(self.stem).append(nn.ReLU(inplace=True))

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, self.head.outputs

    def links(self) -> list[Link]:
        """The stem, the blocks, and the dense layer. The last block includes the mean over pixels."""

        def link(convs: Iterable[Conv], outputs: int) -> Link:
            layers = tuple(layer for conv in convs for layer in (conv, self._norm(conv)))
            return Link(layers=layers, outputs=outputs)

        *first_blocks, last = self.blocks()
        return [
            link((self.stem,), self.stem.pixels()[1] // self.pool ** len(self.stem.sizes)),
            *(link(block.members(), block.convs[-1].pixels()[1]) for block in first_blocks),
            link(last.members(), self.head.inputs),
            Link(layers=(self.head,), outputs=self.head.outputs),
        ]

    def lengthened(self, stages: int) -> Self:
        """The published depth if this one has too few blocks."""
        if stages <= len(self.links()):
            return self
        return replace(self, depth=max(self.depths))  # type: ignore[type-var]  # each is a dataclass

    @property
    def roundings(self) -> int:
        """The sum of each block and pooling count, too."""
        return super().roundings + sum(self.depths[self.depth]) + 1

    def torch(self) -> Any:
        from torch import nn

        block = torch_block()
        stages = {
            name: nn.Sequential(*map(block, members))
            for name, members in groupby(self.blocks(), lambda block: block.stage)
        }
        mean = nn.AdaptiveAvgPool3d if len(self.stem.sizes) == 3 else nn.AdaptiveAvgPool2d
        layers = OrderedDict(
            stem=self.torch_stem(),
            **stages,
            pool=mean(1),
            flatten=nn.Flatten(),
            fc=torch_layers.module_of(self.head),
        )
        return nn.Sequential(layers)

    def apply(self, nn: FunctionalForward, x: Any) -> Any:
        def conv_norm(x: Any, conv: Conv) -> Any:
            return nn.batch_norm(nn.conv(x, conv), self._norm(conv).name)

        x = nn.relu(conv_norm(x, self.stem))
        if self.pool > 1:
            x = nn.overlapping_max_pool(x)
        for block in self.blocks():
            y = x
            for conv in block.convs[:-1]:
                y = nn.relu(conv_norm(y, conv))
            y = conv_norm(y, block.convs[-1])
            x = nn.relu(nn.add(y, conv_norm(x, block.projection) if block.projection else x))
        return nn.dense(nn.mean_pixels(x), self.head.name)

    def _norm(self, conv: Conv) -> Norm:
        """The batch norm after `conv`, with weights for which rounding errors do not grow from step to step.

        With He's weights, gain 1/2 after a block and shift 0, the first gradient has norm 650 at
        `Resnet50Train.tiny`, and float32 is 8 % off at the second step: ReLU's derivative jumps at 0, and
        every jump is amplified. Therefore blocks add little to their input, few activations within them are
        close to 0, and the convolutions are `GAIN` times He's. Batch norm divides by that again, while their
        gradient shrinks by the same factor. float32 then stays within 1e-5.
        """
        name = conv.name.replace("conv", "norm")
        is_last = name.endswith(self.last_norm)
        return Norm(
            name=name,
            channels=conv.outputs,
            scale=(0.2, 0.05) if is_last else (1.0, 0.1),
            shift=(0.0 if is_last or name == "stem.norm" else 1.0, 0.1),
            variance=GAIN**2,
            is_short_branch=conv.is_short_branch,
        )


@dataclass(frozen=True)
class ResidualTraining(PipelinedTraining):
    """Training step of a residual network.

    Batch statistics are those of each device's part or of the whole batch, depending on the framework. With
    `sync_batch_norm` they are of the whole batch in every framework.
    """

    sync_batch_norm: bool = False
    added = frozenset({"sync_batch_norm"})


def torch_conv_norm(conv: Conv) -> Any:
    """A convolution and its batch norm, for images or videos."""
    from torch import nn

    norm = nn.BatchNorm3d if len(conv.sizes) == 3 else nn.BatchNorm2d
    return nn.Sequential(OrderedDict(conv=torch_layers.module_of(conv), norm=norm(conv.outputs)))


def torch_block() -> Any:
    """Class of a block's module, with ReLU between convolutions and after the addition."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    class ResidualBlock(nn.Module):  # type: ignore[misc]
        def __init__(self, block: Block) -> None:
            super().__init__()
            *self.first, self.last = [(f"conv{at + 1}", f"norm{at + 1}") for at in range(len(block.convs))]
            for conv, names in zip(block.convs, (*self.first, self.last), strict=True):
                for name, member in zip(names, torch_conv_norm(conv), strict=True):
                    self.add_module(name, member)
            self.down = torch_conv_norm(block.projection) if block.projection else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            modules, y = self._modules, x  # an attribute of a module costs the host more time
            for conv, norm in self.first:
                y = F.relu(modules[norm](modules[conv](y)), inplace=True)
            conv, norm = self.last
            return F.relu(modules[norm](modules[conv](y)) + modules["down"](x), inplace=True)

    return ResidualBlock


RESNET50_EXPANSION = 4  # channels out of a block / within it
RESNET50_HALVINGS = 32  # image pixels per pixel of the last stage, along a side


@dataclass(frozen=True)
class Resnet50(ResidualNetwork):
    """ResNet-50 v1.5 (He et al. 2016, table 1, with the stride in the 3 × 3 convolution).

    25,557,032 parameters, 1000 classes. A block is a bottleneck: 1 × 1, 3 × 3, 1 × 1.
    """

    batch: int = 32
    image: int = 224  # pixels on a side
    depth: int = 50  # 14: a block per stage, the shortest network of the same parts

    depths: ClassVar[Mapping[int, tuple[int, ...]]] = {50: (3, 4, 6, 3), 14: (1, 1, 1, 1)}
    last_norm = "norm3"
    head = Dense(name="fc", inputs=512 * RESNET50_EXPANSION, outputs=1000)
    widths = (64, 128, 256, 512)
    pool = 2
    multiples = (("image", RESNET50_HALVINGS),)
    added = frozenset({"depth"})
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    @property
    def stem(self) -> Conv:
        """The convolution before the first block; a 3 × 3 max-pool with stride 2 follows."""
        return Conv(name="stem.conv", inputs=3, outputs=64, kernel=7, stride=2, size=self.image, gain=GAIN)

    def block(self, stage: str, index: int, inputs: int, width: int, stride: int, size: Shape) -> Block:
        outputs = width * RESNET50_EXPANSION

        def conv(name: str, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> Conv:
            return Conv(
                name=f"{stage}.{index}.{name}", inputs=inputs, outputs=outputs, kernel=kernel, stride=stride,
                size=size, gain=GAIN, is_short_branch=name == "down.conv",
            )  # fmt: skip

        first, second = conv("conv1", inputs, width), conv("conv2", width, width, kernel=3, stride=stride)
        last = replace(conv("conv3", width, outputs), size=second.output_sizes)
        projection = conv("down.conv", inputs, outputs, stride=stride) if inputs != outputs else None
        return Block(stage=stage, convs=(first, second, last), projection=projection)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"images": draw.normal("images", self.batch, 3, self.image, self.image)}

    def tiny(self) -> Self:
        """Two images of 64 × 64: four pixels reach the last stage, so that its batch norm has a variance."""
        return replace(self, batch=2, image=64)

    def torch_stem(self) -> Any:
        from torch import nn

        return super().torch_stem().append(nn.MaxPool2d(3, stride=2, padding=1))


@dataclass(frozen=True)
class Resnet50Infer(Inference, Resnet50):
    """Logits of a batch of images. With `streams`, equal parts of the batch are computed at the same time."""

    streams: int = 1
    added = frozenset({"streams"})

    summary = "inference with ResNet-50 v1.5"

    def __post_init__(self) -> None:
        super().__post_init__()
        if reason := streams_obstacle(self.batch, self.streams):
            raise UsageError(f"{reason}.")


@dataclass(frozen=True)
class Resnet50Train(ResidualTraining, Resnet50):
    summary = "train ResNet-50 v1.5"
    version = 3  # and 2: torch's update is fused
    added = frozenset({"depth", "optimizer"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch // self.accumulate == 1 and self.image == RESNET50_HALVINGS:
            raise UsageError(
                f"batch={self.batch} and image={RESNET50_HALVINGS} leave batch norm one value per channel.",
                "Train with batch=2 or image=64, or more.",
            )

    def tiny(self) -> Self:
        """The shortest network, since later layers amplify rounding errors."""
        return replace(self, batch=4, image=64, depth=14)


R3D18_CLASSES = 400
R3D18_FRAMES, R3D18_PIXELS = 8, 16  # frames, and pixels of a side, that are reduced to one


@dataclass(frozen=True)
class R3d18(ResidualNetwork):
    """R3D-18, for video, as in torchvision: 33,371,472 parameters, 400 classes of clips.

    A block has two convolutions (Tran et al. 2018, "A closer look at spatiotemporal convolutions").
    """

    batch: int = 8
    frames: int = 16
    image: int = 112  # pixels on a side
    width: int = 64  # channels of the first stage; all others grow with it
    depth: int = 18  # 10: a block per stage, the shortest network of the same parts

    depths: ClassVar[Mapping[int, tuple[int, ...]]] = {18: (2, 2, 2, 2), 10: (1, 1, 1, 1)}
    last_norm = "norm2"
    input_names = ("clips",)
    images = frozenset({"clips"})
    item = "clip"
    multiples = (("image", R3D18_PIXELS), ("frames", R3D18_FRAMES))
    added = frozenset({"width", "depth"})
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    @property
    def stem(self) -> Conv:
        """The convolution before the first block; it halves the image, not the frames."""
        size = self.frames, self.image, self.image
        return Conv(
            name="stem.conv",
            inputs=3,
            outputs=self.width,
            kernel=(3, 7, 7),
            stride=(1, 2, 2),
            size=size,
            gain=GAIN,
        )

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(factor * self.width for factor in (1, 2, 4, 8))

    def block(self, stage: str, index: int, inputs: int, width: int, stride: int, size: Shape) -> Block:
        name, kernel = f"{stage}.{index}", (3, 3, 3)
        first = Conv(
            name=f"{name}.conv1", inputs=inputs, outputs=width, kernel=kernel, stride=(stride,) * 3,
            size=size, gain=GAIN,
        )  # fmt: skip
        second = replace(first, name=f"{name}.conv2", inputs=width, stride=1, size=first.output_sizes)
        down = replace(first, name=f"{name}.down.conv", kernel=1, is_short_branch=True)
        return Block(stage=stage, convs=(first, second), projection=down if stride > 1 else None)

    @property
    def head(self) -> Dense:
        return Dense(name="fc", inputs=self.widths[-1], outputs=R3D18_CLASSES)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"clips": draw.normal("clips", self.batch, 3, self.frames, self.image, self.image)}

    def tiny(self) -> Self:
        """Two clips, of which four pixels reach the last stage, so that its batch norm has a variance."""
        return replace(self, batch=2, frames=8, image=32, width=8)


@dataclass(frozen=True)
class R3d18Infer(Inference, R3d18):
    summary = "inference with R3D-18 on clips of video"


@dataclass(frozen=True)
class R3d18Train(ResidualTraining, R3d18):
    summary = "train R3D-18 on clips of video"
    added = frozenset({"width", "depth", "optimizer"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.batch // self.accumulate, self.frames, self.image) == (1, R3D18_FRAMES, R3D18_PIXELS):
            raise UsageError(
                f"batch={self.batch}, frames={R3D18_FRAMES} and image={R3D18_PIXELS} leave batch norm"
                " one value per channel.",
                f"Train with batch=2, frames={2 * R3D18_FRAMES} or image={2 * R3D18_PIXELS}, or more.",
            )

    def tiny(self) -> Self:
        """The shortest network, since later layers amplify rounding errors."""
        return replace(super().tiny(), batch=4, depth=10)
