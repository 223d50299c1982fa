"""Check the options of a measurement and select the entries of suites and the targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchbench import registry
from benchbench.backends.base import backend_class
from benchbench.environments.interpreters import choose_targets
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
from benchbench.plan.suite import Entry, Selection, environments, fraction, parse_world, select
from benchbench.timing.policy import POLICIES, budget_policy, with_rounds

T = TypeVar("T", Allocator, Cache, Dtype, Isolation, Phase, Strategy, Weights)
N = TypeVar("N", int, float, int | None)
MOST_ROUNDS, MOST_S = 10_000, 30 * 86_400  # thirty days


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to measure. `seed`: None draws one. `wait_s`: longest wait for an idle machine."""

    policy: Policy
    settings: Settings
    seed: int | None
    command: tuple[str, ...]
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wait_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request(Terms):
    """A checked request, before it is matched with the devices of this machine."""

    entries: tuple[tuple[str, Entry], ...]
    selection: Selection


def request(options: MeasureOptions, models: Sequence[str] = ()) -> Request:
    """Check the options and select the entries of their suites. Raises UsageError.

    Missing options are read from the nearest accelbench.toml. `models`: names of the requested user models,
    which replace the default suite.
    """
    backends, options = _requested_backends(options), with_project(options)
    requested_suites = [suites.model_suite(models)] if models else []
    requested_suites += [suites.load_suite(name) for name in options.suites or (() if models else ("quick",))]
    patterns = () if options.suites else models  # patterns of workloads then mean these models
    narrowed = dataclasses.replace(selection(options, patterns), backends=backends)
    _check_models(models, narrowed.workloads)
    run_terms = terms(options, requested_suites[0].policy)
    return Request(
        entries=tuple(select(requested_suites, narrowed)),
        selection=narrowed,
        **{field.name: getattr(run_terms, field.name) for field in dataclasses.fields(run_terms)},
    )


def _check_models(models: Sequence[str], workloads: Sequence[str]) -> None:
    """Raise UsageError for a user model that the selected workloads leave out."""
    for name in workloads:
        catalogue.workload_named(name)  # raises for a model without a training step
    files = catalogue.models_in(models)
    selected = {files[name] for name in workloads if name in files} if workloads else {*files.values()}
    for name, file in files.items():
        if file not in selected:
            raise UsageError(
                f"{file} is to be measured, but {name} is not among the selected workloads.",
                f"Leave the model out, or select it too: -w {','.join((*workloads, name))}",
            )


def terms(options: MeasureOptions, default_preset: str) -> Terms:
    """Check the options that do not select anything. Raises UsageError."""
    return Terms(
        policy=_policy(options, default_preset),
        settings=settings(options),
        seed=options.seed,
        command=options.command,
        tags=check_tags(options.tags),
        wait_s=options.wait_s,
    )


def with_project(options: MeasureOptions) -> MeasureOptions:
    """The options, with missing ones from the nearest accelbench.toml. Raises UsageError."""
    defaults = config.nearest(Path()).run
    suite_names = options.suites or (() if options.model else tuple(defaults.suite))
    options = with_project_models(options)
    return dataclasses.replace(
        options,
        suites=suite_names,
        backends=_requested_backends(options) or model_backends(user_models.kinds_of(options.model)),
    )


def with_project_models(options: MeasureOptions) -> MeasureOptions:
    """The options with the models of accelbench.toml, unless a model, suite or workload is requested."""
    if options.model or options.suites or options.workloads:
        return options
    return dataclasses.replace(options, model=tuple(config.nearest(Path()).run.model))


def _requested_backends(options: MeasureOptions) -> tuple[str, ...]:
    return options.backends or tuple(config.nearest(Path()).run.backend)


def request_on_targets(options: MeasureOptions, models: Sequence[str] = ()) -> tuple[Request, list[Target]]:
    """The request and its targets; see `request`. Raises UsageError."""
    return request(options, models), requested_targets(with_project(options))


def requested_targets(options: MeasureOptions, *, labelled: bool = False) -> list[Target]:
    """The requested backends, each under its interpreter; by default every backend. Raises UsageError.

    `labelled`: by default, include environments.
    """
    return choose_targets(options.backends, options.pythons, labelled=labelled)


def targets_of_kind(targets: Sequence[Target], kind: str) -> list[Target]:
    """The targets that run this kind of model; if none does, this interpreter's first backend that does."""
    capable = [target for target in targets if target.backend in model_backends([kind])]
    return capable or choose_targets(model_backends([kind])[:1], {})


def model_backends(kinds: Sequence[str]) -> tuple[str, ...]:
    """The backends that run models of these kinds, by default all of them."""
    engines = {name for kind in kinds for name in KINDS[kind].engines}
    frameworks = {name for kind in kinds if not KINDS[kind].engines for name in KINDS[kind].frameworks}
    names = registry.entry_names("benchbench.backends")
    backends = ((name, backend_class(name)) for name in names)
    return tuple(
        name
        for name, backend in backends
        if name in engines or (backend.computes(list(frameworks)) and not backend.virtual)
    )


def selection(options: MeasureOptions, among: Sequence[str] = ()) -> Selection:
    """The selection of entries and the overrides of their fields, by these options. Raises UsageError.

    `among`: see `catalogue.expand_patterns`.
    """
    return Selection(
        workloads=catalogue.expand_patterns(options.workloads, among),
        phases=tuple(member(Phase, name) for name in options.phases),
        devices=options.devices,
        dtypes=tuple(member(Dtype, name) for name in options.dtypes),
        modes=options.modes,
        caches=tuple(member(Cache, name) for name in options.caches),
        params=requested_params(options),
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


def requested_params(options: MeasureOptions) -> dict[str, list[Scalar]]:
    """Sizes that override the sizes of suites, by parameter; the key `m=n` sets both parameters."""
    return {
        name: [value] if isinstance(value, int | float | str) else list(value)
        for name, value in options.params.items()
    }


def _worlds(texts: Sequence[str], devices: Sequence[str]) -> tuple[str, ...]:
    """The requested numbers of devices. Raises UsageError if devices are named twice."""
    for text in texts:
        if parse_world(text).first and devices:
            message = f"--world {text} names its devices, and --device names {' and '.join(devices)}."
            raise UsageError(message, "Leave --device out.")
    return tuple(texts)


def settings(options: MeasureOptions) -> Settings:
    """Settings of the workers. Several numbers of threads are set per case instead. Raises UsageError."""
    threads = {number_of_threads(str(count)) for count in options.threads}
    return Settings(
        threads=threads.pop() if len(threads) == 1 else default_threads(),
        allocator=member(Allocator, options.allocator),
        isolation=member(Isolation, options.isolation),
        timeout_s=_within("seconds for a process", options.timeout_s, MOST_S),
        max_error=max_error(options),
        input=str(model_option(options, "input") or ""),
        weights=member(Weights, model_option(options, "weights")),
    )


def max_error(options: MeasureOptions) -> float | None:
    """Largest error of lossy engines, as a fraction; None leaves them out. Raises UsageError."""
    allowed = model_option(options, "max_error")
    return None if allowed is None else fraction(str(allowed))


def model_option(options: MeasureOptions, name: str) -> Any:
    """The value of an option for user models. Raises UsageError if it is set and no model is requested."""
    if name in options.changed_fields and not options.model:
        flag = flag_of(name)
        raise UsageError(f"{flag} is for user models.", f"Name one: accelbench run my_model.py {flag} ….")
    return getattr(options, name)


def _within(unit: str, value: N, most: int) -> N:
    """Return the value. Raises UsageError if it is larger than `most`, or NaN."""
    if value is not None and not value <= most:
        raise UsageError(f"{str(value)[:20]} {unit} are too many.", f"The most is {most}.")
    return value


def _policy(options: MeasureOptions, default_preset: str) -> Policy:
    if options.budget_s is not None:
        if options.preset or options.rounds:
            other = f"the preset {options.preset!r}" if options.preset else "a number of rounds"
            raise UsageError(f"A budget and {other} exclude each other.", "Give one of them.")
        return budget_policy(_within("seconds", options.budget_s, MOST_S))
    name = options.preset or default_preset
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
