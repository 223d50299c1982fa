"""Functions for machines and environments: what can be measured, and where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from benchbench.cluster.fleet import FleetObserver, FleetOptions, FleetResult, MachineChoice, measure_fleet
from benchbench.cluster.messages import BEGIN_S
from benchbench.cluster.ray_cluster import RayCluster
from benchbench.diagnosis import measuring
from benchbench.diagnosis.checks import Finding, examine_machine
from benchbench.diagnosis.measuring import Ceilings
from benchbench.environments import build, interpreters
from benchbench.environments.build import BuildPlan
from benchbench.environments.interpreters import EnvironmentState, interpreter
from benchbench.errors import UsageError, unknown
from benchbench.model.device import Probe
from benchbench.model.options import (
    MeasureKeywords,
    MeasureOptions,
    Names,
    requested_options,
    several,
    takes_keywords,
)
from benchbench.running import measure
from benchbench.running.observer import RunObserver
from benchbench.store.selectors import results_folder


@takes_keywords(only=("backends", "pythons"))
def devices(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> list[Probe]:
    """Probe backends and environments: their devices, or why they cannot be used.

    `backends` and `pythons` select targets. Raises UsageError.
    """
    request = requested_options(devices, (), keywords, options)
    return measure.probe_targets(request, observer or RunObserver())


def doctor() -> list[Finding]:
    """Findings of `accelbench doctor` about conditions that distort measurements, worst first."""
    return examine_machine()


@takes_keywords(only=("backends", "pythons", "devices", "dtypes", "threads", "wait_s"))
def measure_ceilings(
    *,
    observer: RunObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> Ceilings:
    """Measure and store the best rates of devices, FLOP/s and B/s: `accelbench doctor --ceilings`.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    request = requested_options(measure_ceilings, (), keywords, options)
    return measuring.measure_ceilings(request, observer or RunObserver())


@takes_keywords()
def fleet(
    suite: Names = "quick",
    *,
    address: str | None = None,
    each: str = MachineChoice.NODE,
    resume: bool | str = False,
    allow_different: bool = False,
    begin_s: float = BEGIN_S,
    results: str | Path | None = None,
    observer: FleetObserver | None = None,
    options: MeasureOptions | None = None,
    **keywords: Unpack[MeasureKeywords],
) -> FleetResult:
    """Measure a suite on every machine of a Ray cluster, as `accelbench fleet` does; stores a run of each.

    `address`: of the cluster, `HOST:PORT`; by default the one of this machine. `each`: `node`, or
    `accelerator-type` for one machine of each type. `resume`: finish an interrupted fleet, the newest (True)
    or the one with that id. `allow_different`: allow different versions of accelbench. `begin_s`: seconds to
    wait for a machine to start. The other keywords are those of `run`. If a machine is lost, another one of
    its type measures its unfinished cases. Every machine needs the same file of a `model`, at the same path.

    Raises UsageError, NothingToMeasure without Ray, a cluster or a machine that answers, CannotWrite,
    UnreadableInput.
    """
    if each not in list(MachineChoice):
        raise UsageError(f"each: {each!r} is not a choice.", unknown("choices", each, [*MachineChoice]))
    measure = requested_options(fleet, suite, keywords, options)
    if resume and not options and suite == "quick":
        measure = replace(measure, suites=())
    fleet_options = FleetOptions(
        measure=measure,
        each=MachineChoice(each),
        resume=None if resume is False else "" if resume is True else resume,
        allow_different=allow_different,
        begin_s=begin_s,
    )
    with RayCluster(address) as cluster:
        return measure_fleet(fleet_options, cluster, results_folder(results), observer or FleetObserver())


Stage = Callable[[str], None]  # receives a description of the current stage


def create_environment(
    name: str,
    *,
    requirements: Names = (),
    base: str = "",
    variant: str = "",
    on_plan: Callable[[BuildPlan], None] | None = None,
    on_stage: Stage | None = None,
) -> EnvironmentState:
    """Build an environment for a backend, `torch_xla` or `torch@2.12`, as `accelbench env create` does.

    A ready environment is returned unchanged, an interrupted build is finished. `requirements`: in pip's
    syntax, by default the backend's; `base`: the interpreter to create it with; `variant`: the build, such as
    `cpu` or `cuda`, for torch also `cu128`. `on_plan` receives the plan before the download. If the framework
    cannot be imported, the environment is broken.

    Raises UsageError, CannotBuild, CannotWrite.
    """
    interpreter_path = interpreter(base) if base else ""
    request = build.build_request(name, several(requirements), interpreter_path, variant or None)
    return build.build_environment(request, variant, on_stage or _ignore, on_plan or _ignore)


def list_environments(*, check: bool = False, on_stage: Stage | None = None) -> list[EnvironmentState]:
    """List environments with their versions, size and health; `check`: import each framework."""
    environments = [interpreters.find_environment(name) for name in interpreters.environment_names()]
    if not check:
        return environments
    checked = []
    for environment in environments:
        (on_stage or _ignore)(f"importing {environment.backend} in {environment.name}")
        checked.append(build.check_health(environment))
    return checked


def remove_environments(names: Names) -> dict[str, int]:
    """Remove environments, complete or not; returns name → bytes freed. Raises UsageError, CannotWrite."""
    existing = interpreters.environment_names()
    for name in several(names):
        if name not in existing:
            raise UsageError(f"No environment named {name!r}.", unknown("environments", name, existing))
    freed_bytes = {}
    for name in dict.fromkeys(several(names)):
        with interpreters.locked(name):
            freed_bytes[name] = interpreters.bytes_in(interpreters.environment_folder(name))
            interpreters.remove_environment(name)
    return freed_bytes


def _ignore(_event: object) -> None:
    """Default of the callbacks."""
