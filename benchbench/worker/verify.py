"""Is it the same computation? A program's tensors against the float64 reference, before any speed is shown.

Operations are checked at the timed shape on sampled output elements; training by its first steps at a
small size. The reference and its tolerances come from worker/reference.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from benchbench.workloads.base import MOMENTUM, SEED, Operation, Program, Training, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

SAMPLES = 256  # output elements: a tenth of them wrong is missed once in 10¹¹
STEPS = 3  # of training: the second sees the first update, the third the momentum


class Reader(Protocol):
    """The part of a session that verification needs."""

    def take(self, output: Any, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """Elements of an output."""

    def fetch(self, output: Any) -> NDArray[np.float64]:
        """All of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Tensor → its elements in float64, and the relative error up to which rounding explains a difference.

    `others`: the elements where the inputs are the other ones, drawn for the check after timing; `stretch`:
    how many times the tolerance they may deviate.
    """

    expected: Mapping[str, Sequence[float]]
    tolerance: Mapping[str, float]
    others: Mapping[str, Sequence[float]]
    stretch: float = 1.0


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far one tensor is from float64: ‖x − r‖₂ / ‖r‖₂ over its elements; inf where one is not finite."""

    tensor: str
    error: float
    tolerance: float

    @property
    def ratio(self) -> float:
        """Beyond 1 rounding does not explain it."""
        return self.error / self.tolerance


def worst(
    measured: Mapping[str, NDArray[np.float64]],
    expected: Mapping[str, Sequence[float]],
    tolerance: Mapping[str, float],
) -> Deviation:
    """Of the tensor that exceeds its tolerance most. Raises KeyError where one of `expected` is missing."""
    deviations = [
        Deviation(name, relative_error(measured[name], values), tolerance[name])
        for name, values in expected.items()
    ]
    return max(deviations, key=lambda deviation: deviation.ratio)


def relative_error(measured: NDArray[np.float64], expected: Sequence[float]) -> float:
    """‖measured − expected‖₂ / ‖expected‖₂; inf where a value is not finite."""
    import numpy as np

    exact = np.asarray(expected)
    if not np.isfinite(measured).all():
        return math.inf
    return float(np.linalg.norm(measured - exact) / np.linalg.norm(exact))


def checked_at(workload: Workload) -> Workload:
    """The instance whose results are verified: itself, or its small size where a step is a training step."""
    return workload.tiny() if isinstance(workload, Training) else workload


def sample_indices(workload: Operation) -> dict[str, NDArray[np.int64]]:
    """Output → its sampled elements, the same in every process: shape (SAMPLES, ndim)."""
    import numpy as np

    return workload.samples(np.random.default_rng(SEED), SAMPLES)


def output_elements(
    workload: Operation, program: Program, output: Any, reader: Reader
) -> dict[str, NDArray[np.float64]]:
    """The sampled elements of each output."""
    indices = sample_indices(workload)
    outputs = output if len(indices) > 1 else (output,)
    return {
        name: reader.take(tensor, _in_order(index, program.axes_of(name)))
        for (name, index), tensor in zip(indices.items(), outputs, strict=True)
    }


def _in_order(index: NDArray[np.int64], axes: tuple[int, ...] | None) -> NDArray[np.int64]:
    """`index` with its columns in the order of the axes that the program's tensor has."""
    return index if axes is None else index[:, axes]


def trained_elements(
    program: Program,
    step: Callable[[], Any],
    state: Callable[[], tuple[Any, ...]],
    reader: Reader,
) -> dict[str, NDArray[np.float64]]:
    """Losses and gradient norms of the first steps.

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
    return {"loss": np.array(losses), "gradient norm": np.array(norms)}


def _gradient_norm(
    before: Sequence[NDArray[np.float64]] | None, after: Sequence[NDArray[np.float64]]
) -> float:
    import numpy as np

    if before is None:
        gradients = list(after)
    else:
        gradients = [new - MOMENTUM * old for old, new in zip(before, after, strict=True)]
    return math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in gradients))
