"""The loss of regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchbench.workloads import _losses
from benchbench.workloads._memory_bound import MeanLoss, MemoryBoundBackward, Pointwise


@dataclass(frozen=True)
class Mse(MeanLoss, Pointwise):
    """Mean of (x − target)², in float32 at least, as networks here are trained."""

    summary = "mean squared error"
    loss = _losses.MeanSquared()

    @property
    def reduction(self) -> int:
        return self.n

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"x": (self.n,), "targets": (self.n,)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        """The mean over all elements, of which `arrays` may have a part."""
        return ops.mse(arrays["x"], arrays["targets"]) * (len(arrays["x"]) / self.n)


@dataclass(frozen=True)
class MseBackward(MemoryBoundBackward, Mse):
    """2 (x − target) / n; the targets get none."""

    summary = "gradient of mean squared error"
    batched = ("x", "targets")
    constants = frozenset({"targets"})
    roundings = 1
