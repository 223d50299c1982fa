"""A model whose inner part hardly affects its output, so that verification cannot see it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.loud, self.faint = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loud(x) + 1e-9 * self.faint(x)


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 8)
