"""A small encoder, written without knowledge of benchmarks."""

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape

        def divided(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = divided(self.query(x)), divided(self.key(x)), divided(self.value(x))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm1 = SelfAttention(width, 2), nn.LayerNorm(width, eps=1e-5)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Bert(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, width), nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.drop(self.words(tokens) + self.places(places)))
        return {"hidden": x, "pooled": torch.tanh(self.pool(x[:, 0]))}


model = Bert


def inputs(batch: int = 4, length: int = 16) -> dict[str, torch.Tensor]:
    return {"tokens": torch.randint(0, 100, (batch, length))}
