"""A small LSTM of sequences, made by a function."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, width: int, bidirectional: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=bidirectional)
        self.tags = nn.Linear(width * (1 + bidirectional), 5)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, _ = self.lstm(self.embed(tokens))
        scores = self.tags(y)
        return scores, scores.argmax(-1)


def model(width: int = 12, bidirectional: bool = True) -> nn.Module:
    return Tagger(width, bidirectional)


def inputs(batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length))
