"""A small network of inverted residuals with squeeze-and-excite, as mobile ones have, uncalibrated."""

import torch
from torch import nn


class Excite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.relu(self.down(nn.functional.adaptive_avg_pool2d(x, 1)))
        return x * nn.functional.hardsigmoid(self.up(scale))


class Inverted(nn.Module):
    def __init__(self, width: int, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.is_residual = stride == 1 and width == out
        self.layers = nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            Excite(wide),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


class Model(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()
        )
        sizes = ((width, 16, width, 1), (width, 24, 12, 2), (12, 32, 12, 1), (12, 32, 16, 2))
        self.blocks = nn.Sequential(*(Inverted(*size) for size in sizes))
        self.head = nn.Sequential(nn.Linear(16, 32), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(32, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


def inputs(batch: int = 2, size: int = 32) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)
