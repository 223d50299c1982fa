"""Layers as data: their weights, and their counted work. Knows no framework.

Weights have PyTorch's names and layouts; a layer knows the layout of its own in TensorFlow and JAX. Work is
counted of what multiplies: normalisation, activations and look-ups count no FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import ClassVar, Protocol

from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads._weights import Weight, bias_of

EPSILON = 1e-5  # of normalisations: PyTorch's default
DECAY = 0.9  # of running statistics; PyTorch's momentum is what is left, its default 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A matrix, and a bias."""

    name: str
    inputs: int
    outputs: int
    rows: int = 1  # of one sample: positions of a sequence
    bias: bool = True
    image: tuple[int, int, int] | None = None  # C, H, W, where the input is a flattened image
    beside: bool = False  # on a branch no longer than the one it is added to

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
        """The matrix is N(0, 1 / inputs); after a flattened image its inputs are ordered as NHWC has them."""
        parts, axes = ((self.outputs, *self.image), (2, 3, 1, 0)) if self.image else ((), (1, 0))
        matrix = Weight(shape=self.shape, scale=1 / sqrt(self.inputs), axes=axes, parts=parts)
        return {f"{self.name}.weight": matrix, **bias_of(self.name, self.outputs, self.bias)}

    def flops(self, batch: int) -> int:
        return 2 * batch * self.rows * self.inputs * self.outputs

    def elements(self, batch: int) -> int:
        return batch * self.rows * (self.inputs + self.outputs) + prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Batch normalisation, which carries running statistics, or layer normalisation, which has none."""

    name: str
    channels: int
    scale: tuple[float, float] = (1.0, 0.1)  # mean and spread
    shift: tuple[float, float] | None = (0.0, 0.1)  # None: it has none
    variance: float | None = None  # of what is normalised, so about which the running variance lies
    beside: bool = False
    products: ClassVar[int] = 0
    roundings: ClassVar[int] = 1

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

    def flops(self, batch: int) -> int:
        return 0

    def elements(self, batch: int) -> int:
        """Nothing is counted: fused with what it follows at best."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of a table, looked up."""

    name: str
    count: int
    width: int
    rows: int  # looked up for one sample
    scale: float = 1.0
    beside: ClassVar[bool] = False
    products: ClassVar[int] = 0
    roundings: ClassVar[int] = 0

    def weights(self) -> dict[str, Weight]:
        """The table, N(0, scale²)."""
        return {f"{self.name}.weight": Weight(shape=(self.count, self.width), scale=self.scale)}

    def flops(self, batch: int) -> int:
        return 0

    def elements(self, batch: int) -> int:
        return 2 * batch * self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttention:
    """Scaled dot-product attention of a sequence with itself: its products only; it has no weights."""

    length: int
    width: int  # of all heads together
    heads: int
    causal: bool
    beside: ClassVar[bool] = False
    roundings: ClassVar[int] = 3  # scores, their softmax, result

    @property
    def products(self) -> int:
        return self.width // self.heads + self.length

    def weights(self) -> dict[str, Weight]:
        return {}

    def flops(self, batch: int) -> int:
        """QKᵀ and PV, of the pairs that a causal mask leaves."""
        pairs = self.length * (self.length + 1) // 2 if self.causal else self.length**2
        return 4 * batch * pairs * self.width

    def elements(self, batch: int) -> int:
        return 4 * batch * self.length * self.width


class Layer(Protocol):
    """What holds weights or multiplies."""

    @property
    def beside(self) -> bool:
        """Whether it is on a branch shorter than the one it is added to."""

    @property
    def products(self) -> int:
        """Products summed into one output element."""

    @property
    def roundings(self) -> int:
        """Times a value is rounded to the case's dtype in it."""

    def weights(self) -> dict[str, Weight]:
        """Weights by PyTorch's names."""

    def flops(self, batch: int) -> int:
        """FLOPs of the forward pass."""

    def elements(self, batch: int) -> int:
        """Elements moved in the forward pass: operand, weight and result, each once."""


Passes = Sequence[tuple[int, Layer]]  # how many times the work of a layer's forward pass is done


def weights_of(layers: Sequence[Layer]) -> dict[str, Weight]:
    """Weights by PyTorch's names."""
    return {name: weight for layer in layers for name, weight in layer.weights().items()}


def parameters_in(layers: Sequence[Layer]) -> int:
    """How many parameters are learnt."""
    return sum(prod(weight.shape) for weight in weights_of(layers).values() if weight.is_learnt)


def counted_cost(passes: Passes, batch: int, dtype: Dtype) -> Cost:
    """Each pass over a layer has its FLOPs, and moves its operand, weight and result once."""
    return Cost(
        flops=sum(times * layer.flops(batch) for times, layer in passes),
        bytes=dtype.itemsize * sum(times * layer.elements(batch) for times, layer in passes),
        items=batch,
        item="image",
    )


def training_passes(layers: Sequence[Layer], first: Sequence[Layer]) -> Passes:
    """Three passes over `layers`: forward, gradient of the input, gradient of the weight.

    The `first` layers, which take the network's inputs, need no gradient of theirs.
    """
    return [*((3, layer) for layer in layers), *((-1, layer) for layer in first)]
