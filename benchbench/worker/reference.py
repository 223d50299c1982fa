"""What a case must give, in float64, and how far from it rounding may take each tensor.

Computed once a run for all backends, by a worker of our own interpreter; it travels as JSON.
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
    SPARED,
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

UNCALIBRATED = 2.0  # int8's scales are of the first inputs: what exceeds their range is cut
FLIPS_TOLERATED = 1.5  # times the error of ReLUs that rounding may turn: more of them than a program has
DRAWS = 3  # of a network's rounding
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def keep_freed_memory() -> None:
    """Have glibc give this process's freed memory out again, not back to the kernel (mallopt(3)).

    A reference makes and frees arrays of megabytes by the thousand, and the kernel would clear each one's
    pages: a quarter of the CPU time for ResNet-50's training.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def reference(
    workload: Workload, dtype: Dtype, standard: Standard | None = None, seed: int = SEED
) -> Reference:
    """The reference of `checked_at(workload)`, whose inputs and weights `standard` draws.

    `seed`: of the places at which an operation's outputs are compared.
    """
    workload = checked_at(workload)
    if isinstance(workload, Training):
        plain = asdict(_cached(workload, Dtype.FLOAT32, standard)) if dtype.is_narrow else None
        return replace(_cached(workload, dtype, standard), plain=plain)
    assert isinstance(workload, Operation)
    return _of_operation(workload, dtype, standard, seed)


def reference_in_float32(workload: Workload, standard: Standard | None = None) -> Reference:
    """The reference of an operation at its small size, which several sizes may share."""
    small = workload.tiny()
    assert isinstance(small, Operation)

    def made() -> dict[str, Any]:
        return asdict(_of_operation(small, Dtype.FLOAT32, standard))

    return Reference(**cached_result(f"small {type(small).__module__} {small}", made))


def _of_operation(
    workload: Operation, dtype: Dtype, standard: Standard | None, seed: int = SEED
) -> Reference:
    """Sampled elements of each output, of the first inputs and of `others`."""
    indices = sample_indices(workload, seed)

    def output(draw: Draw) -> dict[str, list[float]]:
        elements = workload.references(workload.arrays(draw), indices)
        found = {name: values.tolist() for name, values in elements.items()}
        return found | {name: [expectation] for name, (expectation, _) in workload.chance.items()}

    by_chance = {name: bound for name, (_, bound) in workload.chance.items()}
    is_drawn = workload.draws_tolerated and dtype is not Dtype.INT8
    tolerances = (
        drawn_tolerance(workload, dtype, standard)
        if is_drawn
        else dict.fromkeys(indices, tolerance(workload, dtype)) | by_chance
    )
    too_wide = [name for name, limit in tolerances.items() if is_drawn and limit > VERIFIABLE]
    return Reference(
        expected=output(Draw(dtype, standard=standard)),
        tolerance=tolerances,
        others=output(Draw(dtype, standard=standard, renewed=workload.is_input)),
        stretch=UNCALIBRATED if dtype is Dtype.INT8 else 1.0,
        seed=seed,
        unverified=f"rounding alone may take its {too_wide[0]} too far from float64" if too_wide else "",
    )


def drawn_tolerance(workload: Operation, dtype: Dtype, standard: Standard | None) -> dict[str, float]:
    """Output → how far rounding takes it: at `rounding_size`, and the longer sums of the size itself."""
    added = accumulation(workload.longest_sum, dtype)
    workload = workload.rounding_size()
    arrays, indices = workload.arrays(Draw(dtype, standard=standard)), sample_indices(workload)
    exact = workload.references(arrays, indices, Ops())
    draws = [workload.references(arrays, indices, ops) for ops in rounding_draws(dtype)]
    errors = {name: [relative_error(draw[name], exact[name]) for draw in draws] for name in exact}
    return {name: tolerated(errors[name], workload.draws_tolerated, dtype) + added for name in exact}


def _cached(workload: Training, dtype: Dtype, standard: Standard | None) -> Reference:
    """The result, kept: float32's is asked for with each narrower dtype, and each with every strategy."""
    name = f"{dtype} {type(workload).__module__} {workload} in {workload.replicas} replicas"
    return Reference(**cached_result(name, lambda: asdict(of_training(workload, dtype, standard))))


def of_training(workload: Training, dtype: Dtype, standard: Standard | None = None) -> Reference:
    """The reference of training, without the tensors that rounding alone takes too far in this dtype."""
    arrays = workload.arrays(Draw(dtype, standard=standard))
    flipping = flipping_in(dtype)
    watching = Watching(storage=flipping.storage, flipping=flipping)
    exact = trained(workload, arrays, Ops(watching))
    draws = [trained(workload, arrays, ops) for ops in rounding_draws(dtype)]
    errors = {name: [relative_error(draw[name], exact[name], SPARED) for draw in draws] for name in exact}
    for name, error in storage_errors(arrays, exact, PRECISIONS[dtype].storage.unit_roundoff).items():
        errors[name].append(error)
    if any(watching.noted):
        flipped = trained(workload, arrays, Ops(flipping))
        for name in exact:
            error = relative_error(flipped[name], exact[name], SPARED)
            errors[name].append(FLIPS_TOLERATED / DRAWS_TOLERATED * error)
    idle = {f"update of {name}" for name in workload.idle}
    kept = [name for name in exact if max(errors[name]) <= VERIFIABLE and name not in idle]
    return Reference(
        expected={name: exact[name].tolist() for name in kept},
        tolerance={name: tolerated(errors[name], DRAWS_TOLERATED, dtype) for name in kept},
        others={},
        spared=SPARED,
    )


def trained(workload: Training, arrays: Arrays, ops: Ops) -> Tensors:
    """Sampled elements of what `STEPS` steps leave, by the reference's operations `ops`."""
    import numpy as np

    def sampled(tensors: Tensors) -> Tensors:
        return {name: sampled_elements(name, tensor) for name, tensor in tensors.items()}

    steps = list(islice(workload.steps(arrays, ops), STEPS))
    start = sampled({name: arrays[name].astype(float) for name in steps[0].parameters})
    losses = np.array([step.loss for step in steps])
    return training_elements(
        losses,
        sampled(steps[0].state_gradients),
        sampled(steps[-1].state_gradients),
        start,
        sampled(steps[-1].parameters),
    )


def storage_errors(arrays: Arrays, exact: Tensors, unit_roundoff: float) -> dict[str, float]:
    """An update's parameter is rounded in each step, to steps of its own size, not of the update's."""
    import numpy as np

    sizes = {
        f"update of {name}": sampled_elements(name, array.astype(float)) for name, array in arrays.items()
    }

    def error(size: float, way: float) -> float:
        return math.sqrt(STEPS) * unit_roundoff * size / way if way else math.inf

    return {
        name: error(float(np.linalg.norm(sizes[name])), float(np.linalg.norm(update)))
        for name, update in exact.items()
        if name in sizes
    }


def flipping_in(dtype: Dtype) -> Flipping:
    """ReLUs whose inputs nearest to zero are on the other side, as rounding to the dtype may have them."""
    precision = PRECISIONS[dtype]
    unit = max(precision.multiply.unit_roundoff, precision.result.unit_roundoff)
    return Flipping(storage=precision.storage, unit_roundoff=unit)


def tolerated(errors: Sequence[float], factor: float, dtype: Dtype) -> float:
    """`factor` times the largest error of the draws, and no less than a rounding of the result."""
    wider = FLOAT64_FACTOR if dtype is Dtype.FLOAT64 else 1
    return wider * max(factor * max(errors), PRECISIONS[dtype].result.unit_roundoff)


def rounding_draws(dtype: Dtype) -> Iterator[Ops]:
    """Operations that round stochastically to the dtype, each otherwise."""
    import numpy as np

    for seed in range(DRAWS):
        yield Ops(rounding_to(dtype, np.random.default_rng(seed)))
