"""ResNet-50 v1.5 as data: its layers, their counted work and their weights.

He et al. 2016, table 1, with the stride in the 3 × 3 convolution (v1.5). Knows no framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from benchbench.errors import UsageError
from benchbench.workloads._layers import Conv, Dense, Layer, bias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Draw

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, channels within a block
EXPANSION = 4  # channels out of a block / within it
GAIN = 4.0  # of the convolutions, over He's weights
HALVINGS = 32  # the last stage's pixels are this much larger than the image's
HEAD = Dense(name="fc", inputs=512 * EXPANSION, outputs=1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A bottleneck: 1 × 1, 3 × 3, 1 × 1, and the input added, projected where its shape differs."""

    stage: str
    convs: tuple[Conv, Conv, Conv]
    projection: Conv | None


def check(image: int) -> None:
    """Raise UsageError for an image whose side the network cannot halve five times."""
    if image % HALVINGS:
        raise UsageError(f"image={image} must be a multiple of {HALVINGS}.")


def stem(image: int) -> Conv:
    """The convolution before the first block; batch norm, ReLU and a 3 × 3 max-pool of stride 2 follow."""
    return Conv(name="stem.conv", inputs=3, outputs=64, kernel=7, stride=2, side=image // 2)


def blocks(image: int) -> Iterator[Block]:
    """In the order in which they are applied."""
    inputs, side = 64, image // 4
    for stage, (count, width) in enumerate(STAGES, start=1):
        for index in range(count):
            stride = 2 if stage > 1 and index == 0 else 1
            side //= stride
            yield _block(f"layer{stage}", index, inputs, width, stride, side)
            inputs = width * EXPANSION


def _block(stage: str, index: int, inputs: int, width: int, stride: int, side: int) -> Block:
    outputs = width * EXPANSION

    def conv(name: str, **sizes: int) -> Conv:
        return Conv(name=f"{stage}.{index}.{name}", **({"kernel": 1, "side": side} | sizes))

    path = (
        conv("conv1", inputs=inputs, outputs=width, side=side * stride),
        conv("conv2", inputs=width, outputs=width, kernel=3, stride=stride),
        conv("conv3", inputs=width, outputs=outputs),
    )
    projection = conv("down.conv", inputs=inputs, outputs=outputs, stride=stride)
    return Block(stage=stage, convs=path, projection=projection if inputs != outputs else None)


def norm(conv: Conv) -> str:
    """The name of the batch norm that follows `conv`."""
    return conv.name.replace("conv", "norm")


def convs(image: int) -> list[Conv]:
    """All of them."""
    found = [stem(image)]
    for block in blocks(image):
        found += block.convs
        found += [block.projection] if block.projection else []
    return found


def layers(image: int) -> list[Layer]:
    """What is counted: the convolutions and the dense layer."""
    return [*convs(image), HEAD]


def parameters() -> int:
    """25,557,032, running statistics not among them."""
    return (
        sum(prod(conv.shape) + 2 * conv.outputs for conv in convs(HALVINGS)) + prod(HEAD.shape) + HEAD.outputs
    )


def reduction() -> int:
    """Products summed into an output element, over the layers of the longest path."""
    path = [stem(HALVINGS), *(conv for block in blocks(HALVINGS) for conv in block.convs)]
    return sum(conv.products for conv in path) + HEAD.products


def roundings() -> int:
    """On the longest path forward: each convolution, batch norm and sum; pooling, dense, bias."""
    return 2 + sum(2 * len(block.convs) + 1 for block in blocks(HALVINGS)) + 3


def weights(draw: Draw) -> dict[str, NDArray[np.float32]]:
    """By PyTorch's names, chosen so that rounding does not grow from step to step of training.

    With He's weights, gain 1/2 after a block and shift 0, the first gradient has norm 650 at
    `Resnet50Train.tiny`, and float32 is 8 % off at the second step: ReLU's derivative jumps at 0, and
    every jump is amplified. So blocks add little to their input, few activations within them are close
    to 0, and the convolutions are `GAIN` times He's: batch norm takes that out again, while their
    gradient falls by as much. float32 then stays within 1e-5.
    """
    arrays = {}
    for conv in convs(HALVINGS):
        arrays[f"{conv.name}.weight"] = conv.draw(draw, GAIN)
        arrays |= _norm_weights(draw, norm(conv), conv.outputs)
    arrays[f"{HEAD.name}.weight"] = HEAD.draw(draw)
    arrays[f"{HEAD.name}.bias"] = bias(draw, HEAD)
    return arrays


def _norm_weights(draw: Draw, name: str, count: int) -> dict[str, NDArray[np.float32]]:
    import numpy as np

    gain, spread = (0.2, 0.05) if name.endswith("norm3") else (1.0, 0.1)
    shift = 0.0 if name.endswith(("stem.norm", "norm3")) else 1.0
    variance = draw.normal(f"{name}.running_var", count, mean=GAIN**2, scale=0.1 * GAIN**2)
    return {
        f"{name}.weight": draw.normal(f"{name}.weight", count, mean=gain, scale=spread),
        f"{name}.bias": draw.normal(f"{name}.bias", count, mean=shift, scale=0.1),
        f"{name}.running_mean": draw.normal(f"{name}.running_mean", count, scale=0.1),
        f"{name}.running_var": np.abs(variance),  # ten standard deviations from 0
    }
