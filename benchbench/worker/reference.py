"""Float64 references of workloads, and the tolerance of each tensor.

A worker under this interpreter computes them once per run for all backends, and sends them as JSON.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchbench.model.case import Dtype
from benchbench.worker.random_cache import cached_result
from benchbench.worker.verify import (
    FLOAT64_FACTOR,
    OUTLIERS,
    STEPS,
    VERIFIABLE,
    Reference,
    accumulation,
    checked_at,
    relative_error,
    sample_indices,
    sampled_elements,
    tolerance,
    training_elements,
)
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads._reference.rounding import PRECISIONS, Flipping, Watching, rounding_to
from benchbench.workloads.base import SEED, Draw, Operation, Training, Workload
from benchbench.workloads.steps import DRAWS_TOLERATED

if TYPE_CHECKING:
    from benchbench.worker.verify import Tensors
    from benchbench.workloads.base import Arrays
    from benchbench.workloads.draw import Standard

INT8_STRETCH = 2.0  # tolerance factor for other inputs: int8 scales come from the first ones and clip these
# Tolerance as a multiple of the error when every ReLU near zero is flipped; a program flips fewer.
FLIPS_TOLERATED = 1.5
DRAWS = 3  # rounding draws of a network
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the kernel (mallopt(3)).

    A reference allocates and frees thousands of arrays of megabytes, and the kernel would clear their pages
    each time. This saves a quarter of the CPU time for ResNet-50's training.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def reference(
    workload: Workload, dtype: Dtype, standard: Standard | None = None, seed: int = SEED
) -> Reference:
    """Reference of `checked_at(workload)`, with inputs and weights drawn by `standard`.

    `seed` selects the elements at which an operation's outputs are compared.
    """
    workload = checked_at(workload)
    if isinstance(workload, Training):
        float32_reference = (
            asdict(_cached_training(workload, Dtype.FLOAT32, standard)) if dtype.is_narrow else None
        )
        return replace(_cached_training(workload, dtype, standard), float32=float32_reference)
    assert isinstance(workload, Operation)
    return _operation_reference(workload, dtype, standard, seed)


def reference_in_float32(workload: Workload, standard: Standard | None = None) -> Reference:
    """Reference of an operation at its small size in float32, which several sizes share."""
    small = workload.tiny()
    assert isinstance(small, Operation)

    def compute() -> dict[str, Any]:
        return asdict(_operation_reference(small, Dtype.FLOAT32, standard))

    return Reference(**cached_result(f"small {type(small).__module__} {small}", compute))


def _operation_reference(
    workload: Operation, dtype: Dtype, standard: Standard | None, seed: int = SEED
) -> Reference:
    """Sampled elements of each output for the first and the other inputs, with tolerances."""
    indices = sample_indices(workload, seed)

    def output(draw: Draw) -> dict[str, list[float]]:
        elements = workload.references(workload.arrays(draw), indices)
        sampled = {name: values.tolist() for name, values in elements.items()}
        return sampled | {name: [expectation] for name, (expectation, _) in workload.chance.items()}

    chance_bounds = {name: bound for name, (_, bound) in workload.chance.items()}
    is_drawn = workload.draws_tolerated and dtype is not Dtype.INT8
    tolerances = (
        drawn_tolerance(workload, dtype, standard)
        if is_drawn
        else dict.fromkeys(indices, tolerance(workload, dtype)) | chance_bounds
    )
    unverifiable = [name for name, limit in tolerances.items() if is_drawn and limit > VERIFIABLE]
    return Reference(
        expected=output(Draw(dtype, standard=standard)),
        tolerance=tolerances,
        others=output(Draw(dtype, standard=standard, renewed=workload.is_input)),
        other_tolerance=(
            {name: INT8_STRETCH * limit for name, limit in tolerances.items()} if dtype is Dtype.INT8 else {}
        ),
        seed=seed,
        unverified=(
            f"rounding alone may move its {unverifiable[0]} too far from float64" if unverifiable else ""
        ),
    )


def drawn_tolerance(workload: Operation, dtype: Dtype, standard: Standard | None) -> dict[str, float]:
    """Tolerance of each output: the error drawn at `rounding_size`, plus the error of full-size sums."""
    accumulation_error = accumulation(workload.longest_sum, dtype)
    workload = workload.rounding_size()
    arrays, indices = workload.arrays(Draw(dtype, standard=standard)), sample_indices(workload)
    exact = workload.references(arrays, indices, Ops())
    draws = [workload.references(arrays, indices, ops) for ops in rounding_draws(dtype)]
    errors = {name: [relative_error(draw[name], exact[name]) for draw in draws] for name in exact}
    return {
        name: tolerance_of_draws(errors[name], workload.draws_tolerated, dtype) + accumulation_error
        for name in exact
    }


def _cached_training(workload: Training, dtype: Dtype, standard: Standard | None) -> Reference:
    """The reference of training, cached: each narrower dtype also needs float32's, for each strategy."""
    name = f"{dtype} {type(workload).__module__} {workload} in {workload.replicas} replicas"
    return Reference(**cached_result(name, lambda: asdict(training_reference(workload, dtype, standard))))


def training_reference(workload: Training, dtype: Dtype, standard: Standard | None = None) -> Reference:
    """Reference of training without the tensors that rounding alone moves too far in this dtype."""
    arrays = workload.arrays(Draw(dtype, standard=standard))
    flipping = flipping_for(dtype)
    watching = Watching(storage=flipping.storage, flipping=flipping)
    exact = reference_elements(workload, arrays, Ops(watching))
    draws = [reference_elements(workload, arrays, ops) for ops in rounding_draws(dtype)]
    errors = {name: [relative_error(draw[name], exact[name], OUTLIERS) for draw in draws] for name in exact}
    for name, error in storage_errors(arrays, exact, PRECISIONS[dtype].storage.unit_roundoff).items():
        errors[name].append(error)
    if any(watching.noted):
        flipped = reference_elements(workload, arrays, Ops(flipping))
        for name in exact:
            error = relative_error(flipped[name], exact[name], OUTLIERS)
            errors[name].append(FLIPS_TOLERATED / DRAWS_TOLERATED * error)
    unchanged = {f"update of {name}" for name in workload.idle}
    names = [name for name in exact if max(errors[name]) <= VERIFIABLE and name not in unchanged]
    return Reference(
        expected={name: exact[name].tolist() for name in names},
        tolerance={name: tolerance_of_draws(errors[name], DRAWS_TOLERATED, dtype) for name in names},
        others={},
        outliers=OUTLIERS,
    )


def reference_elements(workload: Training, arrays: Arrays, ops: Ops) -> Tensors:
    """Sampled elements after `STEPS` steps, computed with the operations `ops`."""
    import numpy as np

    def sample(tensors: Tensors) -> Tensors:
        return {name: sampled_elements(name, tensor) for name, tensor in tensors.items()}

    steps = list(islice(workload.steps(arrays, ops), STEPS))
    start = sample({name: arrays[name].astype(float) for name in steps[0].parameters})
    losses = np.array([step.loss for step in steps])
    return training_elements(
        losses,
        sample(steps[0].state_gradients),
        sample(steps[-1].state_gradients),
        start,
        sample(steps[-1].parameters),
    )


def storage_errors(arrays: Arrays, exact: Tensors, unit_roundoff: float) -> dict[str, float]:
    """Errors of updates from storing the parameter in each step, rounded relative to its own size."""
    import numpy as np

    sizes = {
        f"update of {name}": sampled_elements(name, array.astype(float)) for name, array in arrays.items()
    }

    def error(parameter_size: float, update_size: float) -> float:
        return math.sqrt(STEPS) * unit_roundoff * parameter_size / update_size if update_size else math.inf

    return {
        name: error(float(np.linalg.norm(sizes[name])), float(np.linalg.norm(update)))
        for name, update in exact.items()
        if name in sizes
    }


def flipping_for(dtype: Dtype) -> Flipping:
    """Flip the ReLUs whose inputs are nearest to zero, as rounding to the dtype may do."""
    precision = PRECISIONS[dtype]
    unit = max(precision.multiply.unit_roundoff, precision.result.unit_roundoff)
    return Flipping(storage=precision.storage, unit_roundoff=unit)


def tolerance_of_draws(errors: Sequence[float], factor: float, dtype: Dtype) -> float:
    """`factor` times the largest error of the draws, but at least a rounding of the result."""
    float64_factor = FLOAT64_FACTOR if dtype is Dtype.FLOAT64 else 1
    return float64_factor * max(factor * max(errors), PRECISIONS[dtype].result.unit_roundoff)


def rounding_draws(dtype: Dtype) -> Iterator[Ops]:
    """Operations that round stochastically to the dtype, with different seeds."""
    import numpy as np

    for seed in range(DRAWS):
        yield Ops(rounding_to(dtype, np.random.default_rng(seed)))
