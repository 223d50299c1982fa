"""Rows and images normalised: softmax, layer, RMS and batch normalisation, with their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.workloads._layers import EPSILON
from benchbench.workloads._memory_bound import MemoryBound, MemoryBoundBackward, Rowwise
from benchbench.workloads._programs import jax_layers

if TYPE_CHECKING:
    from benchbench.model.case import Dtype
    from benchbench.workloads.base import StepFunction

RUNNING = "running_mean", "running_var"
# Framework → module with the functions that its networks use, too.
LAYERS = {name: f"benchbench.workloads._programs.{name}_layers" for name in ("tensorflow", "jax")}


@dataclass(frozen=True)
class Softmax(Rowwise):
    """eˣ over its sum, the largest of a row subtracted first, as in attention and classifiers."""

    summary = "softmax of every row"
    functions: ClassVar = {
        "torch": "torch.nn.functional:softmax",
        "tensorflow": "tensorflow:nn.softmax",
        "jax": "jax:nn.softmax",
    }
    options: ClassVar = {"torch": {"dim": -1}}

    @property
    def roundings(self) -> int:
        """Unfused: the distance from the largest, whose error is multiplied; the exponential; the result."""
        return 4

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.softmax(arrays["x"])


@dataclass(frozen=True)
class SoftmaxBackward(MemoryBoundBackward, Softmax):
    """y · (upstream − Σ y · upstream) of every row."""

    summary = "gradient of softmax"


@dataclass(frozen=True)
class LayerNorm(Rowwise):
    """Rows are brought to mean 0 and variance 1, then scaled and shifted by column (Ba et al. 2016)."""

    summary = "layer normalisation of every row"
    functions: ClassVar = {name: f"{module}:layer_norm" for name, module in LAYERS.items()}
    # Rows are off centre, and small enough that epsilon shows.
    drawn: ClassVar = {"x": (0.05, 0.1), "weight": (1.0, 0.1), "bias": (0.0, 0.1)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A matrix, and two numbers for each of its columns."""
        return {**super().shapes(), "weight": (self.width,), "bias": (self.width,)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.layer_norm(arrays["x"], arrays["weight"], arrays["bias"], EPSILON)

    def torch(self) -> StepFunction:
        import torch.nn.functional as F

        return lambda x, weight, bias: F.layer_norm(x, (self.width,), weight, bias, EPSILON)


@dataclass(frozen=True)
class LayerNormBackward(MemoryBoundBackward, LayerNorm):
    """Gradients of the rows, and of scale and shift, to which all rows contribute."""

    summary = "gradients of layer normalisation"
    batched = ()


@dataclass(frozen=True)
class RmsNorm(Rowwise):
    """Rows are divided by their root mean square, then scaled by column (Zhang & Sennrich 2019)."""

    summary = "RMS normalisation of every row"
    functions: ClassVar = {name: f"{module}:rms_norm" for name, module in LAYERS.items()}
    drawn: ClassVar = {"x": (0.05, 0.1), "weight": (1.0, 0.1)}  # as in LayerNorm

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A matrix, and a number for each of its columns."""
        return {**super().shapes(), "weight": (self.width,)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.rms_norm(arrays["x"], arrays["weight"], EPSILON)

    def torch(self) -> StepFunction:
        import torch.nn.functional as F

        return lambda x, weight: F.rms_norm(x, (self.width,), weight, EPSILON)


@dataclass(frozen=True)
class RmsNormBackward(MemoryBoundBackward, RmsNorm):
    """Gradients of the rows, and of the scale, to which all rows contribute."""

    summary = "gradients of RMS normalisation"
    batched = ()


@dataclass(frozen=True)
class BatchNorm(MemoryBound):
    """Channels are brought to mean 0 and variance 1, then scaled and shifted (Ioffe & Szegedy 2015).

    In training by the batch's own mean and biased variance; running statistics are not kept. Else by
    running ones, which are given.
    """

    batch: int = 8
    channels: int = 64
    height: int = 56
    width: int = 56
    training: bool = True

    summary = "batch normalisation of images, by the batch's statistics or by running ones"
    item = "image"
    batched = ()
    images = frozenset({"x"})
    version = 2  # torch's gradients of outputs lie as images do
    # Off centre, and of a spread that is small enough that epsilon shows.
    drawn: ClassVar = {
        "x": (0.05, 0.1),
        "weight": (1.0, 0.1),
        "bias": (0.0, 0.1),
        "running_mean": (0.05, 0.01),
        "running_var": (0.01, 0.001),
    }

    @property
    def items(self) -> int:
        return self.batch

    @property
    def reduction(self) -> int:
        return prod(self.output_shape) // self.channels

    @property
    def roundings(self) -> int:
        """Torch also keeps the statistics in the dtype of the images."""
        return 2

    def shapes(self) -> dict[str, tuple[int, ...]]:
        names = ("weight", "bias", *(() if self.training else RUNNING))
        image = self.batch, self.channels, self.height, self.width
        return {"x": image, **dict.fromkeys(names, (self.channels,))}

    def tiny(self) -> Self:
        return replace(self, batch=3, channels=17, height=7, width=9)

    def forward(self, ops: Any, arrays: Any) -> Any:
        running = None if self.training else tuple(arrays[name] for name in RUNNING)
        return ops.batch_norm(arrays["x"], arrays["weight"], arrays["bias"], running, EPSILON)

    def torch(self) -> StepFunction:
        import torch.nn.functional as F

        def step(x: Any, weight: Any, bias: Any, mean: Any = None, variance: Any = None) -> Any:
            return F.batch_norm(x, mean, variance, weight, bias, training=self.training, eps=EPSILON)

        return step

    def tensorflow(self) -> StepFunction:
        """The fused kernel, whose parameters and statistics are float32; it has none for float64."""
        import tensorflow as tf

        def step(x: Any, weight: Any, bias: Any, *running: Any) -> Any:
            if x.dtype == tf.float64:
                mean, variance = running or tf.nn.moments(x, [0, 1, 2])
                return tf.nn.batch_normalization(x, mean, variance, bias, weight, EPSILON)
            wide = [tf.cast(each, tf.float32) for each in (weight, bias, *running)]
            options = {"epsilon": EPSILON, "is_training": self.training}
            return tf.compat.v1.nn.fused_batch_norm(x, *wide, **options)[0]

        return step

    def jax(self) -> StepFunction:
        return lambda x, weight, bias, *running: jax_layers.batch_norm(x, weight, bias, running)[0]


@dataclass(frozen=True)
class BatchNormBackward(MemoryBoundBackward, BatchNorm):
    summary = "gradients of batch normalisation"
    constants = frozenset(RUNNING)

    def lacks(self, backend: str, dtype: Dtype) -> str:
        if backend == "torch_xla" and not self.training:
            return "torch_xla has no gradient of batch normalisation by running statistics"
        return super().lacks(backend, dtype)
