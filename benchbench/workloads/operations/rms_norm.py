"""Root-mean-square normalisation of every row, as Llama and its kin have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.workloads._layers import EPSILON
from benchbench.workloads._memory_bound import MemoryBoundBackward, Rowwise

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class RmsNorm(Rowwise):
    """Rows are divided by their root mean square, then scaled by column (Zhang & Sennrich 2019)."""

    summary = "RMS normalisation of every row"
    drawn: ClassVar = {"x": (0.05, 0.1), "weight": (1.0, 0.1)}  # as in layer_norm

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A matrix, and a number for each of its columns."""
        return {**super().shapes(), "weight": (self.width,)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.rms_norm(arrays["x"], arrays["weight"], EPSILON)

    def torch(self) -> Step:
        import torch.nn.functional as F

        return lambda x, weight: F.rms_norm(x, (self.width,), weight, EPSILON)

    def tensorflow(self) -> Step:
        from benchbench.workloads._programs import tensorflow_layers

        return lambda x, weight: tensorflow_layers.rms_norm(x, {"norm.weight": weight}, "norm")

    def jax(self) -> Step:
        from benchbench.workloads._programs import jax_layers

        return lambda x, weight: jax_layers.rms_norm(x, {"norm.weight": weight}, "norm")


@dataclass(frozen=True)
class RmsNormBackward(MemoryBoundBackward, RmsNorm):
    """Gradients of the rows, and of the scale, which all rows have a part in."""

    summary = "gradients of RMS normalisation"
    batched = ()
