"""Rounding errors of a dtype in a network: each operation's result is rounded, forward and backward.

Rounding is stochastic, so that repeated draws show how far correct programs may differ (Croci et al. 2022,
"Stochastic rounding: implementation, error analysis and applications"), or to nearest even as in hardware.
`PRECISIONS` has the formats of products, sums and storage for each dtype.
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

# A rounding has the error u/√3 relative to the rms result, times √(3 / (8 ln 2)) for mantissas uniform in the
# logarithm. n partial sums that grow as √k have √(n/2) times that, so sequential summation has the error
# WALK·√n·u relative to the rms sum.
WALK = math.sqrt(3 / (8 * math.log(2))) / math.sqrt(6)
# Tolerance for user models as a multiple of the error of sequential summation, for terms and sums each. With
# 1,024 to 262,144 products, matrix products with few columns in MKL and Eigen have errors as large as
# sequential summation; sums, which use many accumulators, have a tenth.
IN_TURN_TOLERATED = 1.5

NEGLIGIBLE = 1 / 16  # accumulation error, relative to rounding the result, below which it is not drawn
# Distance from zero, in roundings of the tensor's root mean square, at which rounding may change a sign. If
# sums are as imprecise as their terms, they have errors of 2 to 35 roundings in networks.
NEAR, NEAR_IN_SUMS = 4.0, 32.0
# Elements that are rounded at once, so that temporary arrays stay in the processor's cache.
PART = 2**16 + 1


@dataclass(frozen=True)
class Exact:
    """No rounding: float64 as NumPy has it."""

    scale: float = 1.0  # of the loss before differentiation

    @property
    def updates_in_float32(self) -> bool:
        """True if an optimizer computes in float32, where 1 − 0.999ᵗ loses four digits."""
        return False

    def operand(self, x: Floats, terms: float) -> Floats:
        """An operand of a product."""
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
        """A parameter that is combined with `terms` elements.

        Its gradient is a sum in the accumulation dtype.
        """
        return x

    def parameter(self, x: Floats) -> Floats:
        """A weight that enters the network."""
        return x

    def reused(self, x: Floats) -> Floats:
        """A weight that later steps read, too."""
        return x

    def positive(self, x: Floats) -> NDArray[np.bool_]:
        """Elements that a ReLU passes."""
        return np.asarray(x > 0)

    def stored(self, x: Floats) -> Floats:
        """A parameter or a part of an optimizer's state, outside differentiation."""
        return x


EXACT = Exact()


@dataclass(frozen=True, kw_only=True)
class Stored(Exact):
    """Exact operations, with parameters and optimizer state stored in a format."""

    storage: Floating

    def stored(self, x: Floats) -> Floats:
        return self.storage.nearest(x)


@dataclass(frozen=True, kw_only=True)
class Flipping(Stored):
    """Exact except for ReLUs: the inputs nearest to zero change sign, as rounding may do.

    A correct program flips about 0.3 u of the units. In a small network, a program may flip one unit while a
    few draws flip none, and then its gradient differs by several per cent.
    """

    unit_roundoff: float

    def near_zero(self, x: Floats) -> NDArray[np.intp]:
        """Flat indices of the elements nearest to zero: a share u of them plus one, if near enough."""
        sizes = np.abs(_unboxed(x)).ravel()
        count = min(sizes.size, 1 + math.ceil(self.unit_roundoff * sizes.size))
        nearest = np.argpartition(sizes, count - 1)[:count]
        near = NEAR if self.unit_roundoff > FLOAT32.unit_roundoff else NEAR_IN_SUMS
        limit = near * self.unit_roundoff * math.sqrt(float(np.mean(np.square(sizes))))
        return np.asarray(nearest[sizes[nearest] <= limit])

    def positive(self, x: Floats) -> NDArray[np.bool_]:
        """Elements that pass after the flips."""
        passing = np.asarray(_unboxed(x) > 0).copy()
        passing.flat[self.near_zero(x)] ^= True
        return passing


@dataclass(frozen=True, kw_only=True)
class Watching(Stored):
    """Exact, and counts for each ReLU the inputs that `flipping` would flip."""

    flipping: Flipping
    noted: list[int] = field(default_factory=list)

    def positive(self, x: Floats) -> NDArray[np.bool_]:
        self.noted.append(len(self.flipping.near_zero(x)))
        return super().positive(x)


def _unboxed(x: Any) -> Floats:
    """The numbers of a value that is being differentiated."""
    from autograd.tracer import Box

    while isinstance(x, Box):
        x = x._value
    return np.asarray(x)


@dataclass(frozen=True, kw_only=True)
class Rounded(Exact):
    """Round every operation's result, and its gradient in the backward pass."""

    precision: Precision
    source: np.random.Generator
    nearest: bool = False

    @property
    def updates_in_float32(self) -> bool:
        return self.precision.storage is not FLOAT64

    def operand(self, x: Floats, terms: float) -> Floats:
        """Round a factor in the forward pass, and a sum of `terms` products in the backward pass."""
        return self._apply_both(x, self._round_factor, lambda g: self._round_sum(g, terms))

    def product(self, y: Floats, terms: float) -> Floats:
        """Round a sum of `terms` products in the forward pass, and a factor in the backward pass."""
        return self._apply_both(y, lambda y: self._round_sum(y, terms), self._round_factor)

    def result(self, y: Floats) -> Floats:
        """Round to the format between operations, forward and backward."""
        return self._apply_both(y, self._round_result, self._round_result)

    def accumulated(self, y: Floats, terms: float) -> Floats:
        """Add the error of accumulation to a sum; its gradient is unchanged."""
        return self._apply_both(y, lambda y: self._add_walk(y, terms), lambda g: g)

    def shared(self, x: Floats, terms: float) -> Floats:
        """Add the error of accumulation to the gradient."""
        return self._apply_both(x, lambda x: x, lambda g: self._add_walk(g, terms))

    def parameter(self, x: Floats) -> Floats:
        """Round the gradient to the storage format."""
        return self._apply_both(x, lambda x: x, lambda g: self._round(self.precision.storage, g))

    def reused(self, x: Floats) -> Floats:
        """Round the sum of gradients after every step."""
        return self._apply_both(x, lambda x: x, self._round_result)

    def stored(self, x: Floats) -> Floats:
        """Round to nearest in all modes: an update below the format's spacing is lost."""
        return self.precision.storage.nearest(x)

    def _apply_both(
        self, x: Floats, forward: Callable[[Floats], Floats], backward: Callable[[Floats], Floats]
    ) -> Floats:
        from benchbench.workloads._reference.primitives import passed  # needs autograd

        rounded: Floats = passed(x, (forward, backward))
        return rounded

    def _round_factor(self, x: Floats) -> Floats:
        return self._round(self.precision.multiply, x)

    def _round_result(self, x: Floats) -> Floats:
        return self._round(self.precision.result, x)

    def _round_sum(self, y: Floats, terms: float) -> Floats:
        """Add the error of accumulation to a sum, and round it to the result's format."""
        negligible = self._error_of(terms) < NEGLIGIBLE * self.precision.result.unit_roundoff
        return self._round_result(y if negligible else self._add_walk(y, terms))

    def _add_walk(self, y: Floats, terms: float) -> Floats:
        """Add the error of accumulating `terms` terms, a random walk."""
        flat = np.ravel(y)
        scale = self._error_of(terms) * math.sqrt(float(np.vdot(flat, flat)) / max(1, flat.size))
        walk = scale * self.source.standard_normal(_draw_count(y), np.float32)
        moved_flat = np.empty_like(flat)
        for part in parts_of(flat):
            np.add(flat[part], walk[: moved_flat[part].size], out=moved_flat[part])
        return np.asarray(moved_flat.reshape(np.shape(y)))

    def _error_of(self, terms: float) -> float:
        return WALK * math.sqrt(terms) * self.precision.accumulate.unit_roundoff

    def _round(self, grid: Grid, x: Floats) -> Floats:
        if self.nearest:
            return grid.nearest(x)
        if grid is FLOAT64:  # simulated by relative noise, since values are float64 themselves
            noise = np.resize(self.source.uniform(-1, 1, _draw_count(x)), np.shape(x))
            return x * (1 + FLOAT64.unit_roundoff * noise)
        if isinstance(grid, Floating) and not has_subnormals(x, grid):
            return self._truncate(x, FLOAT64.bits - grid.bits)
        spacing = grid.spacing(x)
        return np.asarray(np.floor(x / spacing + self.source.random(np.shape(x))) * spacing)

    def _truncate(self, x: Floats, dropped: int) -> Floats:
        """Clear the last `dropped` bits of the mantissa after adding up to one unit of the remaining bits."""
        bits, cut = bits_of(x), np.uint64(2**dropped - 1)
        if not any((bits[part] & cut).any() for part in parts_of(bits)):  # such as reused weights
            return x
        noise = self.source.integers(0, 2**dropped, _draw_count(x), dtype=np.uint64)
        rounded = np.empty_like(bits)
        for part in parts_of(bits):
            part_bits = rounded[part]
            np.add(bits[part], noise[: part_bits.size], out=part_bits)
            part_bits &= ~cut
        return np.asarray(rounded.view(np.float64).reshape(np.shape(x)))


class Elementwise(NDArrayOperatorsMixin):
    """An array whose elementwise operations, including NumPy's functions, round their results."""

    def __init__(self, values: Floats, rounding: Exact) -> None:
        self.values = values
        self._rounding = rounding

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any) -> Elementwise:
        """Apply the function to the values of all operands and round the result."""
        plain = [operand.values if isinstance(operand, Elementwise) else operand for operand in inputs]
        return Elementwise(self._rounding.result(getattr(function, method)(*plain)), self._rounding)


def _draw_count(x: Floats) -> int:
    """Number of random numbers for a tensor. Drawing is slow, so all parts use the same numbers.

    `PART` is odd, so that rows of a tensor do not.
    """
    return min(PART, np.size(x)) or 1


def rounding_to(dtype: Dtype, source: np.random.Generator, *, nearest: bool = False) -> Rounded:
    """Rounding to a dtype.

    As in every framework, float16's gradients are scaled if parameters are float32.
    """
    scale = INITIAL_SCALE if dtype is Dtype.AMP_FP16 else 1.0
    return Rounded(precision=PRECISIONS[dtype], source=source, nearest=nearest, scale=scale)


class Grid(Protocol):
    """The values of a format."""

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest."""

    def spacing(self, x: Floats) -> Floats:
        """Distance between the two representable values next to each element of `x`."""

    def nearest(self, x: Floats) -> Floats:
        """Round each element to nearest, ties to even."""


@dataclass(frozen=True, slots=True)
class Floating:
    """A binary floating-point format."""

    bits: int  # of the mantissa, without the implicit leading bit
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
        """Round by integer operations on float64's bits, in a third of the time.

        Half a unit is added and the remaining bits are cleared.
        """
        dropped = FLOAT64.bits - self.bits
        half, cut = np.uint64(2 ** (dropped - 1) - 1), np.uint64(2**dropped - 1)
        bits = bits_of(x)
        rounded = np.empty_like(bits)
        for part in parts_of(bits):
            part_bits = rounded[part]
            np.right_shift(bits[part], np.uint64(dropped), out=part_bits)
            part_bits &= np.uint64(1)  # ties to even
            part_bits += bits[part]
            part_bits += half
            part_bits &= ~cut
        return np.asarray(rounded.view(np.float64).reshape(np.shape(x)))


@dataclass(frozen=True, slots=True)
class Levels:
    """Integers with a scale per tensor: `count` levels on each side of zero."""

    count: int

    @property
    def unit_roundoff(self) -> float:
        """Relative error of the largest element; smaller elements have larger errors."""
        return 0.5 / self.count

    def spacing(self, x: Floats) -> Floats:
        """The same for all elements."""
        return np.asarray(np.abs(x).max() / self.count or 1.0)

    def nearest(self, x: Floats) -> Floats:
        return _nearest(self, x)


def _in_float32(x: Floats) -> Floats:
    """Convert to float32 and back; values beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def _nearest(grid: Grid, x: Floats) -> Floats:
    spacing = grid.spacing(x)
    return np.asarray(np.rint(x / spacing) * spacing)


FLOAT64, FLOAT32, TF32 = Floating(52, -1022), Floating(23, -126), Floating(10, -126)
BFLOAT16, FLOAT16 = Floating(7, -126), Floating(10, -14)
FLOAT8 = Floating(3, -6)  # E4M3
INT8 = Levels(127)
HUGE = 1e300  # larger numbers are values of a mask and are not rounded
# Bits of the significand, including the implicit leading bit, to which results are rounded at random.
DRAWN_BITS = {
    Dtype.FLOAT64: 24,  # rounded to float32; the errors are scaled
    Dtype.FLOAT32: 24,
    Dtype.TF32: 24,
    Dtype.FLOAT16: 11,
    Dtype.BFLOAT16: 8,
    Dtype.AMP_BF16: 8,  # operations after a product use its dtype, except some norms and sums
}
OPERAND_BITS = {Dtype.TF32: 11, Dtype.AMP_BF16: 8}  # of the operands of products, if narrower than values


def rounded_at_random(x: AnyArray, bits: int, source: np.random.Generator) -> AnyArray:
    """Round float64 numbers to one of their two neighbours with `bits` bits in the significand.

    Random low bits are added, and then all low bits are cleared. `bits` includes the implicit leading bit.
    """
    step = 1 << (FLOAT64.bits + 1 - bits)
    noise = source.integers(0, step, x.shape, dtype=np.int64)
    rounded = ((np.ascontiguousarray(x).view(np.int64).reshape(x.shape) + noise) & -step).view(np.float64)
    return np.where(np.abs(x) <= HUGE, rounded, x)


def summed_at_random(x: AnyArray, terms: float, tolerated: float, source: np.random.Generator) -> AnyArray:
    """Add the error of a sum of `terms` terms to float64 numbers.

    It may also be applied to the terms, which may cancel. All elements have the same relative error with
    random signs, so that a few elements do not have small errors by chance.
    """
    signs = source.integers(0, 2, x.shape) * 2 - 1
    return np.asarray(x * (1 + error_in_turn(terms, tolerated) * signs))


def error_in_turn(terms: float, tolerated: float) -> float:
    """Relative error of sequential summation in float32, for draws that are tolerated `tolerated` times.

    16-bit products are also summed in float32.
    """
    return IN_TURN_TOLERATED / tolerated * WALK * math.sqrt(terms) * FLOAT32.unit_roundoff


def bits_of(x: Floats) -> Bits:
    """Bits of the flattened elements, without a copy for a contiguous array."""
    return np.ascontiguousarray(x, np.float64).reshape(-1).view(np.uint64)


def parts_of(flat: AnyArray) -> Iterator[slice]:
    """Consecutive slices of `PART` elements."""
    return (slice(at, at + PART) for at in range(0, flat.size, PART))


def has_subnormals(x: Floats, grid: Floating) -> bool:
    """True if an element of `x` is nonzero and below the smallest normal number.

    Without the sign, a number's bits increase with its size. For zero, bits minus one is the largest integer.
    """
    bits, one = bits_of(x), np.uint64(1)
    least = (bits_of(np.array(2.0**grid.least)) << one) - one
    return any(((bits[part] << one) - one).min() < least for part in parts_of(bits))


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of factors, sums, results between operations, and stored parameters and optimizer state."""

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
