"""A model with an operator that supports only float32, like many custom kernels."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if y.dtype is not torch.float32:
            raise RuntimeError("only float32 is supported")
        return y


def inputs() -> torch.Tensor:
    return torch.randn(3, 4)
