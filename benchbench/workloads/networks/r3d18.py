"""R3D-18, for video: Tran et al. 2018, "A closer look at spatiotemporal convolutions", as in torchvision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._conv_layers import Conv
from benchbench.workloads._layers import Dense
from benchbench.workloads._programs import torch_layers
from benchbench.workloads._residual import GAIN, Block, ResidualNetwork, ResidualTraining, torch_conv_norm
from benchbench.workloads.steps import Inference

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

STAGES = (1, 2, 4, 8)  # channels in widths
CLASSES = 400
FRAMES, PIXELS = 8, 16  # frames, and pixels of a side, that are reduced to one


@dataclass(frozen=True)
class R3d18(ResidualNetwork):
    """33,371,472 parameters, 400 classes of clips. A block has two convolutions."""

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
    added = frozenset({"width", "depth"})
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    def __post_init__(self) -> None:
        """Also raise UsageError for sizes that cannot be halved this often."""
        super().__post_init__()
        if self.image % PIXELS or self.frames % FRAMES:
            raise UsageError(
                f"image={self.image} must be a multiple of {PIXELS}, and frames={self.frames} of {FRAMES}."
            )

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

    def blocks(self) -> Iterator[Block]:
        inputs, size = self.width, self.stem.output_sizes
        for stage, (count, widths) in enumerate(zip(self.depths[self.depth], STAGES, strict=True), start=1):
            for index in range(count):
                stride = 2 if stage > 1 and index == 0 else 1
                block = _block(f"layer{stage}", index, (inputs, widths * self.width), stride, size)
                yield block
                inputs, size = widths * self.width, block.convs[1].sizes

    @property
    def head(self) -> Dense:
        return Dense(name="fc", inputs=STAGES[-1] * self.width, outputs=CLASSES)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"clips": draw.normal("clips", self.batch, 3, self.frames, self.image, self.image)}

    def tiny(self) -> Self:
        """Two clips, of which four pixels reach the last stage, so that its batch norm has a variance."""
        return replace(self, batch=2, frames=8, image=32, width=8)

    def torch_block(self) -> Any:
        import torch.nn.functional as F
        from torch import Tensor, nn

        class BasicBlock(nn.Module):  # type: ignore[misc]
            def __init__(self, block: Block) -> None:
                super().__init__()
                conv1, conv2 = block.convs
                self.conv1, self.norm1 = torch_layers.conv(conv1), nn.BatchNorm3d(conv1.outputs)
                self.conv2, self.norm2 = torch_layers.conv(conv2), nn.BatchNorm3d(conv2.outputs)
                self.down = torch_conv_norm(block.projection) if block.projection else nn.Identity()

            def forward(self, x: Tensor) -> Tensor:
                y = F.relu(self.norm1(self.conv1(x)), inplace=True)
                return F.relu(self.norm2(self.conv2(y)) + self.down(x), inplace=True)

        return BasicBlock


@dataclass(frozen=True)
class R3d18Infer(Inference, R3d18):
    """Logits of a batch of clips."""

    summary = "inference with R3D-18 on clips of video"


@dataclass(frozen=True)
class R3d18Train(ResidualTraining, R3d18):
    """Forward, backward and update."""

    summary = "train R3D-18 on clips of video"
    added = frozenset({"width", "depth", "optimizer"})

    def __post_init__(self) -> None:
        """Also raise UsageError if the last batch norm has one value per channel and no variance."""
        super().__post_init__()
        if (self.batch // self.accumulate, self.frames, self.image) == (1, FRAMES, PIXELS):
            raise UsageError(
                f"batch={self.batch}, frames={FRAMES} and image={PIXELS} leave batch norm"
                " one value per channel.",
                f"Train with batch=2, frames={2 * FRAMES} or image={2 * PIXELS}, or more.",
            )

    def tiny(self) -> Self:
        """The shortest network, since later layers amplify rounding errors."""
        return replace(super().tiny(), batch=4, depth=10)


def _block(stage: str, index: int, channels: tuple[int, int], stride: int, size: tuple[int, ...]) -> Block:
    inputs, outputs = channels
    name = f"{stage}.{index}"
    strides = (stride,) * 3
    first = Conv(
        name=f"{name}.conv1",
        inputs=inputs,
        outputs=outputs,
        kernel=(3, 3, 3),
        stride=strides,
        size=size,
        gain=GAIN,
    )
    second = replace(first, name=f"{name}.conv2", inputs=outputs, stride=(1, 1, 1), size=first.output_sizes)
    down = replace(first, name=f"{name}.down.conv", kernel=(1, 1, 1), is_short_branch=True)
    return Block(stage=stage, convs=(first, second), projection=down if stride > 1 else None)
