"""The values that each number format can represent, and what a dtype multiplies, sums and stores in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from benchbench.model.case import Dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class Grid(Protocol):
    """The values that a format can represent."""

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to nearest."""

    def spacing(self, x: Array) -> Array:
        """Between the two representable values next to each element of `x`."""

    def nearest(self, x: Array) -> Array:
        """Each element rounded, ties to even."""


@dataclass(frozen=True, slots=True)
class Floating:
    """A binary floating-point format."""

    bits: int  # of the mantissa, the leading one not among them
    least: int  # exponent of the smallest normal number

    @property
    def unit_roundoff(self) -> float:
        """Half the spacing after 1."""
        return 2.0 ** -(self.bits + 1)

    def spacing(self, x: Array) -> Array:
        """A power of two, constant below the smallest normal number."""
        _, exponent = np.frexp(x)
        return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, self.least) - self.bits))

    def nearest(self, x: Array) -> Array:
        """Each element rounded, ties to even."""
        if self.bits == FLOAT64.bits:
            return x
        return _nearest(self, x) if has_subnormals(x, self) else self._nearest_normal(x)

    def _nearest_normal(self, x: Array) -> Array:
        """By the bits of float64, a third of the time: half a unit is added, and what lies below one cut."""
        dropped = FLOAT64.bits - self.bits
        bits = np.ascontiguousarray(x, np.float64).view(np.uint64)
        moved = (bits >> np.uint64(dropped)) & np.uint64(1)  # a tie goes to the even one
        moved += bits
        moved += np.uint64(2 ** (dropped - 1) - 1)
        moved &= ~np.uint64(2**dropped - 1)
        return np.asarray(moved.view(np.float64))


@dataclass(frozen=True, slots=True)
class Levels:
    """Integers of a scale of the tensor's own: `count` on either side of zero."""

    count: int

    @property
    def unit_roundoff(self) -> float:
        """Of the largest element."""
        return 0.5 / self.count

    def spacing(self, x: Array) -> Array:
        """The same for all elements."""
        return np.asarray(np.abs(x).max() / self.count or 1.0)

    def nearest(self, x: Array) -> Array:
        """Each element rounded, ties to even."""
        return _nearest(self, x)


def _nearest(grid: Grid, x: Array) -> Array:
    spacing = grid.spacing(x)
    return np.asarray(np.rint(x / spacing) * spacing)


FLOAT64, FLOAT32, TF32 = Floating(52, -1022), Floating(23, -126), Floating(10, -126)
BFLOAT16, FLOAT16 = Floating(7, -126), Floating(10, -14)
FLOAT8 = Floating(3, -6)  # E4M3
INT8 = Levels(127)


def has_subnormals(x: Array, grid: Floating) -> bool:
    """Whether an element of `x` is below the smallest normal number, and not zero."""
    return bool(((np.abs(x) < 2.0**grid.least) & (x != 0)).any())


@dataclass(frozen=True, slots=True)
class Precision:
    """What is multiplied, summed and stored between operations; where parameters and optimizers live."""

    multiply: Grid
    accumulate: Floating
    result: Grid
    storage: Floating


PRECISIONS = {
    Dtype.FLOAT64: Precision(FLOAT64, FLOAT64, FLOAT64, FLOAT64),
    Dtype.FLOAT32: Precision(FLOAT32, FLOAT32, FLOAT32, FLOAT32),
    Dtype.TF32: Precision(TF32, FLOAT32, FLOAT32, FLOAT32),
    Dtype.BFLOAT16: Precision(BFLOAT16, FLOAT32, BFLOAT16, BFLOAT16),
    Dtype.FLOAT16: Precision(FLOAT16, FLOAT32, FLOAT16, FLOAT16),
    Dtype.AMP_BF16: Precision(BFLOAT16, FLOAT32, BFLOAT16, FLOAT32),
    Dtype.AMP_FP16: Precision(FLOAT16, FLOAT32, FLOAT16, FLOAT32),
    Dtype.INT8: Precision(INT8, FLOAT32, INT8, FLOAT32),
}
