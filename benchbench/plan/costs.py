"""What a planned case needs at least, by its counted cost. Pure."""

from __future__ import annotations

from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload
from benchbench.model.case import Case
from benchbench.workloads.base import Workload


def footprint_bytes(case: Case) -> int:
    """At least what the case's tensors take: everything its cost counts, once."""
    return instance(case).cost(case.computes_in).bytes


def instance(case: Case) -> SizedWorkload:
    """The workload at the case's parameters, on its devices."""
    sized = catalogue.workload_at(case.workload, case.params)
    return sized.divided(case.placement) if isinstance(sized, Workload) else sized
