"""One layer that adds up many products."""

import torch
from torch import nn


def model(width: int = 16_384) -> nn.Module:
    return nn.Linear(width, 8)


def inputs(batch: int = 2, width: int = 16_384) -> torch.Tensor:
    return torch.randn(batch, width)
