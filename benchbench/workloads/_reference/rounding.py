"""What a dtype does to the values of a network: each operation's result rounded, forward and back.

Rounding is stochastic, so that draws of it show how far correct programs may be apart (Croci et al. 2022,
"Stochastic rounding: implementation, error analysis and applications"), or to nearest even, as hardware does.
`PRECISIONS` says what a dtype multiplies, sums and stores in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from benchbench.arrays import AnyArray, Floats
from benchbench.model.case import Dtype
from benchbench.workloads._amp import INITIAL_SCALE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[np.uint64]

# A rounding errs by u/√3 of its rms result times √(3 / (8 ln 2)) for mantissas even in the logarithm;
# n partial sums that grow as √k leave √(n/2) of that, so summing in turn errs by WALK·√n·u of the rms sum.
WALK = math.sqrt(3 / (8 * math.log(2))) / math.sqrt(6)
# Times what adding in turn errs by that are tolerated of a user's model, in what is added up and in its sum
# each. Of 1,024 to 262,144 products, MKL's and Eigen's matrix products of few columns err by as much as
# adding in turn does; sums, in many accumulators, by a tenth.
IN_TURN_TOLERATED = 1.5

NEGLIGIBLE = 1 / 16  # of rounding the result: an error of accumulation that need not be drawn
# Roundings from zero, by a tensor's root mean square: what rounding may take to the other side. Where sums
# are no more precise than their terms they err, too: in networks by 2 to 35 roundings.
NEAR, NEAR_IN_SUMS = 4.0, 32.0
# Elements that are rounded at once: what is made of them on the way stays in a processor's cache.
PART = 2**16 + 1


@dataclass(frozen=True)
class Exact:
    """No rounding: float64 as NumPy has it."""

    scale: float = 1.0  # of the loss that is differentiated

    @property
    def updates_in_float32(self) -> bool:
        """Whether an optimizer's arithmetic is float32, where 1 − 0.999ᵗ loses four digits."""
        return False

    def operand(self, x: Floats, terms: float) -> Floats:
        """What is about to be multiplied."""
        return x

    def product(self, y: Floats, terms: float) -> Floats:
        """A sum of `terms` products."""
        return y

    def result(self, y: Floats) -> Floats:
        """The result of any other operation."""
        return y

    def accumulated(self, y: Floats, terms: float) -> Floats:
        """A sum of `terms` elements that stays in the accumulation dtype."""
        return y

    def shared(self, x: Floats, terms: float) -> Floats:
        """A parameter that meets `terms` elements: its gradient is their sum, in the accumulation dtype."""
        return x

    def parameter(self, x: Floats) -> Floats:
        """A weight on its way into the network."""
        return x

    def reused(self, x: Floats) -> Floats:
        """A weight that further steps read, too."""
        return x

    def positive(self, x: Floats) -> NDArray[np.bool_]:
        """Which elements a ReLU lets pass."""
        return np.asarray(x > 0)

    def stored(self, x: Floats) -> Floats:
        """A parameter, or what an optimizer keeps of it, outside differentiation."""
        return x


EXACT = Exact()


@dataclass(frozen=True, kw_only=True)
class Stored(Exact):
    """Exact operations on parameters, and an optimizer's state, that are kept in a format."""

    storage: Floating

    def stored(self, x: Floats) -> Floats:
        return self.storage.nearest(x)


@dataclass(frozen=True, kw_only=True)
class Flipping(Stored):
    """Exact but for ReLUs: what lies nearest to zero is on the other side, as rounding may have it.

    A right program has about 0.3 u of the units there; a small network may have one of them in a program and
    none in a few draws, and its gradient is another one by some per cent.
    """

    unit_roundoff: float

    def near_zero(self, x: Floats) -> NDArray[np.intp]:
        """Indices of the flat tensor: of one unit more than a part u of them, as far as they are near."""
        sizes = np.abs(_unboxed(x)).ravel()
        count = min(sizes.size, 1 + math.ceil(self.unit_roundoff * sizes.size))
        nearest = np.argpartition(sizes, count - 1)[:count]
        near = NEAR if self.unit_roundoff > FLOAT32.unit_roundoff else NEAR_IN_SUMS
        limit = near * self.unit_roundoff * math.sqrt(float(np.mean(np.square(sizes))))
        return np.asarray(nearest[sizes[nearest] <= limit])

    def positive(self, x: Floats) -> NDArray[np.bool_]:
        """What lies nearest to zero is on the other side."""
        passing = np.asarray(_unboxed(x) > 0).copy()
        passing.flat[self.near_zero(x)] ^= True
        return passing


@dataclass(frozen=True, kw_only=True)
class Watching(Stored):
    """Exact, and notes of each ReLU how many inputs `flipping` would turn."""

    flipping: Flipping
    noted: list[int] = field(default_factory=list)

    def positive(self, x: Floats) -> NDArray[np.bool_]:
        self.noted.append(len(self.flipping.near_zero(x)))
        return super().positive(x)


def _unboxed(x: Any) -> Floats:
    """The numbers of what is being differentiated."""
    from autograd.tracer import Box

    while isinstance(x, Box):
        x = x._value
    return np.asarray(x)


@dataclass(frozen=True, kw_only=True)
class Rounded(Exact):
    """Every operation's result rounded, and its gradient on the way back."""

    precision: Precision
    source: np.random.Generator
    nearest: bool = False

    @property
    def updates_in_float32(self) -> bool:
        return self.precision.storage is not FLOAT64

    def operand(self, x: Floats, terms: float) -> Floats:
        """Forward a value that is multiplied; back a sum of `terms` products."""
        return self._both(x, self._multiplied, lambda g: self._summed(g, terms))

    def product(self, y: Floats, terms: float) -> Floats:
        """Forward a sum of `terms` products; back a value that is multiplied."""
        return self._both(y, lambda y: self._summed(y, terms), self._multiplied)

    def result(self, y: Floats) -> Floats:
        """Rounded as it is stored between operations, forward and back."""
        return self._both(y, self._kept, self._kept)

    def accumulated(self, y: Floats, terms: float) -> Floats:
        """A sum with the error of accumulating; its gradient is as it was."""
        return self._both(y, lambda y: self._walked(y, terms), lambda g: g)

    def shared(self, x: Floats, terms: float) -> Floats:
        """The gradient has the error of accumulating."""
        return self._both(x, lambda x: x, lambda g: self._walked(g, terms))

    def parameter(self, x: Floats) -> Floats:
        """The gradient is stored as it is."""
        return self._both(x, lambda x: x, lambda g: self._to(self.precision.storage, g))

    def reused(self, x: Floats) -> Floats:
        """The gradient's sum is stored after every step."""
        return self._both(x, lambda x: x, self._kept)

    def stored(self, x: Floats) -> Floats:
        """Rounded to nearest in any case: what is too small an update for the format is lost."""
        return self.precision.storage.nearest(x)

    def _both(
        self, x: Floats, forward: Callable[[Floats], Floats], back: Callable[[Floats], Floats]
    ) -> Floats:
        from benchbench.workloads._reference.primitives import passed  # needs autograd

        rounded: Floats = passed(x, (forward, back))
        return rounded

    def _multiplied(self, x: Floats) -> Floats:
        return self._to(self.precision.multiply, x)

    def _kept(self, x: Floats) -> Floats:
        return self._to(self.precision.result, x)

    def _summed(self, y: Floats, terms: float) -> Floats:
        """A sum with the error of accumulating, then rounded to the result's format."""
        negligible = self._error_of(terms) < NEGLIGIBLE * self.precision.result.unit_roundoff
        return self._kept(y if negligible else self._walked(y, terms))

    def _walked(self, y: Floats, terms: float) -> Floats:
        """A sum with the error of accumulating `terms`, a random walk."""
        flat = np.ravel(y)
        scale = self._error_of(terms) * math.sqrt(float(np.vdot(flat, flat)) / max(1, flat.size))
        walk = scale * self.source.standard_normal(_drawn(y), np.float32)
        moved = np.empty_like(flat)
        for part in parts_of(flat):
            np.add(flat[part], walk[: moved[part].size], out=moved[part])
        return np.asarray(moved.reshape(np.shape(y)))

    def _error_of(self, terms: float) -> float:
        return WALK * math.sqrt(terms) * self.precision.accumulate.unit_roundoff

    def _to(self, grid: Grid, x: Floats) -> Floats:
        if self.nearest:
            return grid.nearest(x)
        if grid is FLOAT64:  # what float64 cannot show is added
            moved = np.resize(self.source.uniform(-1, 1, _drawn(x)), np.shape(x))
            return x * (1 + FLOAT64.unit_roundoff * moved)
        if isinstance(grid, Floating) and not has_subnormals(x, grid):
            return self._cut(x, FLOAT64.bits - grid.bits)
        spacing = grid.spacing(x)
        return np.asarray(np.floor(x / spacing + self.source.random(np.shape(x))) * spacing)

    def _cut(self, x: Floats, dropped: int) -> Floats:
        """A value without its mantissa's last `dropped` bits, after adding up to one unit of what stays."""
        bits, cut = bits_of(x), np.uint64(2**dropped - 1)
        if not any((bits[part] & cut).any() for part in parts_of(bits)):  # as weights that are read again
            return x
        drawn = self.source.integers(0, 2**dropped, _drawn(x), dtype=np.uint64)
        rounded = np.empty_like(bits)
        for part in parts_of(bits):
            moved = rounded[part]
            np.add(bits[part], drawn[: moved.size], out=moved)
            moved &= ~cut
        return np.asarray(rounded.view(np.float64).reshape(np.shape(x)))


class Elementwise(NDArrayOperatorsMixin):
    """An array whose every elementwise operation, NumPy's functions among them, has its result rounded."""

    def __init__(self, values: Floats, rounding: Exact) -> None:
        self.values = values
        self._rounding = rounding

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any) -> Elementwise:
        """Plain numbers and others of its kind take part."""
        plain = [each.values if isinstance(each, Elementwise) else each for each in inputs]
        return Elementwise(self._rounding.result(getattr(function, method)(*plain)), self._rounding)


def _drawn(x: Floats) -> int:
    """How many random numbers are drawn for a tensor: drawing is slow, so each part meets the same.

    `PART` is odd, so no row of a tensor does.
    """
    return min(PART, np.size(x)) or 1


def rounding_to(dtype: Dtype, source: np.random.Generator, *, nearest: bool = False) -> Rounded:
    """Rounding to a dtype; float16's gradients scaled where parameters are float32, as in every framework."""
    scale = INITIAL_SCALE if dtype is Dtype.AMP_FP16 else 1.0
    return Rounded(precision=PRECISIONS[dtype], source=source, nearest=nearest, scale=scale)


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


FLOAT64, FLOAT32, TF32 = Floating(52, -1022), Floating(23, -126), Floating(10, -126)
BFLOAT16, FLOAT16 = Floating(7, -126), Floating(10, -14)
FLOAT8 = Floating(3, -6)  # E4M3
INT8 = Levels(127)
HUGE = 1e300  # a mask's value: no number that is rounded


def rounded_at_random(x: AnyArray, bits: int, source: np.random.Generator) -> AnyArray:
    """Float64 numbers at one of their two neighbours of so many bits: random low bits are added, then cut.

    `bits`: of the significand, the leading one included.
    """
    step = 1 << (FLOAT64.bits + 1 - bits)
    noise = source.integers(0, step, x.shape, dtype=np.int64)
    found = ((np.ascontiguousarray(x).view(np.int64).reshape(x.shape) + noise) & -step).view(np.float64)
    return np.where(np.abs(x) <= HUGE, found, x)


def summed_at_random(x: AnyArray, terms: float, tolerated: float, source: np.random.Generator) -> AnyArray:
    """Float64 numbers that err as sums of so many terms do, or as their terms where these may cancel.

    Each is larger or smaller by the same share of itself, so that few of them do not err by little by chance.
    """
    signs = source.integers(0, 2, x.shape) * 2 - 1
    return np.asarray(x * (1 + error_in_turn(terms, tolerated) * signs))


def error_in_turn(terms: float, tolerated: float) -> float:
    """The relative error of adding so many terms in turn in float32, for draws that are `tolerated` times.

    16-bit products are added up in float32, too.
    """
    return IN_TURN_TOLERATED / tolerated * WALK * math.sqrt(terms) * FLOAT32.unit_roundoff


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
    Dtype.FLOAT8: Precision(FLOAT8, FLOAT32, BFLOAT16, BFLOAT16),
}
