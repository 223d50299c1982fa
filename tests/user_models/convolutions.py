"""A small network of convolutions with batch norms, and its inputs as a tuple."""

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, 2 * width, 1, bias=False)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(n) for n in (2 * width, 2 * width, width))
        self.apart = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width, bias=False)
        self.narrow = nn.Conv2d(2 * width, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.norm1(self.wide(x)))
        y = nn.functional.hardswish(self.norm2(self.apart(y)))
        return x + self.norm3(self.narrow(y))


class Model(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, stride=2, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(4)))
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(torch.relu(self.norm(self.stem(images))))
        return self.head(x.mean((2, 3)))


def inputs(batch: int = 2, size: int = 33) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, size, size),)
