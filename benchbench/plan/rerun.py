"""Planned cases once more: as they were, or with one thing changed. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.environments.targets import read_interpreters, targets
from benchbench.errors import UsageError, member, unknown
from benchbench.launch import catalogue
from benchbench.launch.project import UserCode
from benchbench.machine.variables import check_variable
from benchbench.model.case import Cache, Case, Dtype, LeftOut
from benchbench.model.device import Probe, Target
from benchbench.model.options import Allocator, Isolation, number_of_threads
from benchbench.model.placement import ENVIRONMENT, VARIABLE
from benchbench.model.run import RunInfo, Settings
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, unsupported
from benchbench.plan.devices import Obstacle, devices_named
from benchbench.plan.suite import check_params
from benchbench.store.naming import bisect_of, fleet_of

T = TypeVar("T", bound=StrEnum)
REVISION = "rev:"


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


def replan(cases: Sequence[Case], probes: Sequence[Probe]) -> Plan:
    """The very same cases; those that cannot run any longer are left out with the reason."""
    by_name = {probe.target.name: probe for probe in probes}
    found = [(case, why_not(case, by_name[case.target])) for case in cases]
    left_out = [LeftOut(case=case, status=no.status, reason=no.reason) for case, no in found if no]
    return Plan(tuple(case for case, no in found if not no), tuple(left_out))


def present_cases(cases: Sequence[Case]) -> list[Case]:
    """The cases, with the present names of workloads that were renamed since."""
    workload_names = {case.workload for case in cases if not case.is_call}
    unknown_names = {name for name in workload_names if not catalogue.is_known(name)}
    if not unknown_names:
        return list(cases)
    names = catalogue.former_names()
    return [
        replace(case, workload=names[case.workload], formerly=case.workload)
        if case.workload in unknown_names and case.workload in names
        else case
        for case in cases
    ]


def why_not_resumed(info: RunInfo) -> str:
    """Why an interrupted run cannot be resumed, if so."""
    if info.partner:
        return "it is one side of a comparison, whose sides are measured together"
    if fleet := fleet_of(info.tags):
        return f"it is part of a fleet, which accelbench fleet --resume {fleet} finishes"
    if bisection := bisect_of(info.tags):
        return f"it is part of a bisection, which the same command with --resume {bisection} finishes"
    known = registry.entry_names("benchbench.backends")
    calls = any(case.is_call or case.backend not in known for case in info.plan)
    return "it called functions, which are not stored" if calls else ""


def why_not(case: Case, probe: Probe, code: UserCode | None = None) -> Obstacle | None:
    """Why a case cannot run on its target, if so; the user's workloads are those of `code`."""
    if probe.status != "ready":
        return Obstacle(
            Status.UNAVAILABLE, f"{probe.reason} → {probe.remedy}" if probe.remedy else probe.reason
        )
    device = next((device for device in probe.devices if device.name == case.device), None)
    if device is None:
        return Obstacle(Status.UNAVAILABLE, f"{case.target} has no device {case.device!r}")
    try:
        workload = catalogue.workload_named(case.workload, code)
        check_params(workload, dict(case.params))
        return unsupported(case, workload, probe, device)
    except UsageError as error:  # also for sizes that an earlier version took
        return Obstacle(Status.UNSUPPORTED, str(error))


def altered(
    case: Case, variant: Variant, probes: Sequence[Probe], pinned: Collection[str] | None = None
) -> Case:
    """The case with what `variant` changes.

    Under another backend it takes the mode of the same name, or for a usual mode that backend's usual one.
    `pinned`: the parameters that keep their values, None: all. Others take the variant's own defaults.
    """
    case, probe = _as_named_in(variant.code, case), _probe_for(case, variant, probes)
    case = case if pinned is None else _at_defaults_of(variant.code, case, pinned)
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
        threads=0 if "threads" in variant.settings else case.threads,
        environment={
            name: value for name, value in {**case.environment, **variant.environment}.items() if value
        },
    )


def _as_named_in(code: UserCode | None, case: Case) -> Case:
    """The case under the name that its workload has in that code: the former one before it was renamed."""
    if code is None or not case.formerly or _has(code, case.workload) or not _has(code, case.formerly):
        return case
    return replace(case, workload=case.formerly, formerly="")


def _at_defaults_of(code: UserCode | None, case: Case, pinned: Collection[str]) -> Case:
    """The case at the defaults that its workload has in that code, but for the pinned parameters."""
    chosen = {name: value for name, value in case.params.items() if name in pinned}
    with suppress(UsageError):  # what is wrong is told where the case is planned
        kind = catalogue.workload_named(case.workload, code)
        return case if isinstance(kind, type) else replace(case, params=kind(**chosen).params)
    return case


def _has(code: UserCode, workload: str) -> bool:
    with suppress(UsageError):
        return bool(catalogue.workload_named(workload, code))
    return False


def _probe_for(case: Case, variant: Variant, probes: Sequence[Probe]) -> Probe:
    """The probe of the target by name, else of its backend: the other side may have another interpreter."""
    name = variant.target.name if variant.target else case.target
    same = [probe for probe in probes if probe.target.name == name]
    return next(iter(same or [probe for probe in probes if probe.target.backend == case.backend]))


def _mode(case: Case, target: Target) -> str:
    if case.backend == target.backend:
        return case.mode
    own, other = _backend_named(case.backend).modes, _backend_named(target.backend).modes
    return other[0] if case.mode == own[0] or case.mode not in other else case.mode


def _backend_named(name: str) -> type[Backend]:
    return registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]


def parse_variant(text: str, given: Mapping[str, str] = MappingProxyType({})) -> Variant:
    """Parts by commas: each a target, an option, an interpreter or a revision. Raises UsageError.

    `given`: target → its interpreter, where it was named elsewhere.
    """
    found = Variant(text=text)
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _with(found, part, given)
    if found == Variant(text=text):
        raise UsageError(f"Cannot read the side {text!r}.", _ways())
    return found


def targets_of_variants(
    variants: Sequence[Variant], chosen: Sequence[Target], given: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[Target], list[Target]]:
    """The targets of either side.

    One without a target of its own has `chosen`, else the other's backend under this interpreter, else
    every backend.
    """
    a, b = (variant.target for variant in variants)
    return _targets(a, b, chosen, given), _targets(b, a, chosen, given)


def _targets(
    own: Target | None, other: Target | None, chosen: Sequence[Target], given: Mapping[str, str]
) -> list[Target]:
    if own:
        return [own]
    return list(chosen) or targets([other.backend] if other else [], given, sys.executable)


def _with(found: Variant, part: str, given: Mapping[str, str]) -> Variant:
    if part.startswith(REVISION):
        return replace(found, revision=part.removeprefix(REVISION))
    name, equals, value = part.partition("=")
    if name.startswith(ENVIRONMENT):
        return _with_variable(found, name.removeprefix(ENVIRONMENT), equals, value)
    if equals and name in OPTIONS:
        return OPTIONS[name](found, value)
    known = registry.entry_names("benchbench.backends")
    if equals and name.partition("@")[0] not in known:
        raise UsageError(f"No option or backend named {name!r}.", unknown("names", name, [*OPTIONS, *known]))
    (target,) = targets([name], {**given, **read_interpreters([part])} if equals else given, sys.executable)
    return replace(found, target=target)


def _with_variable(found: Variant, name: str, equals: str, value: str) -> Variant:
    if not equals or not VARIABLE.fullmatch(name):
        hint = f"Write {ENVIRONMENT}NAME=value, or {ENVIRONMENT}NAME= to leave it as it is."
        raise UsageError(f"Cannot read {ENVIRONMENT}{name}.", hint)
    check_variable(name)
    return replace(found, environment={**found.environment, name: value})


def _setting(name: str, read: Callable[[str], object]) -> Callable[[Variant, str], Variant]:
    return lambda found, text: replace(found, settings={**found.settings, name: read(text)})


OPTIONS: Mapping[str, Callable[[Variant, str], Variant]] = {
    "mode": lambda found, text: replace(found, mode=text),
    "dtype": lambda found, text: replace(found, dtype=member(Dtype, text)),
    "device": lambda found, text: replace(found, device=text),
    "cache": lambda found, text: replace(found, cache=member(Cache, text)),
    "threads": _setting("threads", number_of_threads),
    "allocator": _setting("allocator", lambda text: member(Allocator, text)),
    "isolation": _setting("isolation", lambda text: member(Isolation, text)),
}


def _ways() -> str:
    options = ", ".join(f"{name}=…" for name in OPTIONS)
    others = f"{ENVIRONMENT}NAME=value, NAME=/path/to/python, or {REVISION}REVISION"
    return f"A side is a backend, {options}, {others}."
