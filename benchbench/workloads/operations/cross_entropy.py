"""The loss of classifiers and language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.arrays import Array
from benchbench.workloads import _losses
from benchbench.workloads._memory_bound import MemoryBoundBackward, Rowwise

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step
    from benchbench.workloads.base import Draw

LOSS = _losses.CrossEntropy()


@dataclass(frozen=True)
class CrossEntropy(Rowwise):
    """Mean over the rows of −log softmax(x)[label], in float32 at least, as networks here are trained."""

    rows: int = 1024
    width: int = 32000

    summary = "softmax and cross-entropy of rows of logits, their mean"
    batched: ClassVar[tuple[str, ...]] = ()
    output_shape = ()
    roundings = 0  # the mean is in float32

    @property
    def reduction(self) -> int:
        return self.rows * self.width

    def arrays(self, draw: Draw) -> dict[str, Array]:
        """Logits and a label for each row."""
        return {**super().arrays(draw), "labels": draw.labels("labels", self.rows, self.width)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The mean over all rows, of which `arrays` may have a part."""
        logits, labels = arrays["x"], arrays["labels"]
        return ops.cross_entropy(logits, labels) * (len(labels) / self.rows)

    def torch(self) -> Step:
        return LOSS.torch

    def tensorflow(self) -> Step:
        return LOSS.tensorflow

    def jax(self) -> Step:
        return LOSS.jax


@dataclass(frozen=True)
class CrossEntropyBackward(MemoryBoundBackward, CrossEntropy):
    """Softmax, less 1 at the label, over the rows."""

    summary = "gradient of cross-entropy"
    batched = ("x", "labels")
    roundings = 1
