"""Planned cases once more: as they were, or with one thing changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.errors import UsageError
from benchbench.launch import catalogue
from benchbench.launch.project import UserCode
from benchbench.model.case import Cache, Case, Dtype, LeftOut
from benchbench.model.device import Probe, Target
from benchbench.model.run import RunInfo, Settings
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, unsupported
from benchbench.plan.devices import Reason, devices_named
from benchbench.plan.suite import check_params
from benchbench.store.tags import fleet_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What one side of a comparison changes of a plan; `settings` are fields of Settings.

    `revision`: a git revision of the user's own code; `code`: where that is checked out. `text` is what was
    typed.
    """

    text: str
    target: Target | None = None
    revision: str = ""
    code: UserCode | None = None
    mode: str = ""
    dtype: Dtype | None = None
    device: str = ""
    cache: Cache | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # "" takes a variable away
    settings: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, settings: Settings) -> Settings:
        """`settings` with what this side changes of them."""
        return replace(settings, **self.settings)


def again(cases: Sequence[Case], probes: Sequence[Probe]) -> Plan:
    """The very same cases; those that cannot run any longer are left out with the reason."""
    by_name = {probe.target.name: probe for probe in probes}
    found = [(case, obstacle(case, by_name[case.target])) for case in cases]
    left_out = [LeftOut(case=case, status=reason[0], reason=reason[1]) for case, reason in found if reason]
    return Plan(tuple(case for case, reason in found if not reason), tuple(left_out))


def resume_obstacle(info: RunInfo) -> str:
    """Why an interrupted run cannot be resumed, if so."""
    if info.partner:
        return "it is one side of a comparison, whose sides are measured together"
    if fleet := fleet_of(info.tags):
        return f"it is part of a fleet, which accelbench fleet --resume {fleet} finishes"
    known = registry.entry_names("benchbench.backends")
    return "" if all(case.backend in known for case in info.plan) else "only its tests can measure it"


def obstacle(case: Case, probe: Probe, code: UserCode | None = None) -> Reason:
    """Why a case cannot run on its target, if so; the user's workloads are those of `code`."""
    if probe.status != "ready":
        return Status.UNAVAILABLE, f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
    device = next((device for device in probe.devices if device.name == case.device), None)
    if device is None:
        return Status.UNAVAILABLE, f"{case.target} has no device {case.device!r}"
    try:
        workload = catalogue.workload_named(case.workload, code)
        check_params(workload, dict(case.params))
        return unsupported(case, workload, probe, device)
    except UsageError as error:  # also for sizes that an earlier version took
        return Status.UNSUPPORTED, str(error)


def altered(case: Case, variant: Variant, probes: Sequence[Probe]) -> Case:
    """The case with what `variant` changes.

    Under another backend it takes the mode of the same name, or for a usual mode that backend's usual one.
    """
    probe = _probe_for(case, variant, probes)
    want = variant.device or case.device
    named = devices_named(probe, want) if probe.status == "ready" else []
    return replace(
        case,
        target=probe.target.name,
        backend=probe.target.backend,
        device=named[0][0].name if named else want,
        mode=variant.mode or _mode(case, probe.target),
        dtype=variant.dtype or case.dtype,
        cache=variant.cache or case.cache,
        environment={
            name: value for name, value in {**case.environment, **variant.environment}.items() if value
        },
    )


def _probe_for(case: Case, variant: Variant, probes: Sequence[Probe]) -> Probe:
    """Of the target by name, else one of its backend: the other side may have another interpreter."""
    name = variant.target.name if variant.target else case.target
    same = [probe for probe in probes if probe.target.name == name]
    return next(iter(same or [probe for probe in probes if probe.target.backend == case.backend]))


def _mode(case: Case, target: Target) -> str:
    if case.backend == target.backend:
        return case.mode
    own, other = _backend_named(case.backend).modes, _backend(target).modes
    return other[0] if case.mode == own[0] or case.mode not in other else case.mode


def _backend(target: Target) -> type[Backend]:
    return _backend_named(target.backend)


def _backend_named(name: str) -> type[Backend]:
    return registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
