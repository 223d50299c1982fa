"""ResNet-50 v1.5: He et al. 2016, table 1, with the stride in the 3 × 3 convolution (v1.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.model.case import streams_obstacle
from benchbench.workloads._conv_layers import Conv
from benchbench.workloads._layers import Dense
from benchbench.workloads._programs import torch_layers
from benchbench.workloads._residual import GAIN, Block, ResidualNetwork, ResidualTraining, torch_conv_norm
from benchbench.workloads.base import Draw
from benchbench.workloads.steps import Inference

WIDTHS = (64, 128, 256, 512)  # channels within a block
EXPANSION = 4  # channels out of a block / within it
HALVINGS = 32  # image pixels per pixel of the last stage, along a side


@dataclass(frozen=True)
class Resnet50(ResidualNetwork):
    """25,557,032 parameters, 1000 classes. A block is a bottleneck: 1 × 1, 3 × 3, 1 × 1."""

    batch: int = 32
    image: int = 224  # pixels on a side
    depth: int = 50  # 14: a block per stage, the shortest network of the same parts

    depths: ClassVar[Mapping[int, tuple[int, ...]]] = {50: (3, 4, 6, 3), 14: (1, 1, 1, 1)}
    last_norm = "norm3"
    head = Dense(name="fc", inputs=512 * EXPANSION, outputs=1000)
    pool = 4
    added = frozenset({"depth"})
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    def __post_init__(self) -> None:
        """Also raise UsageError for a side that cannot be halved five times."""
        super().__post_init__()
        if self.image % HALVINGS:
            raise UsageError(f"image={self.image} must be a multiple of {HALVINGS}.")

    @property
    def stem(self) -> Conv:
        """The convolution before the first block; a 3 × 3 max-pool with stride 2 follows."""
        return Conv(name="stem.conv", inputs=3, outputs=64, kernel=7, stride=2, size=self.image, gain=GAIN)

    def blocks(self) -> Iterator[Block]:
        inputs, side = 64, self.image // 4
        for stage, (count, width) in enumerate(zip(self.depths[self.depth], WIDTHS, strict=True), start=1):
            for index in range(count):
                stride = 2 if stage > 1 and index == 0 else 1
                yield _block(f"layer{stage}", index, inputs, width, stride, side)
                inputs, side = width * EXPANSION, side // stride

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"images": draw.normal("images", self.batch, 3, self.image, self.image)}

    def tiny(self) -> Self:
        """Two images of 64 × 64: four pixels reach the last stage, so that its batch norm has a variance."""
        return replace(self, batch=2, image=64)

    def torch_stem(self) -> Any:
        from torch import nn

        return super().torch_stem().append(nn.MaxPool2d(3, stride=2, padding=1))

    def torch_block(self) -> Any:
        import torch.nn.functional as F
        from torch import Tensor, nn

        class Bottleneck(nn.Module):  # type: ignore[misc]
            def __init__(self, block: Block) -> None:
                super().__init__()
                conv1, conv2, conv3 = block.convs
                self.conv1, self.norm1 = torch_layers.conv(conv1), nn.BatchNorm2d(conv1.outputs)
                self.conv2, self.norm2 = torch_layers.conv(conv2), nn.BatchNorm2d(conv2.outputs)
                self.conv3, self.norm3 = torch_layers.conv(conv3), nn.BatchNorm2d(conv3.outputs)
                self.down = torch_conv_norm(block.projection) if block.projection else nn.Identity()

            def forward(self, x: Tensor) -> Tensor:
                y = F.relu(self.norm1(self.conv1(x)), inplace=True)
                y = F.relu(self.norm2(self.conv2(y)), inplace=True)
                return F.relu(self.norm3(self.conv3(y)) + self.down(x), inplace=True)

        return Bottleneck

    def tensorflow_pool(self, x: Any) -> Any:
        import tensorflow as tf

        x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])  # with zeros: nothing is below 0
        return tf.nn.max_pool2d(x, 3, 2, "VALID")

    def jax_pool(self, x: Any) -> Any:
        import jax

        edges = ((0, 0), (1, 1), (1, 1), (0, 0))
        return jax.lax.reduce_window(x, -jax.numpy.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)

    def numpy_pool(self, ops: Any, x: Any) -> Any:
        return ops.max_pool2d(x, 3, stride=2, padding=1)


@dataclass(frozen=True)
class Resnet50Infer(Inference, Resnet50):
    """Logits of a batch of images. With `streams`, equal parts of the batch are computed at the same time."""

    streams: int = 1
    added = frozenset({"streams"})

    summary = "inference with ResNet-50 v1.5"

    def __post_init__(self) -> None:
        """Also raise UsageError if the streams do not divide the batch."""
        super().__post_init__()
        if reason := streams_obstacle(self.batch, self.streams):
            raise UsageError(f"{reason}.")


@dataclass(frozen=True)
class Resnet50Train(ResidualTraining, Resnet50):
    """Forward, backward and update."""

    summary = "train ResNet-50 v1.5"
    version = 3  # and 2: torch's update is fused
    added = frozenset({"depth", "optimizer"})

    def __post_init__(self) -> None:
        """Also raise UsageError if the last batch norm has one value per channel and no variance."""
        super().__post_init__()
        if self.batch // self.accumulate == 1 and self.image == HALVINGS:
            raise UsageError(
                f"batch={self.batch} and image={HALVINGS} leave batch norm one value per channel.",
                "Train with batch=2 or image=64, or more.",
            )

    def tiny(self) -> Self:
        """The shortest network, since later layers amplify rounding errors."""
        return replace(self, batch=4, image=64, depth=14)


def _block(stage: str, index: int, inputs: int, width: int, stride: int, side: int) -> Block:
    outputs = width * EXPANSION

    def conv(name: str, **sizes: int) -> Conv:
        properties = {"name": f"{stage}.{index}.{name}", "gain": GAIN, "is_short_branch": name == "down.conv"}
        return Conv(**({"kernel": 1, "size": side} | properties | sizes))  # type: ignore[arg-type]

    path = (
        conv("conv1", inputs=inputs, outputs=width),
        conv("conv2", inputs=width, outputs=width, kernel=3, stride=stride),
        conv("conv3", inputs=width, outputs=outputs, size=side // stride),
    )
    projection = conv("down.conv", inputs=inputs, outputs=outputs, stride=stride)
    return Block(stage=stage, convs=path, projection=projection if inputs != outputs else None)
