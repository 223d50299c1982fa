"""Convolutions and pooling as data, and how few multiplications may do one: see `_layers.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import ClassVar

from benchbench.workloads._layers import Passes, Weight, bias_of

Size = int | tuple[int, ...]  # along each axis; one number: along both of an image
Axis = tuple[int, int, int, int]  # size of the image, kernel, stride, zeros on either edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Cross-correlation, zeros added on every edge."""

    name: str
    inputs: int
    outputs: int
    kernel: Size
    size: Size  # of the input: height and width of an image, also frames of a video
    stride: Size = 1
    edge: Size | None = (
        None  # zeros on each; None: half the kernel, which keeps the size where the stride is 1
    )
    bias: bool = False
    gain: float = 1.0  # of the weight, over He's
    beside: bool = False  # on a branch shorter than the one it is added to

    @property
    def sizes(self) -> tuple[int, ...]:
        """The input's sizes along each axis."""
        return along(self.size)

    @property
    def kernels(self) -> tuple[int, ...]:
        """The kernel's sizes along each axis."""
        return along(self.kernel, len(self.sizes))

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides along each axis."""
        return along(self.stride, len(self.sizes))

    @property
    def padding(self) -> tuple[int, ...]:
        """Zeros on both edges of each axis."""
        if self.edge is None:
            return tuple(kernel // 2 for kernel in self.kernels)
        return along(self.edge, len(self.sizes))

    @property
    def keeps_size(self) -> bool:
        """Whether the output has the size of the input, by as many zeros on either edge."""
        return self.output_sizes == self.sizes and set(self.strides) == {1}

    @property
    def output_sizes(self) -> tuple[int, ...]:
        """The output's sizes along each axis (Dumoulin & Visin 2016, relationship 6)."""
        axes = zip(self.sizes, self.kernels, self.strides, self.padding, strict=True)
        return tuple((size + 2 * edge - kernel) // stride + 1 for size, kernel, stride, edge in axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape: output channels, input channels, the kernel."""
        return self.outputs, self.inputs, *self.kernels

    @property
    def products(self) -> int:
        return self.inputs * prod(self.kernels)

    @property
    def roundings(self) -> int:
        return 1 + self.bias

    def weights(self) -> dict[str, Weight]:
        """The kernel is N(0, gain² · 2 / (outputs · kernel)): He et al. 2015, fan-out."""
        scale = self.gain * sqrt(2 / (self.outputs * prod(self.kernels)))
        return _weights(self.name, self.shape, scale, self.outputs if self.bias else 0)

    def pixels(self) -> tuple[int, int]:
        """Pixels of one sample, all channels: read, written."""
        return self.inputs * prod(self.sizes), self.outputs * prod(self.output_sizes)

    def flops(self, batch: int) -> int:
        """FLOPs of the forward pass, padding counted as work."""
        return 2 * batch * self.products * self.outputs * prod(self.output_sizes)

    def elements(self, batch: int) -> int:
        return batch * sum(self.pixels()) + prod(self.shape)

    @property
    def saved(self) -> float:
        """How many times fewer multiplications an algorithm may do."""
        return saved_by_algorithms(zip(self.sizes, self.kernels, self.strides, self.padding, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvTranspose:
    """Each pixel of a square image times the kernel, added up a stride apart: a convolution's gradient."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    size: int  # of the input, in pixels
    stride: int = 1
    edge: int = 0  # pixels cut off each edge of the result
    bias: bool = False
    gain: float = 1.0  # of the weight, over He's
    beside: ClassVar[bool] = False

    @property
    def output_size(self) -> int:
        """The output's side in pixels (Dumoulin & Visin 2016, relationship 14)."""
        return (self.size - 1) * self.stride - 2 * self.edge + self.kernel

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape: input channels, output channels, height, width."""
        return self.inputs, self.outputs, self.kernel, self.kernel

    @property
    def products(self) -> int:
        return self.inputs * ceil(self.kernel / self.stride) ** 2

    @property
    def roundings(self) -> int:
        return 1 + self.bias

    def weights(self) -> dict[str, Weight]:
        """The kernel is N(0, gain² · 2 / products): He et al. 2015, fan-in."""
        scale = self.gain * sqrt(2 / self.products)
        return _weights(self.name, self.shape, scale, self.outputs if self.bias else 0)

    def flops(self, batch: int) -> int:
        """Each input pixel meets the whole kernel."""
        return 2 * batch * self.size**2 * prod(self.shape)

    def elements(self, batch: int) -> int:
        moved = self.inputs * self.size**2 + self.outputs * self.output_size**2
        return batch * moved + prod(self.shape)

    @property
    def saved(self) -> float:
        """The multiplications saved, as many as of the convolution whose gradient this is."""
        return saved_by_algorithms([(self.output_size, self.kernel, self.stride, self.edge)] * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool:
    """The largest of each window of an image; windows do not overlap, and what fills none is cut off."""

    window: int = 2
    beside: ClassVar[bool] = False
    products: ClassVar[int] = 0
    roundings: ClassVar[int] = 0  # a selection

    def weights(self) -> dict[str, Weight]:
        return {}

    def flops(self, batch: int) -> int:
        return 0

    def elements(self, batch: int) -> int:
        """Nothing is counted: fused with what it follows at best."""
        return 0


def saved_in(passes: Passes) -> float:
    """How many times fewer multiplications than are counted algorithms may do; 1 where none are counted."""
    counted = fewest = 0.0
    for times, layer in passes:
        flops = times * layer.flops(1)
        counted += flops
        fewest += flops / (layer.saved if isinstance(layer, Conv | ConvTranspose) else 1.0)
    return counted / fewest if fewest else 1.0


def along(size: Size, axes: int = 2) -> tuple[int, ...]:
    """The number for each axis: itself if there is one per axis, else repeated."""
    return (size,) * axes if isinstance(size, int) else size


def _weights(name: str, shape: tuple[int, ...], scale: float, biases: int) -> dict[str, Weight]:
    """A kernel, whose two axes of channels come last and exchanged in TensorFlow and JAX, and biases."""
    axes = (*range(2, len(shape)), 1, 0)
    kernel = Weight(shape=shape, scale=scale, axes=axes)
    return {f"{name}.weight": kernel, **bias_of(name, biases, biases > 0)}


def saved_by_algorithms(axes: Iterable[Axis]) -> float:
    """Products of the convolution of a channel over the fewest multiplications: 1 where each is needed.

    A limit, whatever the algorithm. A bilinear algorithm takes one for each input that it reads, and for each
    output: Winograd 1980, "Arithmetic complexity of computations"; Lavin & Gray 2016, "Fast algorithms for
    CNNs", section 4. F(m, r), m outputs of a filter of r taps, reads m + r − 1 inputs, and Winograd's
    algorithm takes no more. In several dimensions the numbers of each are multiplied. FFTs are algorithms of
    this kind.
    """
    saved = 1.0
    for axis in axes:
        size, kernel, stride, edge = axis
        outputs = (size + 2 * edge - kernel) // stride + 1
        saved *= outputs * kernel / max(_met(axis, outputs))
    return saved


def _met(axis: Axis, outputs: int) -> Sequence[int]:
    """Inputs that reach an output, and outputs that an input reaches: padding is neither."""
    size, kernel, stride, edge = axis
    pairs = [(at, at * stride + tap - edge) for at in range(outputs) for tap in range(kernel)]
    inside = [(at, place) for at, place in pairs if 0 <= place < size]
    return 1, len({at for at, _ in inside}), len({place for _, place in inside})
