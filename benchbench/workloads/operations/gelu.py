"""The Gaussian error linear unit, elementwise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchbench.workloads._memory_bound import MemoryBoundBackward, Pointwise

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class Gelu(Pointwise):
    """x Φ(x) by the error function, not its approximation by tanh (Hendrycks & Gimpel 2016)."""

    summary = "exact GELU of every element"

    @property
    def roundings(self) -> int:
        """The error function and its product with half of x, where unfused."""
        return 2

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.gelu(arrays["x"])

    def torch(self) -> Step:
        import torch.nn.functional as F

        return F.gelu

    def tensorflow(self) -> Step:
        from benchbench.workloads._programs.tensorflow_layers import gelu

        return gelu

    def jax(self) -> Step:
        """jax.nn.gelu, which approximates unless told not to."""
        import jax

        return partial(jax.nn.gelu, approximate=False)


@dataclass(frozen=True)
class GeluBackward(MemoryBoundBackward, Gelu):
    """Φ(x) + x φ(x) times the upstream gradient."""

    summary = "gradient of exact GELU"
