"""Counted cost of a planned case, and a lower bound of its memory. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from benchbench.analyse.digest import CaseDigest
from benchbench.errors import UsageError
from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload, WorkloadKind
from benchbench.launch.project import UserCode
from benchbench.launch.user_models import UserModelSize
from benchbench.model.case import Case, Dtype, Scalar
from benchbench.model.measurement import Cost
from benchbench.model.placement import Placement
from benchbench.workloads.base import Workload

CACHE_SIZE = 4096  # cached workloads and costs, which all targets, modes and dtypes share


def footprint_bytes(case: Case, code: UserCode | None = None) -> int:
    """Lower bound of the memory for the case's tensors: everything its cost counts, once."""
    return cost_of(case, code).bytes


def cost_of(case: Case, code: UserCode | None = None) -> Cost:
    """Counted cost of a step on the case's devices. `code`: as in `catalogue.workload_named`."""
    work = instance(case, code)
    if not isinstance(work, Workload):
        return work.cost(case.computes_in)
    return _counted(work, work.placement, case.computes_in)


@lru_cache(maxsize=CACHE_SIZE)
def _counted(sized: Workload, _placement: Placement, dtype: Dtype) -> Cost:
    """Compute a cost once for all targets and modes."""
    return sized.cost(dtype)


def instance(case: Case, code: UserCode | None = None) -> SizedWorkload:
    """Workload with the case's parameters, on its devices; parameters that this code lacks are ignored."""
    kind = catalogue.present_workload(case.workload, code)
    params = {name: value for name, value in case.params.items() if name in kind.fields()}
    return sized(kind, case if len(params) == len(case.params) else replace(case, params=params))


def planned_work(case: Case, code: UserCode | None = None) -> CaseDigest | None:
    """Work of a case before it is measured, or None if this code does not have it."""
    try:
        work = instance(case, code)
        cost, version = cost_of(case, code), catalogue.work_version(case.workload, case.params, code)
    except UsageError:
        return None
    return CaseDigest(
        case=case,
        rounds=(0,),
        cost=cost,
        workload_version=version,
        model=work.facts if isinstance(work, UserModelSize) else None,
    )


def sized(kind: WorkloadKind, case: Case) -> SizedWorkload:
    """Workload with the case's parameters, on its devices. Raises UsageError for an unknown parameter."""
    if isinstance(kind, type):
        return _shipped(kind, tuple(case.params.items()), case.placement)
    return kind(**case.params)


@lru_cache(maxsize=CACHE_SIZE)
def _shipped(kind: type[Workload], params: tuple[tuple[str, Scalar], ...], placement: Placement) -> Workload:
    return kind(**dict(params)).divided(placement)
