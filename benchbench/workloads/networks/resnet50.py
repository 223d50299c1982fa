"""ResNet-50 v1.5: He et al. 2016, table 1, with the stride in the 3 × 3 convolution (v1.5)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

from benchbench.arrays import Array
from benchbench.errors import UsageError
from benchbench.workloads._conv_layers import Conv
from benchbench.workloads._layers import Dense, Norm
from benchbench.workloads._programs import jax_layers, numpy_layers, tensorflow_layers, torch_layers
from benchbench.workloads._residual import (
    GAIN,
    ResidualTraining,
    batch_norm_after,
    residual_links,
    torch_conv_norm,
)
from benchbench.workloads.base import Draw
from benchbench.workloads.chain import Chain, Link
from benchbench.workloads.steps import Inference

if TYPE_CHECKING:
    from collections.abc import Iterable


DEPTHS = {50: (3, 4, 6, 3), 14: (1, 1, 1, 1)}  # blocks of each stage, by convolutions on the longest path
WIDTHS = (64, 128, 256, 512)  # channels within a block
EXPANSION = 4  # channels out of a block / within it
HALVINGS = 32  # the last stage's pixels are this much larger than the image's
HEAD = Dense(name="fc", inputs=512 * EXPANSION, outputs=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A bottleneck: 1 × 1, 3 × 3, 1 × 1, and the input added, projected where its shape differs."""

    stage: str
    convs: tuple[Conv, Conv, Conv]
    projection: Conv | None

    def members(self) -> tuple[Conv, ...]:
        """All its convolutions."""
        return (*self.convs, self.projection) if self.projection else self.convs


@dataclass(frozen=True)
class Resnet50(Chain):
    """25,557,032 parameters, 1000 classes."""

    batch: int = 32
    image: int = 224  # pixels on a side
    depth: int = 50  # 14: a block per stage, the shortest network of the same parts

    added = frozenset({"depth"})
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    def __post_init__(self) -> None:
        """Raise UsageError also for a side that cannot be halved five times, or a depth that is no other."""
        super().__post_init__()
        if self.depth not in DEPTHS:
            raise UsageError(f"depth={self.depth} must be {' or '.join(map(str, DEPTHS))}.")
        if self.image % HALVINGS:
            raise UsageError(f"image={self.image} must be a multiple of {HALVINGS}.")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, HEAD.outputs

    def links(self) -> list[Link]:
        """Batch norm follows each convolution, and ReLU except where something is added first."""
        return residual_links(stem(self.image), self.blocks(), norm, HEAD, pool=4)

    def lengthened(self, stages: int) -> Self:
        """The published depth, where the other has too few blocks."""
        return self if stages <= len(self.links()) else replace(self, depth=max(DEPTHS))

    @property
    def roundings(self) -> int:
        """Each sum of a block and pooling count, too."""
        return super().roundings + sum(DEPTHS[self.depth]) + 1

    def blocks(self) -> Iterator[Block]:
        """Blocks in the order in which they are applied."""
        return blocks(self.image, self.depth)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"images": draw.normal("images", self.batch, 3, self.image, self.image)}

    def tiny(self) -> Self:
        """Two images of 64 × 64: four pixels reach the last stage, so that its batch norm has a spread."""
        return replace(self, batch=2, image=64)

    def torch(self) -> Any:
        from torch import nn

        bottleneck = torch_bottleneck()

        def stage(members: Iterable[Block]) -> nn.Sequential:
            return nn.Sequential(*map(bottleneck, members))

        stages = {name: stage(members) for name, members in groupby(self.blocks(), lambda b: b.stage)}
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        layers = OrderedDict(
            stem=torch_conv_norm(stem(self.image)).append(nn.ReLU(inplace=True)).append(pool),
            **stages,
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            fc=nn.Linear(HEAD.inputs, HEAD.outputs),
        )
        return nn.Sequential(layers)

    def tensorflow(self, weights: dict[str, Any], images: Any, *, training: bool) -> Any:
        import tensorflow as tf

        def conv_norm(x: Any, conv: Conv) -> Any:
            y = tensorflow_layers.conv(x, weights, conv)
            return tensorflow_layers.batch_norm(
                y,
                weights,
                norm(conv).name,
                training=training,
                gathers_statistics=self.gathers_statistics,
            )

        x = tf.nn.relu(conv_norm(images, stem(self.image)))
        x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])  # with zeros: nothing is below 0
        x = tf.nn.max_pool2d(x, 3, 2, "VALID")
        for block in self.blocks():
            conv1, conv2, conv3 = block.convs
            y = tf.nn.relu(conv_norm(x, conv1))
            y = tf.nn.relu(conv_norm(y, conv2))
            y = conv_norm(y, conv3)
            x = tf.nn.relu(y + (conv_norm(x, block.projection) if block.projection else x))
        return tensorflow_layers.dense(tf.reduce_mean(x, [1, 2]), weights, HEAD.name)

    def jax(self, weights: dict[str, Any], images: Any, *, training: bool) -> Any:
        import jax
        import jax.numpy as jnp

        def conv_norm(x: Any, conv: Conv) -> Any:
            y = jax_layers.conv(x, weights, conv)
            return jax_layers.batch_norm(y, weights, norm(conv).name, training=training)

        x = jax.nn.relu(conv_norm(images, stem(self.image)))
        edges = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)
        for block in self.blocks():
            conv1, conv2, conv3 = block.convs
            y = jax.nn.relu(conv_norm(x, conv1))
            y = jax.nn.relu(conv_norm(y, conv2))
            y = conv_norm(y, conv3)
            x = jax.nn.relu(y + (conv_norm(x, block.projection) if block.projection else x))
        return jax_layers.dense(x.mean(axis=(1, 2)), weights, HEAD.name)

    def numpy(self, ops: Any, weights: dict[str, Any], images: Any, *, training: bool) -> Any:
        def conv_norm(x: Any, conv: Conv) -> Any:
            name = norm(conv).name
            y = numpy_layers.conv(ops, x, weights, conv)
            running = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
            return ops.batch_norm(
                y, weights[f"{name}.weight"], weights[f"{name}.bias"], None if training else running
            )

        x = ops.relu(conv_norm(images, stem(self.image)))
        x = ops.max_pool2d(x, 3, stride=2, padding=1)
        for block in self.blocks():
            conv1, conv2, conv3 = block.convs
            y = ops.relu(conv_norm(x, conv1))
            y = ops.relu(conv_norm(y, conv2))
            y = conv_norm(y, conv3)
            x = ops.relu(ops.add(y, conv_norm(x, block.projection) if block.projection else x))
        return ops.linear(ops.mean(x, (2, 3)), weights["fc.weight"], weights["fc.bias"])


@dataclass(frozen=True)
class Resnet50Infer(Inference, Resnet50):
    """Logits of a batch of images."""

    summary = "inference with ResNet-50 v1.5"


@dataclass(frozen=True)
class Resnet50Train(ResidualTraining, Resnet50):
    """Forward, backward and update."""

    summary = "train ResNet-50 v1.5"
    version = 3  # and 2: torch's update is fused
    added = frozenset({"depth", "optimizer"})

    def __post_init__(self) -> None:
        """Raise UsageError also where the last batch norm would have one value per channel: no variance."""
        super().__post_init__()
        if self.batch // self.accumulate == 1 and self.image == HALVINGS:
            raise UsageError(
                f"batch={self.batch} and image={HALVINGS} leave batch norm one value per channel.",
                "Train with batch=2 or image=64, or more.",
            )

    def tiny(self) -> Self:
        """It is also as short as can be: rounding of each layer is amplified by those after it."""
        return replace(self, batch=4, image=64, depth=14)


def stem(image: int) -> Conv:
    """The convolution before the first block; batch norm, ReLU and a 3 × 3 max-pool of stride 2 follow."""
    return Conv(name="stem.conv", inputs=3, outputs=64, kernel=7, stride=2, size=image, gain=GAIN)


def blocks(image: int, depth: int = 50) -> Iterator[Block]:
    """Blocks in the order in which they are applied."""
    inputs, side = 64, image // 4
    for stage, (count, width) in enumerate(zip(DEPTHS[depth], WIDTHS, strict=True), start=1):
        for index in range(count):
            stride = 2 if stage > 1 and index == 0 else 1
            yield _block(f"layer{stage}", index, inputs, width, stride, side)
            inputs, side = width * EXPANSION, side // stride


def _block(stage: str, index: int, inputs: int, width: int, stride: int, side: int) -> Block:
    outputs = width * EXPANSION

    def conv(name: str, **sizes: int) -> Conv:
        named = {"name": f"{stage}.{index}.{name}", "gain": GAIN, "beside": name == "down.conv"}
        return Conv(**({"kernel": 1, "size": side} | named | sizes))  # type: ignore[arg-type]

    path = (
        conv("conv1", inputs=inputs, outputs=width),
        conv("conv2", inputs=width, outputs=width, kernel=3, stride=stride),
        conv("conv3", inputs=width, outputs=outputs, size=side // stride),
    )
    projection = conv("down.conv", inputs=inputs, outputs=outputs, stride=stride)
    return Block(stage=stage, convs=path, projection=projection if inputs != outputs else None)


def norm(conv: Conv) -> Norm:
    """The batch norm that follows `conv`."""
    return batch_norm_after(conv, last="norm3")


def torch_bottleneck() -> Any:
    """The module of a `Block`."""
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
