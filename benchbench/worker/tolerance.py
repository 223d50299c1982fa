"""How far rounding alone may take the result of an operation from float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchbench.model.case import Dtype

if TYPE_CHECKING:
    from benchbench.workloads.base import Workload

LAMBDA = (
    6.0  # chance that accumulating alone exceeds λ√n·u: 2·exp(−λ²/2) = 3e-8 (Higham & Mary 2019, Thm 2.4)
)
UNIT_ROUNDOFF = {
    Dtype.FLOAT64: 2**-53,
    Dtype.FLOAT32: 2**-24,
    Dtype.TF32: 2**-11,
    Dtype.BFLOAT16: 2**-8,
    Dtype.FLOAT16: 2**-11,
}
CUT = 2 * math.sqrt(2)  # tensor cores cut both float32 operands to TF32: each errs by up to twice a rounding
INT8_LEVELS = 127  # on either side of zero
INT8_SPAN = 5.5  # largest of a million N(0, 1) values, in σ: √(2 ln 10⁶) = 5.3, and a little


def tolerance(workload: Workload, dtype: Dtype) -> float:
    """The largest relative error of an operation, over its sampled elements, that rounding explains.

    λ√n·uₐ + √r·u: n products accumulate in float32, which every framework here promises also for 16-bit
    operands (in float64 for float64, where the reference errs as much: twice), and values are rounded r
    times to the dtype. Rounding errors behave as independent (Higham & Mary 2019, "A new approach to
    probabilistic rounding error analysis"). λ guards against the tail of one sum's error; the error of
    rounding is a mean over all samples and has no tail, and √r·u exceeds it more than twice, since
    mantissas are spread over their range. In TF32 operands are cut, not rounded: `CUT` times as much.
    """
    if dtype is Dtype.INT8:
        return _quantised(workload)
    rounded = math.sqrt(workload.roundings) * UNIT_ROUNDOFF[dtype.compute]
    rounded *= CUT if dtype is Dtype.TF32 else 1
    return accumulation(workload.reduction, dtype) + rounded * (2 if dtype is Dtype.FLOAT64 else 1)


def accumulation(terms: int, dtype: Dtype) -> float:
    """λ√n·uₐ: the relative error that adding up so many terms explains; in float64 twice, as above."""
    wide = dtype is Dtype.FLOAT64
    accumulator = Dtype.FLOAT64 if wide else Dtype.FLOAT32
    return LAMBDA * math.sqrt(terms) * UNIT_ROUNDOFF[accumulator] * (2 if wide else 1)


def _quantised(workload: Workload) -> float:
    """Twice the expected error of quantising both operands and the result of each of r layers.

    A step of Δ = max|x| / 127 leaves errors uniform over Δ, so of σ Δ/√12 (Bennett 1948, "Spectra of
    quantized signals"); a sum of products has its operands' relative error whatever its length, and
    errors of layers add up as independent. The norm over all samples is within a few per cent of its
    expectation, so λ has no part in it; the two is for tensors with longer tails than N(0, 1).
    """
    once = INT8_SPAN / INT8_LEVELS / math.sqrt(12)
    return 2 * math.sqrt(3 * workload.roundings) * once
