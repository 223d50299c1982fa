"""A model that returns its own loss, as transformers do when they get labels."""

import torch
from recurrent import Tagger
from torch import nn


class Model(nn.Module):
    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.tagger = Tagger(width, bidirectional=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores, _ = self.tagger(tokens)
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}


def inputs(batch: int = 2, length: int = 9) -> dict[str, torch.Tensor]:
    return {
        "tokens": torch.randint(0, 50, (batch, length)),
        "labels": torch.randint(0, 5, (batch, length)),
    }
