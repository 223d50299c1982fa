"""What networks of residual blocks share: a convolution's batch norm, and both as a module."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from benchbench.workloads._conv_layers import Conv
from benchbench.workloads._layers import Norm
from benchbench.workloads._programs import torch_layers

GAIN = 4.0  # of the convolutions, over He's weights


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
