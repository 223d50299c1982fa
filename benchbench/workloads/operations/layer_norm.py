"""Layer normalisation of every row, as Transformers have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from benchbench.workloads._layers import EPSILON
from benchbench.workloads._memory_bound import MemoryBoundBackward, Rowwise

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class LayerNorm(Rowwise):
    """Rows are brought to mean 0 and variance 1, then scaled and shifted by column (Ba et al. 2016)."""

    summary = "layer normalisation of every row"
    # Rows are off centre, and small enough that epsilon shows.
    drawn: ClassVar = {"x": (0.05, 0.1), "weight": (1.0, 0.1), "bias": (0.0, 0.1)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """A matrix, and two numbers for each of its columns."""
        return {**super().shapes(), "weight": (self.width,), "bias": (self.width,)}

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.layer_norm(arrays["x"], arrays["weight"], arrays["bias"], EPSILON)

    def torch(self) -> Step:
        import torch.nn.functional as F

        return lambda x, weight, bias: F.layer_norm(x, (self.width,), weight, bias, EPSILON)

    def tensorflow(self) -> Step:
        from benchbench.workloads._programs.tensorflow_layers import layer_norm

        def step(x: Any, weight: Any, bias: Any) -> Any:
            return layer_norm(x, {"norm.weight": weight, "norm.bias": bias}, "norm")

        return step

    def jax(self) -> Step:
        from benchbench.workloads._programs.jax_layers import layer_norm

        def step(x: Any, weight: Any, bias: Any) -> Any:
            return layer_norm(x, {"norm.weight": weight, "norm.bias": bias}, "norm")

        return step


@dataclass(frozen=True)
class LayerNormBackward(MemoryBoundBackward, LayerNorm):
    """Gradients of the rows, and of the scale and shift, which all rows have a part in."""

    summary = "gradients of layer normalisation"
    batched = ()
