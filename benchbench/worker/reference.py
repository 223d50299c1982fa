"""What a case must give, in float64, and how far from it rounding may take each tensor.

Computed once a run for all backends, by a worker of our own interpreter; it travels as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchbench.model.case import Dtype
from benchbench.worker.tolerance import LAMBDA, tolerance
from benchbench.worker.verify import STEPS, Reference, checked_at, sample_indices
from benchbench.workloads.base import Draw, Operation, Training, Workload

if TYPE_CHECKING:
    from benchbench.workloads.base import Standard

UNCALIBRATED = 2.0  # int8's scales are of the first inputs: what exceeds their range is cut


def reference(workload: Workload, dtype: Dtype, standard: Standard | None = None) -> Reference:
    """Of `checked_at(workload)`, whose inputs and weights `standard` draws."""
    workload = checked_at(workload)
    if isinstance(workload, Operation):
        return _of_operation(workload, dtype, standard)
    assert isinstance(workload, Training)
    return _of_training(workload, dtype, standard)


def _of_operation(workload: Operation, dtype: Dtype, standard: Standard | None) -> Reference:
    """Sampled elements of each output, of the first inputs and of `others`."""
    indices = sample_indices(workload)

    def output(draw: Draw) -> dict[str, list[float]]:
        elements = workload.references(workload.arrays(draw), indices)
        return {name: values.tolist() for name, values in elements.items()}

    return Reference(
        expected=output(Draw(dtype, standard=standard)),
        tolerance=dict.fromkeys(indices, tolerance(workload, dtype)),
        others=output(Draw(dtype, standard=standard, renewed=workload.is_input)),
        stretch=UNCALIBRATED if dtype is Dtype.INT8 else 1.0,
    )


def _of_training(workload: Training, dtype: Dtype, standard: Standard | None) -> Reference:
    losses, norms = zip(
        *workload.reference(workload.arrays(Draw(dtype, standard=standard)), STEPS), strict=True
    )
    limit = LAMBDA * tolerance(workload, dtype)
    return Reference(
        expected={"loss": losses, "gradient norm": norms},
        tolerance={"loss": limit, "gradient norm": limit},
        others={},
    )
