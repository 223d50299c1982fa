"""What a dtype does to the values of a network: each operation's result rounded, forward and back.

Rounding is stochastic, so that draws of it show how far correct programs may be apart (Croci et al. 2022,
"Stochastic rounding: implementation, error analysis and applications"), or to nearest even, as hardware does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from benchbench.model.case import Dtype
from benchbench.workloads._reference.primitives import passed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# A rounding errs by u/√3 of its rms result times √(3 / (8 ln 2)) for mantissas even in the logarithm;
# n partial sums that grow as √k leave √(n/2) of that, so summing in turn errs by WALK·√n·u of the rms sum.
WALK = math.sqrt(3 / (8 * math.log(2))) / math.sqrt(6)


class Grid(Protocol):
    """The values that a format can represent."""

    def spacing(self, x: Array) -> Array:
        """Between the two representable values next to each element of `x`."""


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


@dataclass(frozen=True, slots=True)
class Levels:
    """Integers of a scale of the tensor's own: `count` on either side of zero."""

    count: int

    def spacing(self, x: Array) -> Array:
        """The same for all elements."""
        return np.asarray(np.abs(x).max() / self.count or 1.0)


FLOAT64, FLOAT32, TF32 = Floating(52, -1022), Floating(23, -126), Floating(10, -126)
BFLOAT16, FLOAT16 = Floating(7, -126), Floating(10, -14)
FLOAT8 = Floating(3, -6)  # E4M3
INT8 = Levels(127)


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


class Exact:
    """No rounding: float64 as NumPy has it."""

    def operand(self, x: Array, terms: float) -> Array:
        """What is about to be multiplied."""
        return x

    def product(self, y: Array, terms: float) -> Array:
        """A sum of `terms` products."""
        return y

    def result(self, y: Array) -> Array:
        """Of any other operation."""
        return y

    def parameter(self, x: Array) -> Array:
        """A weight on its way into the network."""
        return x

    def stored(self, x: Array) -> Array:
        """A parameter, or what an optimizer keeps of it, outside differentiation."""
        return x


EXACT = Exact()


@dataclass(frozen=True, slots=True)
class Rounded(Exact):
    """Every operation's result rounded, and its gradient on the way back."""

    precision: Precision
    source: np.random.Generator
    nearest: bool = False

    def operand(self, x: Array, terms: float) -> Array:
        """Forward what is multiplied; back a sum of `terms` products."""
        return self._both(x, self._multiplied, lambda g: self._summed(g, terms))

    def product(self, y: Array, terms: float) -> Array:
        """Forward a sum of `terms` products; back what is multiplied."""
        return self._both(y, lambda y: self._summed(y, terms), self._multiplied)

    def result(self, y: Array) -> Array:
        """As stored between operations, both ways."""
        return self._both(y, self._kept, self._kept)

    def parameter(self, x: Array) -> Array:
        """Its gradient is stored as it is."""
        return self._both(x, lambda x: x, self.stored)

    def stored(self, x: Array) -> Array:
        """In the parameters' own format."""
        return self._to(self.precision.storage, x)

    def _both(self, x: Array, forward: Callable[[Array], Array], back: Callable[[Array], Array]) -> Array:
        rounded: Array = passed(x, (forward, back))
        return rounded

    def _multiplied(self, x: Array) -> Array:
        return self._to(self.precision.multiply, x)

    def _kept(self, x: Array) -> Array:
        return self._to(self.precision.result, x)

    def _summed(self, y: Array, terms: float) -> Array:
        """With the error of accumulating, a random walk, then rounded to the result's format."""
        error = WALK * math.sqrt(terms) * self.precision.accumulate.unit_roundoff
        scale = error * math.sqrt(float(np.mean(np.square(y))))
        return self._kept(y + scale * self.source.standard_normal(np.shape(y), np.float32))

    def _to(self, grid: Grid, x: Array) -> Array:
        if grid is FLOAT64:  # what float64 cannot show is added
            return x * (1 + FLOAT64.unit_roundoff * self.source.uniform(-1, 1, np.shape(x)))
        spacing = grid.spacing(x)
        if self.nearest:
            return np.asarray(np.rint(x / spacing) * spacing)
        return np.asarray(np.floor(x / spacing + self.source.random(np.shape(x))) * spacing)
