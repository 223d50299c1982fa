"""What was asked for, checked: the suites' entries, how to measure them, and on which targets."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.environments.targets import choose_targets
from benchbench.errors import UsageError, member, unknown
from benchbench.launch import catalogue, user_models
from benchbench.machine.environment import default_threads
from benchbench.model.case import Cache, Dtype, Phase, Scalar
from benchbench.model.device import Target
from benchbench.model.options import (
    Allocator,
    Isolation,
    MeasureOptions,
    Weights,
    check_tags,
    flag_of,
    number_of_threads,
)
from benchbench.model.placement import Strategy
from benchbench.model.run import Policy, Settings
from benchbench.model.user_model import KINDS
from benchbench.plan import config
from benchbench.plan import suite as suites
from benchbench.plan.suite import Entry, Selection, Suite, environments, fraction, parse_world, select
from benchbench.timing.policy import POLICIES, budget_policy, with_rounds

T = TypeVar("T", Allocator, Cache, Dtype, Isolation, Phase, Strategy, Weights)
N = TypeVar("N", int, float, int | None)
MOST_ROUNDS, MOST_S = 10_000, 30 * 86_400  # thirty days


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to measure, whatever is measured; without a seed one is drawn. `wait_s`: for an idle machine."""

    policy: Policy
    settings: Settings
    seed: int | None
    command: tuple[str, ...]
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wait_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request(Terms):
    """What was asked for, checked but not yet matched with the devices at hand."""

    entries: tuple[tuple[str, Entry], ...]
    selection: Selection
    suites: tuple[Suite, ...] = ()  # as they are without the selection


def request(options: MeasureOptions, models: Sequence[str] = ()) -> Request:
    """The suites named, narrowed; the first one's preset unless one is given. Raises UsageError.

    What is not said is as accelbench.toml has it.

    `models`: the names of the user's, which are measured in place of a suite that nobody names.
    """
    backends, options = _named_backends(options), with_project(options)
    named = [suites.model_suite(models)] if models else []
    named += [suites.load_suite(name) for name in options.suites or (() if models else ("quick",))]
    patterns = () if options.suites else models  # which mean what is measured
    narrowed = dataclasses.replace(selection(options, patterns), backends=backends)
    _check_models(models, narrowed.workloads)
    how = terms(options, named[0].policy)
    return Request(
        entries=tuple(select(named, narrowed)),
        selection=narrowed,
        suites=tuple(named),
        **{each.name: getattr(how, each.name) for each in dataclasses.fields(how)},
    )


def _check_models(models: Sequence[str], workloads: Sequence[str]) -> None:
    """Raise UsageError for a model of the user's of which the workloads chosen leave every step out."""
    for name in workloads:
        catalogue.workload_named(name)  # one that has no training step says how it gets one
    files = catalogue.models_in(models)
    left = {files[name] for name in workloads if name in files} if workloads else {*files.values()}
    for name, file in files.items():
        if file not in left:
            raise UsageError(
                f"{file} is to be measured, but {name} is not among the workloads chosen.",
                f"Leave the model out, or choose it too: -w {','.join((*workloads, name))}",
            )


def terms(options: MeasureOptions, usual: str) -> Terms:
    """How to measure, whatever is selected; `usual`: the preset, unless one is given. Raises UsageError."""
    return Terms(
        policy=_policy(options, usual),
        settings=settings(options),
        seed=options.seed,
        command=options.command,
        tags=check_tags(options.tags),
        wait_s=options.wait_s,
    )


def with_project(options: MeasureOptions) -> MeasureOptions:
    """What is not said as the nearest accelbench.toml says it. Raises UsageError."""
    usual = config.nearest(Path()).run
    return dataclasses.replace(
        options,
        suites=options.suites or (() if options.model else tuple(usual.suite)),
        backends=_named_backends(options) or model_backends(user_models.kinds_of(options.model)),
    )


def _named_backends(options: MeasureOptions) -> tuple[str, ...]:
    return options.backends or tuple(config.nearest(Path()).run.backend)


def request_on_targets(options: MeasureOptions, models: Sequence[str] = ()) -> tuple[Request, list[Target]]:
    """The request and its targets; what is not said is as accelbench.toml has it. Raises UsageError."""
    return request(options, models), requested_targets(with_project(options))


def requested_targets(options: MeasureOptions, *, labelled: bool = False) -> list[Target]:
    """The backends named, each under its interpreter; none named: every one, `labelled`: and environment.

    Raises UsageError.
    """
    return choose_targets(options.backends, options.pythons, sys.executable, labelled=labelled)


def targets_of_kind(chosen: Sequence[Target], kind: str) -> list[Target]:
    """The targets that take such models, else this interpreter's frameworks that do."""
    able = [target for target in chosen if target.backend in model_backends([kind])]
    return able or choose_targets(model_backends([kind])[:1], {}, sys.executable)


def model_backends(kinds: Sequence[str]) -> tuple[str, ...]:
    """The backends that take models of these kinds, which measure them if nobody names others."""
    engines = {name for kind in kinds for name in KINDS[kind].engines}
    frameworks = {name for kind in kinds if not KINDS[kind].engines for name in KINDS[kind].frameworks}
    names = registry.entry_names("benchbench.backends")
    found = ((name, registry.load_class("benchbench.backends", name, Backend)) for name in names)  # type: ignore[type-abstract]
    return tuple(
        name
        for name, backend in found
        if name in engines or (backend.computes(list(frameworks)) and not backend.virtual)
    )


def selection(options: MeasureOptions, among: Sequence[str] = ()) -> Selection:
    """What narrows or overrides the suites; `among`: see `catalogue.expand_patterns`. Raises UsageError."""
    return Selection(
        workloads=catalogue.expand_patterns(options.workloads, among),
        phases=tuple(member(Phase, name) for name in options.phases),
        devices=options.devices,
        dtypes=tuple(member(Dtype, name) for name in options.dtypes),
        modes=options.modes,
        caches=tuple(member(Cache, name) for name in options.caches),
        params=params_asked(options),
        worlds=_worlds(options.worlds, options.devices),
        strategies=tuple(member(Strategy, name) for name in options.strategies),
        threads=tuple(dict.fromkeys(options.threads)),
        takes_lossy=options.max_error is not None,
        environments=environments(
            {
                name: [value] if isinstance(value, str) else value
                for name, value in options.environment.items()
            }
        ),
    )


def params_asked(options: MeasureOptions) -> dict[str, list[Scalar]]:
    """The sizes that override the suites', by key, of which `m=n` ties two."""
    return {
        name: [value] if isinstance(value, int | float | str) else list(value)
        for name, value in options.params.items()
    }


def _worlds(texts: Sequence[str], devices: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageError, also where devices are named twice."""
    for text in texts:
        if parse_world(text).first and devices:
            named = f"--world {text} names its devices, and --device names {' and '.join(devices)}."
            raise UsageError(named, "Leave --device out.")
    return tuple(texts)


def settings(options: MeasureOptions) -> Settings:
    """How the workers are run; of several numbers of threads each is its cases' own. Raises UsageError."""
    threads = {number_of_threads(str(each)) for each in options.threads}
    return Settings(
        threads=threads.pop() if len(threads) == 1 else default_threads(),
        allocator=member(Allocator, options.allocator),
        isolation=member(Isolation, options.isolation),
        timeout_s=_within("seconds for a process", options.timeout_s, MOST_S),
        max_error=max_error(options),
        input=str(of_models(options, "input") or ""),
        weights=member(Weights, of_models(options, "weights")),
    )


def max_error(options: MeasureOptions) -> float | None:
    """How far results of lossy engines may be off, as a fraction; None: none competes. Raises UsageError."""
    allowed = of_models(options, "max_error")
    return None if allowed is None else fraction(str(allowed))


def of_models(options: MeasureOptions, name: str) -> Any:
    """An option that says something of models. Raises UsageError where it is given and no model is named."""
    if name in options.changed_fields and not options.model:
        flag = flag_of(name)
        raise UsageError(f"{flag} is for user models.", f"Name one: accelbench run my_model.py {flag} ….")
    return getattr(options, name)


def _within(what: str, value: N, most: int) -> N:
    """Raises UsageError, for NaN too."""
    if value is not None and not value <= most:
        raise UsageError(f"{str(value)[:20]} {what} are too many.", f"At most {most} can be asked for.")
    return value


def _policy(options: MeasureOptions, usual: str) -> Policy:
    """Rounds that are asked for are those of every case."""
    if options.budget_s is not None:
        if options.preset or options.rounds:
            other = f"the preset {options.preset!r}" if options.preset else "a number of rounds"
            raise UsageError(f"A budget and {other} exclude each other.", "Give one of them.")
        return budget_policy(_within("seconds", options.budget_s, MOST_S))
    name = options.preset or usual
    if name not in POLICIES:
        raise UsageError(f"No preset named {name!r}.", unknown("presets", name, list(POLICIES)))
    if options.rounds is None:
        return POLICIES[name]
    if options.rounds < 1:
        raise UsageError(
            f"{options.rounds} rounds measure nothing.", "Each round takes one process per case."
        )
    rounds = _within("rounds", options.rounds, MOST_ROUNDS)
    return with_rounds(POLICIES[name], rounds)
