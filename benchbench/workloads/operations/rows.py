"""Sums of a matrix, sorted rows and their largest values, and losses, which are means over all samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from benchbench.arrays import Array, Floats, Indices
from benchbench.errors import UsageError
from benchbench.model.case import Dtype
from benchbench.model.measurement import Cost
from benchbench.workloads import _losses
from benchbench.workloads._memory_bound import MemoryBound, MemoryBoundBackward, Pointwise, Rowwise
from benchbench.workloads.base import FunctionOperation

if TYPE_CHECKING:
    from benchbench.workloads.base import Arrays, Draw, StepFunction


@dataclass(frozen=True)
class Reduction(FunctionOperation):
    """A row-major matrix; axis 1 sums neighbours in memory, axis 0 elements that are a row apart."""

    rows: int = 8192
    columns: int = 8192
    axis: int = 1

    summary = "sum of a matrix over one axis"
    functions: ClassVar = {
        "torch": "torch:sum",
        "tensorflow": "tensorflow:reduce_sum",
        "jax": "jax.numpy:sum",
    }
    may_be_zero = frozenset({"axis"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axis > 1:
            raise UsageError(f"axis={self.axis}: a matrix has the axes 0 and 1.")

    def cost(self, dtype: Dtype) -> Cost:
        """The matrix is read, the sums are written; no FLOPs; an item is a sum."""
        moved_bytes = (self.rows * self.columns + self._sums) * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved_bytes, items=self._sums, item="sum")

    @property
    def _sums(self) -> int:
        return (self.rows, self.columns)[1 - self.axis]

    @property
    def reduction(self) -> int:
        return (self.rows, self.columns)[self.axis]

    @property
    def output_shape(self) -> tuple[int]:
        return (self._sums,)

    def tiny(self) -> Self:
        return type(self)(rows=37, columns=1031, axis=self.axis)

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", self.rows, self.columns)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Sums of the sampled rows or columns."""
        import numpy as np

        sampled = np.take(arrays["x"], index[:, 0], axis=1 - self.axis)
        return np.asarray(sampled.sum(axis=self.axis, dtype=np.float64))

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        axis = {"axis": self.axis}
        return {"torch": {"dim": self.axis}, "tensorflow": axis, "jax": axis}


@dataclass(frozen=True)
class _OrderedRows(FunctionOperation):
    """Rows of N(0, 1), each sorted separately. The output is values, which are exact."""

    rows: int
    columns: int

    reduction = 0  # nothing is summed or rounded: every element is exact
    roundings = 0

    def arrays(self, draw: Draw) -> dict[str, Array]:
        return {"x": draw.normal("x", self.rows, self.columns)}

    def reference(self, arrays: Arrays, index: Indices) -> Floats:
        """Elements of the sampled rows, sorted."""
        import numpy as np

        rows, place = np.unique(index[:, 0], return_inverse=True)
        ordered = np.sort(arrays["x"][rows].astype(float), axis=1)
        return np.asarray(self.placed(ordered)[place, index[:, 1]])

    def placed(self, ordered: Floats) -> Floats:
        """Rows of the output, from rows sorted in ascending order."""
        return ordered


@dataclass(frozen=True)
class Sort(_OrderedRows):
    """Each row from its smallest value to its largest. PyTorch sorts indices along, whether used or not."""

    rows: int = 64
    columns: int = 2**20

    summary = "every row of a matrix sorted"
    functions: ClassVar = {"tensorflow": "tensorflow:sort", "jax": "jax.numpy:sort"}  # of the last axis

    def cost(self, dtype: Dtype) -> Cost:
        """Rows are read and written once, which no algorithm reaches; no FLOPs; an item is an element."""
        elements = self.rows * self.columns
        return Cost(flops=0, bytes=2 * elements * dtype.storage.itemsize, items=elements, item="element")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def tiny(self) -> Self:
        return type(self)(rows=5, columns=129)

    def torch(self) -> StepFunction:
        import torch

        return lambda x: torch.sort(x, dim=1).values


@dataclass(frozen=True)
class TopK(_OrderedRows):
    """The k largest values of each row, the largest first, as samplers and routers of experts take them.

    By default rows are as long as GPT-2's vocabulary. Values are returned and verified, not their positions:
    in 16 bits many values are equal.
    """

    rows: int = 512
    columns: int = 50_257
    k: int = 50

    summary = "the k largest values of every row of a matrix"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k > self.columns:
            raise UsageError(f"k={self.k} is more than a row has: columns={self.columns}.")

    def cost(self, dtype: Dtype) -> Cost:
        """Rows are read, k values of each written; no FLOPs; an item is a row."""
        moved_bytes = self.rows * (self.columns + self.k) * dtype.storage.itemsize
        return Cost(flops=0, bytes=moved_bytes, items=self.rows, item="row")

    @property
    def output_shape(self) -> tuple[int, int]:
        return self.rows, self.k

    def tiny(self) -> Self:
        return type(self)(rows=5, columns=129, k=7)

    def placed(self, ordered: Floats) -> Floats:
        return ordered[:, : -self.k - 1 : -1]

    def torch(self) -> StepFunction:
        import torch

        return lambda x: torch.topk(x, self.k, dim=1).values

    def tensorflow(self) -> StepFunction:
        import tensorflow as tf

        return lambda x: tf.math.top_k(x, self.k).values

    def jax(self) -> StepFunction:
        import jax

        return lambda x: jax.lax.top_k(x, self.k)[0]


class MeanLoss(MemoryBound):
    """Mixin: list it first. The mean of a loss over all samples, in float32 at least, as in training."""

    loss: ClassVar[_losses.Loss]
    batched: ClassVar[tuple[str, ...]] = ()
    output_shape = ()
    roundings = 0

    def _function(self, framework: str) -> StepFunction:
        return getattr(self.loss, framework)  # type: ignore[no-any-return]


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
