"""A small causal decoder with RMSNorm, rotary positions and gated layers, and a tied output layer."""

import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in ((width, 48), (width, 48), (48, width))
        )
        self.norm1, self.norm2 = Norm(width), Norm(width)
        turns = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        self.register_buffer("turns", turns, persistent=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[2], device=x.device).float(), self.turns.float())
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :4], x[..., 4:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, -1, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(64, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.norm = Norm(width)
        self.head = nn.Linear(width, 64, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def inputs(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(0, 64, (batch, length))
