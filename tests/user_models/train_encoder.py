"""Training of the encoder of `bert_tiny.py` with its own optimizer and loss."""

import torch
from bert_tiny import Bert, inputs

model = Bert


def targets(batch: int = 4, length: int = 16) -> dict[str, torch.Tensor]:
    return {"wanted": torch.randn(batch, length, 32), "side": torch.randint(0, 2, (batch,))}


def loss(output: dict[str, torch.Tensor], wanted: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
    distance = (output["hidden"] - wanted).pow(2).mean()
    return distance + torch.nn.functional.cross_entropy(output["pooled"], side)


def optimizer(model: torch.nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    norms = [p for name, p in model.named_parameters() if p.dim() < 2]
    weights = [p for name, p in model.named_parameters() if p.dim() >= 2]
    return torch.optim.AdamW([{"params": weights, "weight_decay": 0.1}, {"params": norms}], lr=lr)


__all__ = ["inputs"]
