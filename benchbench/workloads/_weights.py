"""A weight as data: how it is drawn, and how it lies in each framework. Knows no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from benchbench.arrays import AnyArray

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benchbench.workloads.base import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """How a weight is drawn, N(mean, scale²), and how it lies in memory."""

    shape: tuple[int, ...]  # PyTorch's
    scale: float
    mean: float = 0.0
    is_learnt: bool = True  # by the optimizer; running statistics are only carried along
    is_positive: bool = False  # its absolute value is taken
    # Part of its gradient is 0, as of a bias of attention's keys, which softmax does not see: what rounding
    # leaves of it, Adam makes as large as the rest.
    is_partly_idle: bool = False
    axes: tuple[int, ...] = ()  # of TensorFlow and JAX, as PyTorch numbers them; () where they are the same
    parts: tuple[int, ...] = ()  # what `axes` are of, where an axis of `shape` is several of theirs

    def draw(self, draw: Draw, name: str) -> NDArray[np.float32]:
        """The weight in PyTorch's layout."""
        import numpy as np

        array = draw.normal(name, *self.shape, scale=self.scale, mean=self.mean)
        return np.abs(array) if self.is_positive else array

    @property
    def shape_channels_last(self) -> tuple[int, ...]:
        """The shape as TensorFlow and JAX have it."""
        moved = [(self.parts or self.shape)[axis] for axis in self.axes or range(len(self.shape))]
        return (prod(moved[:-1]), moved[-1]) if self.axes and self.parts else tuple(moved)

    def channels_last(self, array: AnyArray) -> AnyArray:
        """The weight as TensorFlow and JAX have it: the input's channels before the output's."""
        if not self.axes:
            return array
        moved = array.reshape(self.parts or self.shape).transpose(self.axes)
        return moved.reshape(-1, moved.shape[-1]) if self.parts else moved

    def as_in_torch(self, tensor: Any, reshape: Callable[..., Any], transpose: Callable[..., Any]) -> Any:
        """The inverse of `channels_last`, of a framework's tensor and by its functions."""
        if not self.axes:
            return tensor
        parts = self.parts or self.shape
        there = reshape(tensor, tuple(parts[axis] for axis in self.axes))
        return reshape(transpose(there, tuple(map(self.axes.index, range(len(parts))))), self.shape)


def bias_of(name: str, count: int, there: bool) -> dict[str, Weight]:
    """One small number per output."""
    return {f"{name}.bias": Weight(shape=(count,), scale=0.01)} if there else {}
