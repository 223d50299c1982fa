"""A model with random output, such as a sampler."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.randn_like(x))


def inputs() -> torch.Tensor:
    return torch.randn(3, 4)
