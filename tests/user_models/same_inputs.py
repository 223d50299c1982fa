"""A model with one constant example input."""

import torch
from torch import nn


class Net(nn.Module):
    example_inputs = (torch.arange(12.0).reshape(3, 4),)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)
