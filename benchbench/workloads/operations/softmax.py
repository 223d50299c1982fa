"""Softmax of every row, as attention and classifiers have it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchbench.workloads._memory_bound import MemoryBoundBackward, Rowwise

if TYPE_CHECKING:
    from benchbench.workloads._memory_bound import Step


@dataclass(frozen=True)
class Softmax(Rowwise):
    """eˣ over its sum, the largest of a row subtracted first."""

    summary = "softmax of every row"

    @property
    def roundings(self) -> int:
        """The distance from the largest, whose error a power multiplies; powers, result: where unfused."""
        return 4

    def forward(self, ops: Any, arrays: Any) -> Any:
        return ops.softmax(arrays["x"])

    def torch(self) -> Step:
        import torch.nn.functional as F

        return partial(F.softmax, dim=-1)

    def tensorflow(self) -> Step:
        import tensorflow as tf

        return tf.nn.softmax  # type: ignore[no-any-return]

    def jax(self) -> Step:
        import jax

        return jax.nn.softmax  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SoftmaxBackward(MemoryBoundBackward, Softmax):
    """y · (upstream − Σ y · upstream) of every row."""

    summary = "gradient of softmax"
