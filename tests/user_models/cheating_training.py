"""A step that trains only in float64: in other dtypes the first layer gets no gradient."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(torch.tanh(y if y.dtype is torch.float64 else y.detach()))


def inputs(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 16)


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.pow(2).mean()
