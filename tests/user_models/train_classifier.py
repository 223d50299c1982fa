"""Training of the network of `convolutions.py`, with dropout before its last layer."""

import convolutions
import torch
from convolutions import inputs
from torch import nn


class Model(convolutions.Model):
    def __init__(self, width: int = 8, dropout: float = 0.1) -> None:
        super().__init__(width)
        self.head = nn.Sequential(nn.Dropout(dropout), self.head)


def targets(batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 10, (batch,))


loss = nn.CrossEntropyLoss()
__all__ = ["inputs"]
