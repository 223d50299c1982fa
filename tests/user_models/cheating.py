"""A model that is right only in float64: in other dtypes it forgets a bias."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) if x.dtype is torch.float64 else nn.functional.linear(x, self.first.weight)
        return self.second(torch.relu(y))


def inputs(batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, 16)
