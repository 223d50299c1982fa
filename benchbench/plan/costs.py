"""The counted cost of a planned case, and the memory that it needs at least. Pure."""

from __future__ import annotations

from functools import lru_cache

from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload
from benchbench.model.case import Case, Dtype, Scalar
from benchbench.model.measurement import Cost
from benchbench.model.placement import Placement
from benchbench.workloads.base import Workload

KEPT = 4096  # instances, and counts of them: a plan asks again for each target, mode and dtype


def footprint_bytes(case: Case) -> int:
    """A lower bound of the memory that the case's tensors take: everything its cost counts, once."""
    return cost_of(case).bytes


def cost_of(case: Case) -> Cost:
    """The counted cost of a step on the case's devices."""
    sized = instance(case)
    if not isinstance(sized, Workload):
        return sized.cost(case.computes_in)
    return _counted(sized, sized.placement, case.computes_in)


@lru_cache(maxsize=KEPT)
def _counted(sized: Workload, _placement: Placement, dtype: Dtype) -> Cost:
    """The counted cost, computed once for all targets and modes, since it does not depend on them."""
    return sized.cost(dtype)


def instance(case: Case) -> SizedWorkload:
    """The workload at the case's parameters, on its devices."""
    kind = catalogue.kind_of(case.workload)
    if isinstance(kind, type):
        return _shipped(kind, tuple(case.params.items()), case.placement)
    return kind(**case.params)


@lru_cache(maxsize=KEPT)
def _shipped(kind: type[Workload], params: tuple[tuple[str, Scalar], ...], placement: Placement) -> Workload:
    return kind(**dict(params)).divided(placement)
