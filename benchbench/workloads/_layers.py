"""Convolutions and dense layers as data: shapes, weights and counted work. Knows no framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Draw

SGD_MOVES = 5  # of every parameter: read gradient, velocity, parameter; write velocity, parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """A square kernel over a square image, padded by half the kernel."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    side: int  # of the output, in pixels
    stride: int = 1

    @property
    def padding(self) -> int:
        """Zeros on every edge."""
        return self.kernel // 2

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight: output channels, input channels, height, width."""
        return self.outputs, self.inputs, self.kernel, self.kernel

    @property
    def products(self) -> int:
        """Summed into one output element."""
        return self.inputs * self.kernel**2

    def pixels(self) -> tuple[int, int]:
        """Of one image, all channels: read, written."""
        return self.inputs * (self.side * self.stride) ** 2, self.outputs * self.side**2

    def draw(self, draw: Draw, gain: float = 1.0) -> NDArray[np.float32]:
        """The weight, N(0, gain² · 2 / (outputs · kernel²)): He et al. 2015, fan-out."""
        scale = gain * sqrt(2 / (self.outputs * self.kernel**2))
        return draw.normal(f"{self.name}.weight", *self.shape, scale=scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A matrix and a bias."""

    name: str
    inputs: int
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight: outputs, inputs."""
        return self.outputs, self.inputs

    @property
    def products(self) -> int:
        """Summed into one output element."""
        return self.inputs

    def pixels(self) -> tuple[int, int]:
        """Of one image: read, written."""
        return self.inputs, self.outputs

    def draw(self, draw: Draw) -> NDArray[np.float32]:
        """The weight, N(0, 1 / inputs)."""
        return draw.normal(f"{self.name}.weight", *self.shape, scale=1 / sqrt(self.inputs))


Layer = Conv | Dense


def bias(draw: Draw, layer: Layer) -> NDArray[np.float32]:
    """One small number per output."""
    return draw.normal(f"{layer.name}.bias", layer.outputs, scale=0.01)


def forward_cost(layers: Sequence[Layer], batch: int, dtype: Dtype) -> Cost:
    """Of `layers` alone: each one's operand, weight and result move once."""
    return Cost(
        flops=batch * sum(map(_flops, layers)),
        bytes=dtype.itemsize * sum(_elements(layer, batch) for layer in layers),
        items=batch,
        item="image",
    )


def training_cost(layers: Sequence[Layer], batch: int, parameters: int, dtype: Dtype) -> Cost:
    """Three passes over `layers`: forward, gradient of the input, gradient of the weight.

    Each has the FLOPs, and moves the bytes, of the forward pass. The first layer needs no gradient of
    its input. SGD with momentum moves every parameter `SGD_MOVES` times.
    """
    first = layers[0]
    elements = 3 * sum(_elements(layer, batch) for layer in layers) - _elements(first, batch)
    return Cost(
        flops=batch * (3 * sum(map(_flops, layers)) - _flops(first)),
        bytes=dtype.itemsize * elements + dtype.storage.itemsize * SGD_MOVES * parameters,
        items=batch,
        item="image",
    )


def _flops(layer: Layer) -> int:
    _, written = layer.pixels()
    return 2 * layer.products * written


def _elements(layer: Layer, batch: int) -> int:
    return batch * sum(layer.pixels()) + prod(layer.shape)
