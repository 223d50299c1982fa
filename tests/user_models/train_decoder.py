"""Training of the decoder of `decoder.py` to predict the next of its own tokens."""

import torch
from decoder import Model, inputs


def loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


__all__ = ["Model", "inputs"]
