"""What a planned case is likely to take: seconds and bytes, by its counted cost. Pure."""

from __future__ import annotations

from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload
from benchbench.model.case import Case
from benchbench.model.device import DeviceClass
from benchbench.model.run import Policy
from benchbench.workloads.base import Workload

HOST_FLOPS, ACCELERATOR_FLOPS = 5e10, 2e13  # per second: only the estimate before the first round uses them
SATURATED_S = 0.25  # likewise: a step that keeps a device busy so long gains nothing by being doubled
PROCESS_S, IMPORT_S = 1.0, 5.0  # likewise: to fork and build a case, to import a framework


def estimate_s(case: Case, policy: Policy, device_class: DeviceClass) -> float:
    """Seconds one process of the case is likely to take; rough, until a first round has been measured."""
    rate = HOST_FLOPS if device_class is DeviceClass.CPU else ACCELERATOR_FLOPS
    step = instance(case).cost(case.computes_in).flops / rate
    if case.doubles and step > SATURATED_S:
        return 0.0
    windows_s = 8 / 3 * max(3 * step, min(policy.window_s, 20 * step))  # overlapping ones, as in warm_up
    warm = min(max(policy.warmup_min_s, windows_s), max(policy.warmup_max_s, policy.warmup_min_blocks * step))
    timed = max(policy.min_s, 5 * step)
    return PROCESS_S + warm + min(timed, max(policy.max_s, step))


def footprint_bytes(case: Case) -> int:
    """At least what the case's tensors take: everything its cost counts, once."""
    return instance(case).cost(case.computes_in).bytes


def instance(case: Case) -> SizedWorkload:
    """The workload at the case's parameters, on its devices."""
    sized = catalogue.workload_at(case.workload, case.params)
    return sized.divided(case.placement) if isinstance(sized, Workload) else sized
