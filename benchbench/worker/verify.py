"""Is it the same computation? Outputs against a float64 reference, before any speed is shown.

Operations are checked at the timed shape on sampled output elements; training by the loss and the
gradient norm of its first steps at a small size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from benchbench.model.case import Dtype
from benchbench.workloads.base import MOMENTUM, SEED, Draw, Operation, Program, Training, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

SAMPLES = 256  # output elements: a tenth of them wrong is missed once in 10¹¹
STEPS = 3  # of training: the second sees the first update, the third the momentum
LAMBDA = 6.0  # chance that rounding alone exceeds λ√n·u: 2·exp(−λ²/2) = 3e-8 (Higham & Mary 2019, Thm 2.4)
UNIT_ROUNDOFF = {
    Dtype.FLOAT64: 2**-53,
    Dtype.FLOAT32: 2**-24,
    Dtype.TF32: 2**-11,
    Dtype.BFLOAT16: 2**-8,
    Dtype.FLOAT16: 2**-11,
}
INT8_LEVELS = 127  # on either side of zero
INT8_SPAN = 5.5  # largest of a million N(0, 1) values, in σ: √(2 ln 10⁶) = 5.3, and a little


class Reader(Protocol):
    """The part of a session that verification needs."""

    def take(self, output: Any, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Elements of an output."""

    def fetch(self, output: Any) -> NDArray[np.float64]:
        """All of an output."""


def tolerance(workload: Workload, dtype: Dtype) -> float:
    """The largest relative error that rounding explains.

    λ (√n·uₐ + √r·u): n products accumulate in float32, which every framework here promises also for
    16-bit operands (in float64 for float64, where the reference errs as much: twice), and values are
    rounded r times to the dtype, under mixed precision to what is multiplied; rounding errors behave as
    independent (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis").
    """
    if dtype is Dtype.INT8:
        return _quantised(workload)
    accumulator = dtype if dtype is Dtype.FLOAT64 else Dtype.FLOAT32
    accumulated = math.sqrt(workload.reduction) * UNIT_ROUNDOFF[accumulator]
    rounded = math.sqrt(workload.roundings) * UNIT_ROUNDOFF[dtype.compute]
    return LAMBDA * (accumulated + rounded) * (2 if dtype is Dtype.FLOAT64 else 1)


def _quantised(workload: Workload) -> float:
    """Twice the expected error of quantising both operands and the result of each of r layers.

    A step of Δ = max|x| / 127 leaves errors uniform over Δ, so of σ Δ/√12 (Bennett 1948, "Spectra of
    quantized signals"); a sum of products has its operands' relative error whatever its length, and
    errors of layers add up as independent. The norm over `SAMPLES` elements is within a few per cent of
    its expectation, so λ has no part in it; the two is for tensors with longer tails than N(0, 1).
    """
    once = INT8_SPAN / INT8_LEVELS / math.sqrt(12)
    return 2 * math.sqrt(3 * workload.roundings) * once


def checked_at(workload: Workload) -> Workload:
    """The instance whose results are verified: itself, or its small size where a step is a training step."""
    return workload.tiny() if isinstance(workload, Training) else workload


def reference(workload: Workload, draw: Draw) -> list[float]:
    """What `checked_at(workload)` must give, in float64: sampled elements, or losses then gradient norms."""
    workload = checked_at(workload)
    arrays = workload.arrays(draw)
    if isinstance(workload, Operation):
        return [float(value) for value in workload.reference(arrays, sample_index(workload))]
    assert isinstance(workload, Training)
    losses, norms = zip(*workload.reference(arrays, STEPS), strict=True)
    return [*losses, *norms]


def sample_index(workload: Operation) -> NDArray[np.int64]:
    """The sampled output elements, the same in every process: shape (SAMPLES, ndim)."""
    import numpy as np

    return workload.sample(np.random.default_rng(SEED), SAMPLES)


def index_in(workload: Operation, program: Program) -> NDArray[np.int64]:
    """`sample_index` in the order of the axes of the program's output."""
    index = sample_index(workload)
    return index if program.axes is None else index[:, program.axes]


def operation_error(
    workload: Operation, program: Program, output: Any, reader: Reader, expected: Sequence[float]
) -> float:
    """‖output − reference‖₂ / ‖reference‖₂ over the sampled elements; inf where a value is not finite."""
    import numpy as np

    found, wanted = reader.take(output, index_in(workload, program)), np.asarray(expected)
    if not np.isfinite(found).all():
        return math.inf
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def training_error(
    program: Program,
    step: Callable[[], Any],
    state: Callable[[], tuple[Any, ...]],
    reader: Reader,
    expected: Sequence[float],
) -> float:
    """The largest relative error of loss and gradient norm over the first steps; inf where not finite.

    The gradient is what the optimizer was given: g = v − 0.9 v′, from its momentum before and after.
    """
    import numpy as np

    assert program.momenta is not None
    losses, norms, before = [], [], None
    for _ in range(STEPS):
        losses.append(float(reader.fetch(step()).reshape(-1)[0]))
        after = [reader.fetch(momentum) for momentum in program.momenta(*state())]
        norms.append(_gradient_norm(before, after))
        before = after
    found, wanted = np.array([*losses, *norms]), np.asarray(expected)
    if not np.isfinite(found).all():
        return math.inf
    return float(np.max(np.abs(found - wanted) / np.abs(wanted)))


def _gradient_norm(
    before: Sequence[NDArray[np.float64]] | None, after: Sequence[NDArray[np.float64]]
) -> float:
    import numpy as np

    if before is None:
        gradients = list(after)
    else:
        gradients = [new - MOMENTUM * old for old, new in zip(before, after, strict=True)]
    return math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in gradients))
