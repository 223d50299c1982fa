"""The values that each number format can represent, and what a dtype multiplies, sums and stores in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from benchbench.arrays import AnyArray, Floats
from benchbench.model.case import Dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[np.uint64]


class Grid(Protocol):
    """The values that a format can represent."""

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to nearest."""

    def spacing(self, x: Floats) -> Floats:
        """The distance between the two representable values next to each element of `x`."""

    def nearest(self, x: Floats) -> Floats:
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

    def spacing(self, x: Floats) -> Floats:
        """A power of two, constant below the smallest normal number."""
        _, exponent = np.frexp(x)
        return np.asarray(np.ldexp(1.0, np.maximum(exponent - 1, self.least) - self.bits))

    def nearest(self, x: Floats) -> Floats:
        if self.bits == FLOAT64.bits:
            return x
        if self == FLOAT32 and np.isfinite(converted := _in_float32(x)).all():
            return converted
        return _nearest(self, x) if has_subnormals(x, self) else self._nearest_normal(x)

    def _nearest_normal(self, x: Floats) -> Floats:
        """Rounded by the bits of float64, a third of the time: half a unit is added, the rest is cut."""
        dropped = FLOAT64.bits - self.bits
        half, cut = np.uint64(2 ** (dropped - 1) - 1), np.uint64(2**dropped - 1)
        bits = bits_of(x)
        rounded = np.empty_like(bits)
        for part in parts_of(bits):
            moved = rounded[part]
            np.right_shift(bits[part], np.uint64(dropped), out=moved)
            moved &= np.uint64(1)  # a tie goes to the even one
            moved += bits[part]
            moved += half
            moved &= ~cut
        return np.asarray(rounded.view(np.float64).reshape(np.shape(x)))


@dataclass(frozen=True, slots=True)
class Levels:
    """Integers of a scale of the tensor's own: `count` on either side of zero."""

    count: int

    @property
    def unit_roundoff(self) -> float:
        """The largest element's: others are further from theirs."""
        return 0.5 / self.count

    def spacing(self, x: Floats) -> Floats:
        """All elements have the same."""
        return np.asarray(np.abs(x).max() / self.count or 1.0)

    def nearest(self, x: Floats) -> Floats:
        return _nearest(self, x)


def _in_float32(x: Floats) -> Floats:
    """Values as the processor converts them; what is beyond float32 is infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def _nearest(grid: Grid, x: Floats) -> Floats:
    spacing = grid.spacing(x)
    return np.asarray(np.rint(x / spacing) * spacing)


# Elements that are rounded at once: what is made of them on the way stays in a processor's cache.
PART = 2**16 + 1
FLOAT64, FLOAT32, TF32 = Floating(52, -1022), Floating(23, -126), Floating(10, -126)
BFLOAT16, FLOAT16 = Floating(7, -126), Floating(10, -14)
FLOAT8 = Floating(3, -6)  # E4M3
INT8 = Levels(127)


def bits_of(x: Floats) -> Bits:
    """The bits of its elements, one after the other; of a contiguous array no copy."""
    return np.ascontiguousarray(x, np.float64).reshape(-1).view(np.uint64)


def parts_of(flat: AnyArray) -> Iterator[slice]:
    """Consecutive ones of `PART` elements."""
    return (slice(at, at + PART) for at in range(0, flat.size, PART))


def has_subnormals(x: Floats, grid: Floating) -> bool:
    """Whether an element of `x` is below the smallest normal number, and not zero.

    Without its sign, a number's bits grow with it; for zero, one less is the largest integer.
    """
    bits, one = bits_of(x), np.uint64(1)
    least = (bits_of(np.array(2.0**grid.least)) << one) - one
    return any(((bits[part] << one) - one).min() < least for part in parts_of(bits))


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
