"""A model that computes a part in float32 in any dtype, as RMSNorm often does, with rotary angles."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.tanh(self.first(x)))
        wide = y.to(torch.float32)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.scale * normed.to(x.dtype)


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 16)
