"""The counted cost of a planned case, and the memory that it needs at least. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from benchbench.analyse.digest import CaseDigest
from benchbench.errors import UsageError
from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload, WorkloadKind
from benchbench.launch.own_models import OwnModelSize
from benchbench.launch.project import UserCode
from benchbench.model.case import Case, Dtype, Scalar
from benchbench.model.measurement import Cost
from benchbench.model.placement import Placement
from benchbench.workloads.base import Workload

KEPT = 4096  # instances, and counts of them: a plan asks again for each target, mode and dtype


def footprint_bytes(case: Case, code: UserCode | None = None) -> int:
    """A lower bound of the memory that the case's tensors take: everything its cost counts, once."""
    return cost_of(case, code).bytes


def cost_of(case: Case, code: UserCode | None = None) -> Cost:
    """The counted cost of a step on the case's devices. `code`: as in `catalogue.workload_named`."""
    work = instance(case, code)
    if not isinstance(work, Workload):
        return work.cost(case.computes_in)
    return _counted(work, work.placement, case.computes_in)


@lru_cache(maxsize=KEPT)
def _counted(sized: Workload, _placement: Placement, dtype: Dtype) -> Cost:
    """The counted cost, computed once for all targets and modes, since it does not depend on them."""
    return sized.cost(dtype)


def instance(case: Case, code: UserCode | None = None) -> SizedWorkload:
    """The workload at the case's parameters, on its devices; without those that only other code of it has."""
    kind = catalogue.kind_of(case.workload, code)
    known = {name: value for name, value in case.params.items() if name in kind.fields()}
    return sized(kind, case if len(known) == len(case.params) else replace(case, params=known))


def planned_work(case: Case, code: UserCode | None = None) -> CaseDigest | None:
    """The work of a case before it is measured; None if the case has none in that code."""
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
        model=work.facts if isinstance(work, OwnModelSize) else None,
    )


def sized(kind: WorkloadKind, case: Case) -> SizedWorkload:
    """A workload at the case's parameters, on its devices. Raises UsageError for an unknown parameter."""
    if isinstance(kind, type):
        return _shipped(kind, tuple(case.params.items()), case.placement)
    return kind(**case.params)


@lru_cache(maxsize=KEPT)
def _shipped(kind: type[Workload], params: tuple[tuple[str, Scalar], ...], placement: Placement) -> Workload:
    return kind(**dict(params)).divided(placement)
