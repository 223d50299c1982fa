"""The loss of classifiers and language models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.arrays import Array
from benchbench.workloads import _losses
from benchbench.workloads._memory_bound import MeanLoss, MemoryBoundBackward, Rowwise

if TYPE_CHECKING:
    from benchbench.workloads.base import Draw


@dataclass(frozen=True)
class CrossEntropy(MeanLoss, Rowwise):
    """Mean over the rows of −log softmax(x)[label], in float32 at least, as networks here are trained."""

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
        """The mean over all rows, of which `arrays` may have a part."""
        logits, labels = arrays["x"], arrays["labels"]
        return ops.cross_entropy(logits, labels) * (len(labels) / self.rows)


@dataclass(frozen=True)
class CrossEntropyBackward(MemoryBoundBackward, CrossEntropy):
    """Softmax, less 1 at the label, over the rows."""

    summary = "gradient of cross-entropy"
    batched = ("x", "labels")
    roundings = 1
