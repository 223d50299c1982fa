"""Every workload at its tiny size."""

from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from benchbench import registry
from benchbench.model.case import Dtype
from benchbench.worker import verify
from benchbench.worker.verify import Reference, checked_at
from benchbench.workloads._reference.ops import Ops
from benchbench.workloads._reference.rounding import rounding_to
from benchbench.workloads.base import Draw, Training, Workload

EVERY = {
    name: registry.load_class("benchbench.workloads", name, Workload)  # type: ignore[type-abstract]
    for name in registry.entry_names("benchbench.workloads")
}
NAMES = [name for name, kind in EVERY.items() if 1 in kind.worlds]  # COLLECTIVES need several devices
COLLECTIVES = [name for name in EVERY if name not in NAMES]


def tiny(name: str, **sizes: Any) -> Any:
    return replace(EVERY[name]().tiny(), **sizes)  # type: ignore[type-var]


def parameters_of(network: Any) -> int:
    """The number of values that a network learns."""
    return sum(prod(weight.shape) for weight in network.weights().values() if weight.is_learnt)


def variants(name: str) -> list[Workload]:
    """The tiny workload, and a variant with each boolean parameter negated."""
    work = tiny(name)
    flags = [key for key, value in work.params.items() if isinstance(value, bool)]
    return [work] + [type(work)(**{**work.params, flag: not work.params[flag]}) for flag in flags]


def flags(work: Workload) -> str:
    """A suffix for each true parameter, such as `-causal`."""
    return "".join(f"-{key}" for key, value in work.params.items() if value is True)


@cache
def reference_of(work: Workload, dtype: Dtype) -> Reference:
    """The reference of a run, cached; that of training below float32 is for that dtype only."""
    from benchbench.worker.reference import reference, training_reference

    small = checked_at(work)
    return training_reference(small, dtype) if isinstance(small, Training) else reference(small, dtype)


def error_ratio(
    work: Workload, dtype: Dtype, ops: type[Ops] = Ops, arrays: Any = None, computed_by: Any = None
) -> float:
    """The error of a program with these operations, rounded to nearest, as a multiple of the tolerance."""
    from benchbench.worker.reference import reference_elements

    program: Any = computed_by or work
    inputs = program.arrays(Draw(dtype)) if arrays is None else arrays
    rounded = ops(rounding_to(dtype, np.random.default_rng(7), nearest=True))
    if isinstance(work, Training):
        elements = reference_elements(program, inputs, rounded)
    else:
        elements = program.references(inputs, verify.sample_indices(program), rounded)
    exact = reference_of(work, dtype)
    return verify.worst(elements, exact.expected, exact.tolerance, exact.outliers).ratio


WORKS = [(f"{name}{flags(work)}", name, work) for name in NAMES for work in variants(name)]  # by id
