"""The rectified linear unit, elementwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchbench.workloads._memory_bound import MemoryBoundBackward, Pointwise

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class Relu(Pointwise):
    """max(x, 0), with derivative 0 at 0 (Nair & Hinton 2010)."""

    summary = "max(x, 0) of every element"

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.relu(arrays["x"])

    def torch(self) -> Step:
        import torch.nn.functional as F

        return F.relu

    def tensorflow(self) -> Step:
        import tensorflow as tf

        return tf.nn.relu  # type: ignore[no-any-return]

    def jax(self) -> Step:
        import jax

        return jax.nn.relu  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ReluBackward(MemoryBoundBackward, Relu):
    """The upstream gradient where x > 0."""

    summary = "gradient of ReLU"
