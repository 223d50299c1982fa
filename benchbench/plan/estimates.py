"""Estimate the duration of a run before its first round, from counted work at a reference machine's speed.
Pure.

After the first round, the measured durations replace the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from benchbench.analyse.digest import CaseDigest
from benchbench.backends.base import backend_class
from benchbench.errors import UsageError
from benchbench.launch import catalogue
from benchbench.launch.catalogue import SizedWorkload, WorkloadKind
from benchbench.launch.project import UserCode
from benchbench.model.case import Case, Dtype, Phase, Scalar
from benchbench.model.device import DeviceClass, Probe, StartUp
from benchbench.model.measurement import Cost
from benchbench.model.placement import Placement
from benchbench.model.run import Policy
from benchbench.timing.policy import for_accelerator, profiled_steps
from benchbench.workloads.base import Workload
from benchbench.workloads.network import Network

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
    kind = catalogue.workload_named(case.workload, code)
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
        model=work.model_facts,
    )


def sized(kind: WorkloadKind, case: Case) -> SizedWorkload:
    """Workload with the case's parameters, on its devices. Raises UsageError for an unknown parameter."""
    if isinstance(kind, type):
        return _shipped(kind, tuple(case.params.items()), case.placement)
    return kind(**case.params)


@lru_cache(maxsize=CACHE_SIZE)
def _shipped(kind: type[Workload], params: tuple[tuple[str, Scalar], ...], placement: Placement) -> Workload:
    return kind(**dict(params)).divided(placement)


# All constants were measured on two cores of a virtual machine (docs/measuring.md#how-long-a-run-takes).
FLOPS = {DeviceClass.CPU: 1.5e11, DeviceClass.ACCELERATOR: 2e13}  # per second, in float32
BYTES = {DeviceClass.CPU: 1e10, DeviceClass.ACCELERATOR: 1e12}  # per second
SLOWER = {Dtype.FLOAT64: 2.0, Dtype.FLOAT16: 4.0, Dtype.BFLOAT16: 4.0}  # multiples of float32's time on a CPU
NETWORK = 1.5  # a network's time divided by that of its matrix products
CORES = 2
FORK_S = 0.1  # to start a process, and for all stages not listed here
MIN_BLOCK_S = 1.4e-3  # a block has a power of two of steps and lasts at least 1 ms
DRAW_S = 3.5e-9  # per byte of inputs or weights, to generate it and copy it to the device
WITH_LEAD_IN = 1.4  # a turn with its untimed first steps, stopping and waking, divided by its timed part
REFERENCE_S, NETWORK_REFERENCE_S = 0.2, 1.0  # reference in float64 of an operation and of a network
TRAINED_S = 1.5  # to verify training at a small size, without compilation

Classes = Mapping[tuple[str, str], DeviceClass]  # by target and device


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """Estimated seconds of a run, by stage."""

    importing: float  # importing frameworks, once per heat or run
    verifying: float  # references, and verification before timing
    measuring: float  # all processes of all rounds
    profiling: float

    @property
    def total(self) -> float:
        """Seconds from the command's start to its end."""
        return self.importing + self.verifying + self.measuring + self.profiling


def run_estimate(
    cases: Sequence[Case],
    policy: Policy,
    classes: Classes,
    *,
    profile: bool = False,
) -> RunEstimate:
    """Estimate a run that measures these cases in all planned rounds, or uses up its budget."""
    measuring = sum(_rounds_s(case, policy, classes) for case in cases)
    return RunEstimate(
        importing=_import_s(cases, policy.rounds if policy.reimports else 1),
        verifying=_verification_s(cases),
        measuring=max(measuring, policy.budget_s or 0.0),
        profiling=sum(_profile_s(case, classes) for case in cases) if profile else 0.0,
    )


def process_s(case: Case, policy: Policy, classes: Classes, *, first: bool = False) -> float:
    """Seconds of one process of the case; `first`: the run's first one, which compiles."""
    if backend_class(case.backend).virtual:
        return FORK_S
    if case.is_call:  # unknown duration: assume that of most calls
        return FORK_S + policy.warmup_min_s + policy.max_s
    if classes[case.target, case.device] is DeviceClass.ACCELERATOR:
        policy = for_accelerator(policy)
    step = _step_s(case, classes)
    return _prepared_s(case, first=first) + _timing_s(step, policy)


def device_classes(probes: Iterable[Probe]) -> dict[tuple[str, str], DeviceClass]:
    """Device classes by target and device."""
    return {
        (probe.target.name, device.name): device.device_class for probe in probes for device in probe.devices
    }


def _rounds_s(case: Case, policy: Policy, classes: Classes) -> float:
    later_s = (policy.rounds - 1) * process_s(case, policy, classes)
    return process_s(case, policy, classes, first=True) + later_s


def _prepared_s(case: Case, *, first: bool) -> float:
    """Seconds before timing. The first process of a run compiles what later ones may find in a cache."""
    compiling_s = _compile_s(case) * (1.0 if first else _start_up(case).warm_fraction)
    work = instance(case)
    drawn_bytes = cost_of(case).bytes
    if isinstance(work, Network):
        drawn_bytes = 2 * _weight_bytes(work, work.placement)
    return FORK_S + DRAW_S * drawn_bytes + compiling_s


def _compile_s(case: Case) -> float:
    startup = _start_up(case)
    return startup.call_s + startup.layer_s * _layers(case)


def _timing_s(step: float, policy: Policy) -> float:
    """Seconds of warm-up and turns."""
    block = max(step, MIN_BLOCK_S)
    windows_s = 8 / 3 * min(max(3 * block, policy.window_s), 20 * block)  # windows overlap, as in warm_up
    warm = min(max(policy.warmup_min_s, windows_s), max(policy.warmup_max_s, policy.warmup_min_blocks * step))
    turns = policy.cycles * max(WITH_LEAD_IN * policy.turn_s, step)
    return warm + min(turns, max(policy.max_s, policy.min_cycles * step))


def _step_s(case: Case, classes: Classes) -> float:
    device_class = classes[case.target, case.device]
    cost = cost_of(case)
    slower = SLOWER.get(case.computes_in, 1.0) if device_class is DeviceClass.CPU else 1.0
    network = NETWORK if _layers(case) else 1.0
    return network * max(slower * cost.flops / FLOPS[device_class], cost.bytes / BYTES[device_class])


def _import_s(cases: Iterable[Case], rounds: int) -> float:
    """Seconds to import frameworks in all rounds, in parallel as far as there are cores."""
    templates = {
        (case.target, case.threads, *sorted(case.environment.items())): _start_up(case) for case in cases
    }
    import_times = [startup.import_s for startup in templates.values()]
    return max([rounds * sum(import_times) / CORES, *import_times])


def _verification_s(cases: Sequence[Case]) -> float:
    """Seconds of verification before timing: a reference per work, and training at a small size."""
    computed = [case for case in cases if not backend_class(case.backend).virtual]
    works = {case.work: case for case in computed}.values()
    references = sum(NETWORK_REFERENCE_S if _layers(case) else REFERENCE_S for case in works)
    training = sum(TRAINED_S + _compile_s(case) for case in computed if case.phase is Phase.TRAIN)
    return references + training / CORES


def _profile_s(case: Case, classes: Classes) -> float:
    step = max(_step_s(case, classes), 1e-6)
    return _prepared_s(case, first=False) + _start_up(case).profile_s + 2 * profiled_steps(step) * step


def _start_up(case: Case) -> StartUp:
    """Start-up times of the case's backend in the case's mode."""
    backend = backend_class(case.backend)
    return backend.mode_start_ups.get(case.mode, backend.start_up)


def _layers(case: Case) -> float:
    """Number of layer applications in a step of a network; training counts three times. 0 for operations."""
    work = instance(case)
    return _passes(work, work.placement) if isinstance(work, Network) else 0


# Networks with different placements compare equal, so the placement is part of the key.
@lru_cache(maxsize=CACHE_SIZE)
def _passes(network: Network, _placement: Placement) -> float:
    return sum(times for times, _ in network.passes())


@lru_cache(maxsize=CACHE_SIZE)
def _weight_bytes(network: Network, _placement: Placement) -> int:
    """Bytes of the weights in float32."""
    return sum(4 * math.prod(weight.shape) for weight in network.weights().values())
