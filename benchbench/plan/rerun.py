"""Plan stored cases again, unchanged or with one change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.environments.interpreters import check_interpreters, targets
from benchbench.errors import UsageError, member, unknown
from benchbench.launch import catalogue
from benchbench.launch.project import UserCode
from benchbench.machine.variables import check_variable
from benchbench.model.case import Cache, Case, Dtype, Status
from benchbench.model.device import Probe, Target
from benchbench.model.options import REVISION, Allocator, Isolation, number_of_threads, parse_interpreters
from benchbench.model.placement import ENVIRONMENT, VARIABLE
from benchbench.model.run import Settings
from benchbench.plan.cases import Obstacle, Plan, devices_named, support_obstacle, unavailable
from benchbench.plan.suite import check_params

T = TypeVar("T", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Change of a plan for one side of a comparison; `text` is the typed form.

    `settings`: fields of Settings. `revision`: a git revision of the user's code, checked out in `code`.
    """

    text: str
    target: Target | None = None
    revision: str = ""
    code: UserCode | None = None
    mode: str = ""
    dtype: Dtype | None = None
    device: str = ""
    cache: Cache | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # "" removes a variable
    settings: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, settings: Settings) -> Settings:
        """Settings with the changes of this side."""
        return replace(settings, **self.settings)


def replan(cases: Sequence[Case], probes: Sequence[Probe]) -> Plan:
    """Plan the same cases; those that can no longer run are left out with the reason."""
    by_name = {probe.target.name: probe for probe in probes}
    everything = Plan(tuple(cases), ())
    return everything.without(lambda case: obstacle_of(case, by_name[case.target]))


def obstacle_of(case: Case, probe: Probe, code: UserCode | None = None) -> Obstacle | None:
    """Obstacle of a case on its target, if any; `code`: the user's workloads."""
    if probe.status != "ready":
        return unavailable(probe)
    device = next((device for device in probe.devices if device.name == case.device), None)
    if device is None:
        return Obstacle(Status.UNAVAILABLE, f"{case.target} has no device {case.device!r}")
    try:
        workload = catalogue.workload_named(case.workload, code)
        check_params(workload, dict(case.params))
        return support_obstacle(case, workload, probe, device)
    except UsageError as error:  # also for sizes that only an earlier version accepted
        return Obstacle(Status.UNSUPPORTED, str(error))


def apply_variant(
    case: Case, variant: Variant, probes: Sequence[Probe], pinned: Collection[str] | None = None
) -> Case:
    """Apply a variant to a case.

    On another backend, the mode of the same name is used, or that backend's default mode instead of a default
    mode. `pinned`: parameters that keep their values, None: all. Others take the defaults of the variant's
    code.
    """
    probe = _probe_for(case, variant, probes)
    case = case if pinned is None else _at_defaults_of(variant.code, case, pinned)
    device_name = variant.device or case.device
    matches = devices_named(probe, device_name) if probe.status == "ready" else []
    return replace(
        case,
        target=probe.target.name,
        backend=probe.target.backend,
        device=matches[0][0].name if matches else device_name,
        mode=variant.mode or _mode(case, probe.target),
        dtype=variant.dtype or case.dtype,
        cache=variant.cache or case.cache,
        threads=0 if "threads" in variant.settings else case.threads,
        environment={
            name: value for name, value in {**case.environment, **variant.environment}.items() if value
        },
    )


def _at_defaults_of(code: UserCode | None, case: Case, pinned: Collection[str]) -> Case:
    """Case with the default parameters of its workload in that code, except for pinned ones."""
    pinned_params = {name: value for name, value in case.params.items() if name in pinned}
    with suppress(UsageError):  # planning the case reports the error
        kind = catalogue.workload_named(case.workload, code)
        return case if isinstance(kind, type) else replace(case, params=kind(**pinned_params).params)
    return case


def _probe_for(case: Case, variant: Variant, probes: Sequence[Probe]) -> Probe:
    """Probe of the target, by name or else by backend, since the other side may use another interpreter."""
    name = variant.target.name if variant.target else case.target
    matches = [probe for probe in probes if probe.target.name == name]
    return next(iter(matches or [probe for probe in probes if probe.target.backend == case.backend]))


def _mode(case: Case, target: Target) -> str:
    if case.backend == target.backend:
        return case.mode
    old_modes, new_modes = backend_class(case.backend).modes, backend_class(target.backend).modes
    return new_modes[0] if case.mode == old_modes[0] or case.mode not in new_modes else case.mode


def parse_variant(text: str, interpreters: Mapping[str, str] = MappingProxyType({})) -> Variant:
    """Parse comma-separated targets, options, interpreters and revisions. Raises UsageError.

    `interpreters`: target → interpreter, from other options.
    """
    variant = Variant(text=text)
    for part in filter(None, (part.strip() for part in text.split(","))):
        variant = _with(variant, part, interpreters)
    if variant == Variant(text=text):
        raise UsageError(f"Cannot read the side {text!r}.", _syntax())
    return variant


def targets_of_variants(
    variants: Sequence[Variant],
    requested: Sequence[Target],
    interpreters: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[Target], list[Target]]:
    """Targets of both sides. A side with a target has only that one.

    Other sides have the `requested` targets. By default, these are the other side's backend under this
    interpreter, or every backend.
    """
    a, b = (variant.target for variant in variants)
    return _targets(a, b, requested, interpreters), _targets(b, a, requested, interpreters)


def _targets(
    target: Target | None,
    other_target: Target | None,
    requested: Sequence[Target],
    interpreters: Mapping[str, str],
) -> list[Target]:
    if target:
        return [target]
    return list(requested) or targets([other_target.backend] if other_target else [], interpreters)


def _with(variant: Variant, part: str, interpreters: Mapping[str, str]) -> Variant:
    if part.startswith(REVISION):
        return replace(variant, revision=part.removeprefix(REVISION))
    name, equals, value = part.partition("=")
    if name.startswith(ENVIRONMENT):
        return _with_variable(variant, name.removeprefix(ENVIRONMENT), equals, value)
    if equals and name in OPTIONS:
        return OPTIONS[name](variant, value)
    backends = registry.entry_names("benchbench.backends")
    if equals and name.partition("@")[0] not in backends:
        raise UsageError(
            f"No option or backend named {name!r}.", unknown("names", name, [*OPTIONS, *backends])
        )
    named = check_interpreters(parse_interpreters([part])) if equals else {}
    (target,) = targets([name], {**interpreters, **named})
    return replace(variant, target=target)


def _with_variable(variant: Variant, name: str, equals: str, value: str) -> Variant:
    if not equals or not VARIABLE.fullmatch(name):
        hint = f"Write {ENVIRONMENT}NAME=value, or {ENVIRONMENT}NAME= to leave it as it is."
        raise UsageError(f"Cannot read {ENVIRONMENT}{name}.", hint)
    check_variable(name)
    return replace(variant, environment={**variant.environment, name: value})


def _setting(name: str, read: Callable[[str], object]) -> Callable[[Variant, str], Variant]:
    return lambda variant, text: replace(variant, settings={**variant.settings, name: read(text)})


OPTIONS: Mapping[str, Callable[[Variant, str], Variant]] = {
    "mode": lambda variant, text: replace(variant, mode=text),
    "dtype": lambda variant, text: replace(variant, dtype=member(Dtype, text)),
    "device": lambda variant, text: replace(variant, device=text),
    "cache": lambda variant, text: replace(variant, cache=member(Cache, text)),
    "threads": _setting("threads", number_of_threads),
    "allocator": _setting("allocator", lambda text: member(Allocator, text)),
    "isolation": _setting("isolation", lambda text: member(Isolation, text)),
}


def _syntax() -> str:
    options = ", ".join(f"{name}=…" for name in OPTIONS)
    more = f"{ENVIRONMENT}NAME=value, NAME=/path/to/python, or {REVISION}REVISION"
    return f"A side is a backend, {options}, {more}."
