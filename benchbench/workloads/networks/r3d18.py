"""R3D-18, for video: Tran et al. 2018, "A closer look at spatiotemporal convolutions", as in torchvision."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
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
from benchbench.workloads.chain import Chain, Link
from benchbench.workloads.steps import Inference

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw

STAGES = (1, 2, 4, 8)  # channels in widths
DEPTHS = {18: 2, 10: 1}  # blocks of each stage, by layers with weights on the longest path
CLASSES = 400
FRAMES, PIXELS = 8, 16  # that become one, of a clip and of a side of its image


@dataclass(frozen=True, slots=True)
class ResidualBlock:
    """Two convolutions, and the input added, projected where its shape differs."""

    stage: str
    convs: tuple[Conv, Conv]
    projection: Conv | None

    def members(self) -> tuple[Conv, ...]:
        """All its convolutions."""
        return (*self.convs, self.projection) if self.projection else self.convs


@dataclass(frozen=True)
class R3d18(Chain):
    """33,371,472 parameters, 400 classes of clips."""

    batch: int = 8
    frames: int = 16
    image: int = 112  # pixels on a side
    width: int = 64  # channels of the first stage; all others grow with it
    depth: int = 18  # 10: a block per stage, the shortest network of the same parts

    input_names = ("clips",)
    images = frozenset({"clips"})
    item = "clip"
    added = frozenset({"width", "depth"})
    version = 2  # JAX's 1 × 1 convolutions are products on the CPU

    def __post_init__(self) -> None:
        """Raise UsageError also for sizes that cannot be halved as often, or a depth that is no other."""
        super().__post_init__()
        if self.depth not in DEPTHS:
            raise UsageError(f"depth={self.depth} must be {' or '.join(map(str, DEPTHS))}.")
        if self.image % PIXELS or self.frames % FRAMES:
            raise UsageError(
                f"image={self.image} must be a multiple of {PIXELS}, and frames={self.frames} of {FRAMES}."
            )

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.batch, CLASSES

    def links(self) -> list[Link]:
        """Batch norm follows each convolution, and ReLU except where something is added first."""
        return residual_links(self.stem(), self.blocks(), _norm, self.head())

    def lengthened(self, stages: int) -> Self:
        """The published depth, where the other has too few blocks."""
        return self if stages <= len(self.links()) else replace(self, depth=max(DEPTHS))

    @property
    def roundings(self) -> int:
        """Each sum of a block and pooling count, too."""
        return super().roundings + DEPTHS[self.depth] * len(STAGES) + 1

    def stem(self) -> Conv:
        """Halves the image, not the frames."""
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

    def blocks(self) -> Iterator[ResidualBlock]:
        """Blocks in the order in which they are applied."""
        inputs, size = self.width, self.stem().output_sizes
        for stage, widths in enumerate(STAGES, start=1):
            for index in range(DEPTHS[self.depth]):
                stride = 2 if stage > 1 and index == 0 else 1
                block = _block(f"layer{stage}", index, (inputs, widths * self.width), stride, size)
                yield block
                inputs, size = widths * self.width, block.convs[1].sizes

    def head(self) -> Dense:
        """The dense layer after the mean over all frames and pixels."""
        return Dense(name="fc", inputs=STAGES[-1] * self.width, outputs=CLASSES)

    def inputs(self, draw: Draw) -> dict[str, Array]:
        return {"clips": draw.normal("clips", self.batch, 3, self.frames, self.image, self.image)}

    def tiny(self) -> Self:
        """Two clips, four pixels of which reach the last stage, so that its batch norm has a spread."""
        return replace(self, batch=2, frames=8, image=32, width=8)

    def torch(self) -> Any:
        from torch import nn

        block = torch_residual_block()

        def stage(members: Any) -> nn.Sequential:
            return nn.Sequential(*map(block, members))

        stages = {name: stage(members) for name, members in groupby(self.blocks(), lambda b: b.stage)}
        layers = OrderedDict(
            stem=torch_conv_norm(self.stem()).append(nn.ReLU(inplace=True)),
            **stages,
            pool=nn.AdaptiveAvgPool3d(1),
            flatten=nn.Flatten(),
            fc=torch_layers.dense(self.head()),
        )
        return nn.Sequential(layers)

    def tensorflow(self, weights: dict[str, Any], clips: Any, *, training: bool) -> Any:
        import tensorflow as tf

        def conv_norm(x: Any, conv: Conv) -> Any:
            y = tensorflow_layers.conv(x, weights, conv)
            return tensorflow_layers.batch_norm(
                y,
                weights,
                _norm(conv).name,
                training=training,
                gathers_statistics=self.gathers_statistics,
            )

        x = self._through(clips, conv_norm, tf.nn.relu, tf.add)
        return tensorflow_layers.dense(tf.reduce_mean(x, [1, 2, 3]), weights, "fc")

    def jax(self, weights: dict[str, Any], clips: Any, *, training: bool) -> Any:
        import jax

        def conv_norm(x: Any, conv: Conv) -> Any:
            y = jax_layers.conv(x, weights, conv)
            return jax_layers.batch_norm(y, weights, _norm(conv).name, training=training)

        x = self._through(clips, conv_norm, jax.nn.relu, jax.numpy.add)
        return jax_layers.dense(x.mean(axis=(1, 2, 3)), weights, "fc")

    def numpy(self, ops: Any, weights: dict[str, Any], clips: Any, *, training: bool) -> Any:
        def conv_norm(x: Any, conv: Conv) -> Any:
            y = numpy_layers.conv(ops, x, weights, conv)
            return numpy_layers.batch_norm(ops, y, weights, _norm(conv).name, training=training)

        x = self._through(clips, conv_norm, ops.relu, ops.add)
        return numpy_layers.dense(ops, ops.mean(x, (2, 3, 4)), weights, "fc")

    def _through(
        self,
        x: Any,
        conv_norm: Callable[[Any, Conv], Any],
        relu: Callable[[Any], Any],
        add: Callable[..., Any],
    ) -> Any:
        """Stem and blocks, by a framework's functions."""
        x = relu(conv_norm(x, self.stem()))
        for block in self.blocks():
            y = relu(conv_norm(x, block.convs[0]))
            y = conv_norm(y, block.convs[1])
            x = relu(add(y, conv_norm(x, block.projection) if block.projection else x))
        return x


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
        """Raise UsageError also where the last batch norm would have one value per channel: no variance."""
        super().__post_init__()
        if (self.batch // self.accumulate, self.frames, self.image) == (1, FRAMES, PIXELS):
            raise UsageError(
                f"batch={self.batch}, frames={FRAMES} and image={PIXELS} leave batch norm"
                " one value per channel.",
                f"Train with batch=2, frames={2 * FRAMES} or image={2 * PIXELS}, or more.",
            )

    def tiny(self) -> Self:
        """It is also as short as can be: rounding of each layer is amplified by those after it."""
        return replace(super().tiny(), batch=4, depth=10)


def _block(
    stage: str, index: int, channels: tuple[int, int], stride: int, size: tuple[int, ...]
) -> ResidualBlock:
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
    down = replace(first, name=f"{name}.down.conv", kernel=(1, 1, 1), beside=True)
    return ResidualBlock(stage, (first, second), down if stride > 1 else None)


def _norm(conv: Conv) -> Norm:
    return batch_norm_after(conv, last="norm2")


def torch_residual_block() -> Any:
    """The module of a `ResidualBlock`."""
    import torch.nn.functional as F
    from torch import Tensor, nn

    class BasicBlock(nn.Module):  # type: ignore[misc]
        def __init__(self, block: ResidualBlock) -> None:
            super().__init__()
            conv1, conv2 = block.convs
            self.conv1, self.norm1 = torch_layers.conv(conv1), nn.BatchNorm3d(conv1.outputs)
            self.conv2, self.norm2 = torch_layers.conv(conv2), nn.BatchNorm3d(conv2.outputs)
            self.down = torch_conv_norm(block.projection) if block.projection else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            y = F.relu(self.norm1(self.conv1(x)), inplace=True)
            return F.relu(self.norm2(self.conv2(y)) + self.down(x), inplace=True)

    return BasicBlock
