"""What networks of residual blocks share: links, a convolution's batch norm, both as a module, training."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchbench.workloads._conv_layers import Conv
from benchbench.workloads._layers import Dense, Norm
from benchbench.workloads._programs import torch_layers
from benchbench.workloads.chain import Link
from benchbench.workloads.pipeline import PipelinedTraining

GAIN = 4.0  # of the convolutions, over He's weights


class Residual(Protocol):
    """Convolutions, to whose output the block's input is added."""

    @property
    def convs(self) -> Sequence[Conv]:
        """One after the other."""

    def members(self) -> tuple[Conv, ...]:
        """All its convolutions, also one that projects the input."""


def residual_links(
    stem: Conv, blocks: Iterable[Residual], norm: Callable[[Conv], Norm], head: Dense, *, pool: int = 1
) -> list[Link]:
    """The stem, each block, and the dense layer, whose mean over pixels is the last block's to take.

    `pool`: pixels that the max-pool after the stem makes one of.
    """

    def link(convs: Iterable[Conv], outputs: int) -> Link:
        return Link(layers=tuple(layer for conv in convs for layer in (conv, norm(conv))), outputs=outputs)

    *others, last = blocks
    return [
        link((stem,), stem.pixels()[1] // pool),
        *(link(block.members(), block.convs[-1].pixels()[1]) for block in others),
        link(last.members(), head.inputs),
        Link(layers=(head,), outputs=head.outputs),
    ]


@dataclass(frozen=True)
class ResidualTraining(PipelinedTraining):
    """A step whose batch statistics are of each device's part, or of the whole: what a framework does.

    `sync_batch_norm`: of the whole in every framework.
    """

    sync_batch_norm: bool = False
    added = frozenset({"sync_batch_norm"})


def batch_norm_after(conv: Conv, last: str) -> Norm:
    """The batch norm that follows `conv`, its weights chosen so that rounding does not grow by step.

    With He's weights, gain 1/2 after a block and shift 0, the first gradient has norm 650 at
    `Resnet50Train.tiny`, and float32 is 8 % off at the second step: ReLU's derivative jumps at 0, and
    every jump is amplified. So blocks add little to their input, few activations within them are close
    to 0, and the convolutions are `GAIN` times He's: batch norm takes that out again, while their
    gradient falls by as much. float32 then stays within 1e-5. `last`: the norm that ends a block.
    """
    name = conv.name.replace("conv", "norm")
    is_last = name.endswith(last)
    return Norm(
        name=name,
        channels=conv.outputs,
        scale=(0.2, 0.05) if is_last else (1.0, 0.1),
        shift=(0.0 if is_last or name == "stem.norm" else 1.0, 0.1),
        variance=GAIN**2,
        beside=conv.beside,
    )


def torch_conv_norm(conv: Conv) -> Any:
    """A convolution and its batch norm, of images or of videos."""
    from torch import nn

    norm = nn.BatchNorm3d if len(conv.sizes) == 3 else nn.BatchNorm2d
    return nn.Sequential(OrderedDict(conv=torch_layers.conv(conv), norm=norm(conv.outputs)))
