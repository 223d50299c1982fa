"""Convolutions and pooling as data, and the fewest multiplications of a convolution; see `_layers.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import ClassVar

from benchbench.workloads._layers import Passes, Weight, bias_of

Size = int | tuple[int, ...]  # along each axis; one number applies to all axes
Axis = tuple[int, int, int, int]  # size of the image, kernel, stride, zeros on each edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv:
    """Cross-correlation with zeros added on every edge."""

    name: str
    inputs: int
    outputs: int
    kernel: Size
    size: Size  # of the input: height and width of an image, also frames of a video
    stride: Size = 1
    edge: Size | None = None  # zeros on each edge; None: half the kernel, which keeps the size with stride 1
    bias: bool = False
    gain: float = 1.0  # of the weight, relative to He's initialisation
    is_short_branch: bool = False  # on a branch shorter than the one it is added to

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
        """True if the output has the size of the input, with equal padding on both edges."""
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
        """Pixels of one sample in all channels, as (read, written)."""
        return self.inputs * prod(self.sizes), self.outputs * prod(self.output_sizes)

    def flops(self, batch: int) -> int:
        """FLOPs of the forward pass; padding counts as work."""
        return 2 * batch * self.products * self.outputs * prod(self.output_sizes)

    def elements(self, batch: int) -> int:
        return batch * sum(self.pixels()) + prod(self.shape)

    @property
    def saved(self) -> float:
        """Factor by which an algorithm may reduce the multiplications."""
        return saved_by_algorithms(zip(self.sizes, self.kernels, self.strides, self.padding, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvTranspose:
    """The gradient of a convolution: each pixel of a square image times the kernel, added a stride apart."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    size: int  # of the input, in pixels
    stride: int = 1
    edge: int = 0  # pixels cut off each edge of the result
    bias: bool = False
    gain: float = 1.0  # of the weight, relative to He's initialisation
    is_short_branch: ClassVar[bool] = False

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
        """Each input pixel is multiplied with the whole kernel."""
        return 2 * batch * self.size**2 * prod(self.shape)

    def elements(self, batch: int) -> int:
        pixels = self.inputs * self.size**2 + self.outputs * self.output_size**2
        return batch * pixels + prod(self.shape)

    @property
    def saved(self) -> float:
        """Multiplications saved, as many as for the convolution whose gradient this is."""
        return saved_by_algorithms([(self.output_size, self.kernel, self.stride, self.edge)] * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxPool:
    """Maximum of each window of an image. Windows do not overlap, and incomplete ones are dropped."""

    window: int = 2
    is_short_branch: ClassVar[bool] = False
    products: ClassVar[int] = 0
    roundings: ClassVar[int] = 0  # values are only selected

    def weights(self) -> dict[str, Weight]:
        return {}

    def flops(self, batch: int) -> int:
        return 0

    def elements(self, batch: int) -> int:
        """Nothing is counted, since it can be fused with the previous layer."""
        return 0


def saved_in(passes: Passes) -> float:
    """Counted multiplications divided by the fewest that algorithms need; 1 if none are counted."""
    counted_flops = fewest_flops = 0.0
    for times, layer in passes:
        flops = times * layer.flops(1)
        counted_flops += flops
        fewest_flops += flops / (layer.saved if isinstance(layer, Conv | ConvTranspose) else 1.0)
    return counted_flops / fewest_flops if fewest_flops else 1.0


def along(size: Size, axes: int = 2) -> tuple[int, ...]:
    """The size along each axis; a single number is repeated."""
    return (size,) * axes if isinstance(size, int) else size


def _weights(name: str, shape: tuple[int, ...], scale: float, biases: int) -> dict[str, Weight]:
    """A kernel and biases. In TensorFlow and JAX the two channel axes come last, and are exchanged."""
    axes = (*range(2, len(shape)), 1, 0)
    kernel = Weight(shape=shape, scale=scale, axes=axes)
    return {f"{name}.weight": kernel, **bias_of(name, biases, biases > 0)}


def saved_by_algorithms(axes: Iterable[Axis]) -> float:
    """Products of a convolution of one channel, divided by the fewest multiplications of any algorithm.

    A bilinear algorithm needs one multiplication for each input that it reads, and one for each output:
    Winograd 1980, "Arithmetic complexity of computations"; Lavin & Gray 2016, "Fast algorithms for CNNs",
    section 4. F(m, r), m outputs of a filter of r taps, reads m + r − 1 inputs, and Winograd's algorithm
    needs no more. In several dimensions, the numbers of each are multiplied. FFTs are algorithms of this
    kind.
    """
    saved = 1.0
    for axis in axes:
        size, kernel, stride, edge = axis
        outputs = (size + 2 * edge - kernel) // stride + 1
        saved *= outputs * kernel / max(_reached(axis, outputs))
    return saved


def _reached(axis: Axis, outputs: int) -> Sequence[int]:
    """Return 1, the number of outputs that read an input, and the number of inputs that are read.

    Padding is not counted.
    """
    size, kernel, stride, edge = axis
    pairs = [(at, at * stride + tap - edge) for at in range(outputs) for tap in range(kernel)]
    pairs_inside = [(at, place) for at, place in pairs if 0 <= place < size]
    return 1, len({at for at, _ in pairs_inside}), len({place for _, place in pairs_inside})
