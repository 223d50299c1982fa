"""Losses, as means over all samples, with their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array
from benchbench.workloads import _losses
from benchbench.workloads._memory_bound import MemoryBound, MemoryBoundBackward, Pointwise, Rowwise

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw, StepFunction


class MeanLoss(MemoryBound):
    """Mixin: list it first. The mean of a loss over all samples, in float32 at least, as in training."""

    loss: ClassVar[_losses.Loss]
    batched: ClassVar[tuple[str, ...]] = ()
    output_shape = ()
    roundings = 0

    def torch(self) -> StepFunction:
        return self.loss.torch

    def tensorflow(self) -> StepFunction:
        return self.loss.tensorflow

    def jax(self) -> StepFunction:
        return self.loss.jax


@dataclass(frozen=True)
class CrossEntropy(MeanLoss, Rowwise):
    """Mean over the rows of −log softmax(x)[label]: the loss of classifiers and language models."""

    rows: int = 1024
    width: int = 32000

    summary = "softmax and cross-entropy of rows of logits, their mean"
    loss = _losses.CrossEntropy()

    @property
    def reduction(self) -> int:
        return self.rows * self.width

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Logits and a label for each row."""
        return {**super().arrays(draw), "labels": draw.labels("labels", self.rows, self.width)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Share of the mean over all rows; `arrays` may have a part of them."""
        logits, labels = arrays["x"], arrays["labels"]
        return ops.cross_entropy(logits, labels) * (len(labels) / self.rows)


@dataclass(frozen=True)
class CrossEntropyBackward(MemoryBoundBackward, CrossEntropy):
    """Softmax, less 1 at the label, over the rows."""

    summary = "gradient of cross-entropy"
    batched = ("x", "labels")
    roundings = 1


@dataclass(frozen=True)
class Mse(MeanLoss, Pointwise):
    """Mean of (x − target)²: the loss of regression."""

    summary = "mean squared error"
    loss = _losses.MeanSquared()

    @property
    def reduction(self) -> int:
        return self.n

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"x": (self.n,), "targets": (self.n,)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """Share of the mean over all elements; `arrays` may have a part of them."""
        return ops.mse(arrays["x"], arrays["targets"]) * (len(arrays["x"]) / self.n)


@dataclass(frozen=True)
class MseBackward(MemoryBoundBackward, Mse):
    """2 (x − target) / n; the targets have no gradient."""

    summary = "gradient of mean squared error"
    batched = ("x", "targets")
    constants = frozenset({"targets"})
    roundings = 1
