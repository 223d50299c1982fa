"""Layers as data: weights and counted work, independent of frameworks.

Weights have PyTorch's names and layouts, and know their layouts in TensorFlow and JAX. Only products count as
work: normalisation, activations and look-ups have no FLOPs. `_forward.py` has operators to compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Draw


Size = int | tuple[int, ...]  # along each axis; one number applies to all axes
Axis = tuple[int, int, int, int]  # size of the image, kernel, stride, zeros on each edge
EPSILON = 1e-5  # of normalisations; PyTorch's default
DECAY = 0.9  # of running statistics; 1 − PyTorch's default momentum of 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Distribution of a weight, N(mean, scale²), and its memory layout."""

    shape: tuple[int, ...]  # PyTorch's
    scale: float
    mean: float = 0.0
    is_learnt: bool = True  # False for running statistics, which the optimizer does not change
    is_positive: bool = False  # use absolute values
    # Part of the gradient is 0, as for the bias of attention's keys, to which softmax is invariant. Adam
    # enlarges its rounding errors to the size of the other updates.
    is_partly_idle: bool = False
    axes: tuple[int, ...] = ()  # order of PyTorch's axes in TensorFlow and JAX; () if it is the same
    parts: tuple[int, ...] = ()  # shape that `axes` refer to, if an axis of `shape` is split into several

    def draw(self, draw: Draw, name: str) -> NDArray[np.float32]:
        """Draw the weight in PyTorch's layout."""
        import numpy as np

        array = draw.normal(name, *self.shape, scale=self.scale, mean=self.mean)
        return np.abs(array) if self.is_positive else array

    def channels_last(self, array: AnyArray) -> AnyArray:
        """The weight in the layout of TensorFlow and JAX: input channels before output channels."""
        if not self.axes:
            return array
        transposed = array.reshape(self.parts or self.shape).transpose(self.axes)
        return transposed.reshape(-1, transposed.shape[-1]) if self.parts else transposed

    def as_in_torch(self, tensor: Any, reshape: Callable[..., Any], transpose: Callable[..., Any]) -> Any:
        """The inverse of `channels_last`, for a framework's tensor and with its functions."""
        if not self.axes:
            return tensor
        parts = self.parts or self.shape
        unflattened = reshape(tensor, tuple(parts[axis] for axis in self.axes))
        return reshape(transpose(unflattened, tuple(map(self.axes.index, range(len(parts))))), self.shape)


def bias_of(name: str, count: int, has_bias: bool) -> dict[str, Weight]:
    """A bias with one small number per output, or nothing."""
    return {f"{name}.bias": Weight(shape=(count,), scale=0.01)} if has_bias else {}


class Layer:
    """A part of a network that has weights or products; by default it has neither.

    Its elements are not counted either if it can be fused with the layer before it.
    """

    __slots__ = ()

    @property
    def is_short_branch(self) -> bool:
        """True if the layer is on a branch shorter than the one it is added to."""
        return False

    @property
    def products(self) -> int:
        """Number of products summed into one output element."""
        return 0

    @property
    def roundings(self) -> int:
        """Number of times that a value is rounded to the case's dtype."""
        return 0

    @property
    def saved(self) -> float:
        """Factor by which an algorithm may reduce the multiplications."""
        return 1.0

    def weights(self) -> dict[str, Weight]:
        """Weights by PyTorch's names."""
        return {}

    def flops(self, batch: int) -> int:
        """FLOPs of the forward pass."""
        return 0

    def elements(self, batch: int) -> int:
        """Elements moved in the forward pass: operand, weight and result, each once."""
        return 0


Passes = Sequence[tuple[int, Layer]]  # (number of passes, layer); each pass costs as much as the forward pass


def weights_of(layers: Sequence[Layer]) -> dict[str, Weight]:
    """Weights by PyTorch's names."""
    return {name: weight for layer in layers for name, weight in layer.weights().items()}


def parameters_in(layers: Sequence[Layer]) -> int:
    """Number of learnt parameters."""
    return sum(prod(weight.shape) for weight in weights_of(layers).values() if weight.is_learnt)


def counted_cost(passes: Passes, batch: int, dtype: Dtype) -> Cost:
    """Cost of the passes: each has the layer's FLOPs, and moves operand, weight and result once."""
    return Cost(
        flops=sum(times * layer.flops(batch) for times, layer in passes),
        bytes=dtype.itemsize * sum(times * layer.elements(batch) for times, layer in passes),
        items=batch,
        item="image",
    )


def training_passes(layers: Sequence[Layer], first: Sequence[Layer]) -> Passes:
    """Three passes over `layers`: forward, gradient of the input, and gradient of the weight.

    The `first` layers, which take the network's inputs, need no gradient of their inputs.
    """
    return [*((3, layer) for layer in layers), *((-1, layer) for layer in first)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Layer):
    """A product with a matrix, and a bias."""

    name: str
    inputs: int
    outputs: int
    rows: int = 1  # rows per sample: positions of a sequence
    bias: bool = True
    image: tuple[int, int, int] | None = None  # C, H, W if the input is a flattened image
    is_short_branch: bool = False  # on a branch no longer than the one it is added to

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape: outputs, inputs."""
        return self.outputs, self.inputs

    @property
    def products(self) -> int:
        return self.inputs

    @property
    def roundings(self) -> int:
        return 1 + self.bias

    def weights(self) -> dict[str, Weight]:
        """The matrix is N(0, 1 / inputs). After a flattened image, its inputs are ordered as in NHWC."""
        parts, axes = ((self.outputs, *self.image), (2, 3, 1, 0)) if self.image else ((), (1, 0))
        matrix = Weight(shape=self.shape, scale=1 / sqrt(self.inputs), axes=axes, parts=parts)
        return {f"{self.name}.weight": matrix, **bias_of(self.name, self.outputs, self.bias)}

    def flops(self, batch: int) -> int:
        return 2 * batch * self.rows * self.inputs * self.outputs

    def elements(self, batch: int) -> int:
        return batch * self.rows * (self.inputs + self.outputs) + prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Layer):
    """Batch normalisation with running statistics, or layer normalisation without."""

    name: str
    channels: int
    scale: tuple[float, float] = (1.0, 0.1)  # mean and spread
    shift: tuple[float, float] | None = (0.0, 0.1)  # mean and spread; None: no shift
    variance: float | None = (
        None  # of the normalised values, and mean of the running variance; None: layer norm
    )
    is_short_branch: bool = False
    roundings = 1

    def weights(self) -> dict[str, Weight]:
        shape, name = (self.channels,), self.name
        learnt = {f"{name}.weight": Weight(shape=shape, mean=self.scale[0], scale=self.scale[1])}
        if self.shift:
            learnt[f"{name}.bias"] = Weight(shape=shape, mean=self.shift[0], scale=self.shift[1])
        if self.variance is None:
            return learnt
        mean = Weight(shape=shape, scale=0.1, is_learnt=False)
        spread = 0.1 * self.variance  # ten standard deviations from 0
        variance = Weight(shape=shape, mean=self.variance, scale=spread, is_learnt=False, is_positive=True)
        return learnt | {f"{name}.running_mean": mean, f"{name}.running_var": variance}


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Layer):
    """Rows of a table, looked up."""

    name: str
    count: int
    width: int
    rows: int  # looked up per sample
    scale: float = 1.0

    def weights(self) -> dict[str, Weight]:
        """The table, N(0, scale²)."""
        return {f"{self.name}.weight": Weight(shape=(self.count, self.width), scale=self.scale)}

    def elements(self, batch: int) -> int:
        return 2 * batch * self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalAttention(Layer):
    """Attention of the last `rows` of `length` positions to all earlier ones: two products, no weights."""

    rows: int
    length: int
    width: int  # of all heads together
    heads: int
    kv_heads: int
    roundings = 3  # scores, their softmax, result

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    @property
    def lengths(self) -> tuple[int, int]:
        """Numbers of queries and of keys."""
        return self.rows, self.length

    @property
    def products(self) -> int:
        return self.head + self.length

    def flops(self, batch: int) -> int:
        """QKᵀ and PV, 2 · width FLOPs each per pair that the mask keeps."""
        pairs = self.rows * (2 * self.length - self.rows + 1) // 2
        return 4 * batch * pairs * self.width

    def elements(self, batch: int) -> int:
        shared = self.width * self.kv_heads // self.heads
        return 2 * batch * (self.rows * self.width + self.length * shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm(Layer):
    """Root mean square normalisation with a scale (Zhang & Sennrich 2019)."""

    name: str
    channels: int
    roundings = 1

    def weights(self) -> dict[str, Weight]:
        return {f"{self.name}.weight": Weight(shape=(self.channels,), mean=1.0, scale=0.1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedLogits(Layer):
    """Product with the embedding's table of tokens (Press & Wolf 2017)."""

    width: int
    vocabulary: int
    rows: int
    roundings = 1

    @property
    def products(self) -> int:
        return self.width

    def flops(self, batch: int) -> int:
        return 2 * batch * self.rows * self.width * self.vocabulary

    def elements(self, batch: int) -> int:
        return batch * self.rows * (self.width + self.vocabulary) + self.width * self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary(Layer):
    """Tables of rotary positions: pairs from a head's halves are rotated by the position (Su et al. 2021)."""

    name: str
    length: int
    dim: int  # of a head
    base: float
    roundings = 1

    def weights(self) -> dict[str, Weight]:
        """Cosines and sines, (length, dim) each, computed once in float64, as users of PyTorch do."""
        shape = self.length, self.dim
        return {
            f"{self.name}_{part}": RotaryTable(
                shape=shape, scale=0.0, is_learnt=False, base=self.base, part=part
            )
            for part in ("cos", "sin")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryTable(Weight):
    """cos or sin of position · base^(−2i / dim) for pairs i of a head, repeated for their other halves."""

    base: float
    part: str

    def draw(self, draw: Draw, name: str) -> NDArray[np.float32]:
        """Compute the table in float64; with float32, angles would err by position · 2⁻²⁴."""
        import numpy as np

        length, dim = self.shape
        angles = np.outer(np.arange(length), self.base ** (-np.arange(0, dim, 2) / dim))
        return draw.rounded(getattr(np, self.part)(np.concatenate([angles, angles], axis=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiHeadAttention(Layer):
    """nn.MultiheadAttention: projections of queries, keys and values, attention, output projection."""

    name: str
    width: int
    heads: int
    length: int  # of the queries
    memory: int  # length of the keys and values
    causal: bool = False
    roundings = 7  # two products with their biases, scores, softmax, result

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    @property
    def lengths(self) -> tuple[int, int]:
        """Numbers of queries and of keys."""
        return self.length, self.memory

    @property
    def products(self) -> int:
        """Products summed into a query, a score, a result and an output."""
        return 2 * self.width + self.head + self.memory

    def weights(self) -> dict[str, Weight]:
        """Three matrices in one weight, and that of the output: N(0, 1 / width), with small biases."""
        width, scale = self.width, 1 / sqrt(self.width)
        return {
            f"{self.name}.in_proj_weight": Weight(shape=(3 * width, width), scale=scale, axes=(1, 0)),
            f"{self.name}.in_proj_bias": Weight(shape=(3 * width,), scale=0.01, is_partly_idle=True),
            f"{self.name}.out_proj.weight": Weight(shape=(width, width), scale=scale, axes=(1, 0)),
            f"{self.name}.out_proj.bias": Weight(shape=(width,), scale=0.01),
        }

    def flops(self, batch: int) -> int:
        """Projections of queries, result, keys and values; QKᵀ and PV of the pairs that the mask keeps."""
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.length * self.memory
        projections = 2 * (2 * self.length + 2 * self.memory) * self.width**2
        return batch * (projections + 4 * pairs * self.width)

    def elements(self, batch: int) -> int:
        """Operand and result of both projections and of attention, and the weights, each once."""
        rows_moved = 6 * self.length + 5 * self.memory  # of two Dense layers and the attention between them
        if self.memory == self.length:
            rows_moved -= self.memory  # one operand for queries, keys and values
        return batch * rows_moved * self.width + sum(prod(weight.shape) for weight in self.weights().values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedDense(Dense):
    """Product with the embedding table of another layer, and a bias."""

    def weights(self) -> dict[str, Weight]:
        return bias_of(self.name, self.outputs, self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Layer):
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
        return saved_by_algorithms(zip(self.sizes, self.kernels, self.strides, self.padding, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvTranspose(Layer):
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
class MaxPool(Layer):
    """Maximum of each window of an image. Windows do not overlap, and incomplete ones are dropped."""

    window: int = 2


def saved_in(passes: Passes) -> float:
    """Counted multiplications divided by the fewest that algorithms need; 1 if none are counted."""
    counted_flops = fewest_flops = 0.0
    for times, layer in passes:
        flops = times * layer.flops(1)
        counted_flops += flops
        fewest_flops += flops / layer.saved
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
