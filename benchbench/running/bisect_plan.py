"""The plan of a bisection: downloads for versions without an environment, and the expected pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchbench.analyse.metrics import Metric
from benchbench.environments.build import BuildPlan, build_request, dry_run_folder, planned_environment
from benchbench.environments.interpreters import absolute_interpreters
from benchbench.errors import CannotBuild, UnreadableInput
from benchbench.judging.bisection import SearchRules, expected_pairs
from benchbench.machine.environment import fingerprint, machine
from benchbench.model.measurement import Measurement
from benchbench.model.run import Run
from benchbench.plan.revision import Version
from benchbench.running.bisecting import BisectObserver, BisectOptions, describing, is_missing
from benchbench.running.measure import described_models
from benchbench.running.request import request, with_project
from benchbench.stats import deviation
from benchbench.store import runs, selectors

RECENT_RUNS = 20  # stored runs from which the deviation is estimated
STEPS = (0.03, 0.05, 0.1)  # relative changes for which the expected pairs are shown
USUAL_DEVIATIONS = (0.01, 0.02, 0.04)  # of a pair, if no stored run has the work


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVersion:
    """A version with the download of its environment, or the reason why it cannot be built."""

    version: Version
    download: BuildPlan | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPairs:
    """Number of pairs to find a relative change `step`: the median, `middle`, and the 90 % quantile, `most`.

    `deviation`: standard deviation of a pair's log ratio.
    """

    step: float
    deviation: float
    middle: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectPlan:
    """The plan of a bisection. `deviation`: estimated from stored runs of the work, or None."""

    versions: tuple[PlannedVersion, ...]
    rules: SearchRules
    deviation: float | None
    pairs: tuple[ExpectedPairs, ...]


def plan_bisection(options: BisectOptions, results: Path, observer: BisectObserver) -> BisectPlan:
    """Plan a bisection without measuring or storing anything. Raises UsageError."""
    measure_options = with_project(options.measure)
    with described_models(describing(options.versions, measure_options), observer) as models:
        names = {entry.workload for _, entry in request(options.measure, models).entries}
    backends = {version.target.partition("@")[0] for version in options.versions if version.target}
    estimate = pair_deviation(
        _recent_runs(results), names, backends or set(measure_options.backends), options.metric
    )
    rules = SearchRules(
        versions=len(options.versions),
        threshold=options.threshold,
        confidence=options.confidence,
        most=options.most,
    )
    return BisectPlan(
        versions=_plan_versions(options, absolute_interpreters(measure_options.pythons), observer),
        rules=rules,
        deviation=estimate,
        pairs=tuple(
            _expected_pairs(rules, step, deviation)
            for deviation in ([estimate] if estimate else USUAL_DEVIATIONS)
            for step in STEPS
        ),
    )


def _plan_versions(
    options: BisectOptions, pythons: Iterable[str], observer: BisectObserver
) -> tuple[PlannedVersion, ...]:
    names = {*pythons}
    missing = [
        version for version in options.versions if version.target and is_missing(version.target, names)
    ]
    with dry_run_folder() if missing else nullcontext(Path()) as folder:
        return tuple(
            _plan_build(version, options.variant, folder, observer)
            if version in missing
            else PlannedVersion(version=version)
            for version in options.versions
        )


def _plan_build(version: Version, variant: str, folder: Path, observer: BisectObserver) -> PlannedVersion:
    try:
        build = build_request(version.target, (), variant=variant or None)
        environment = planned_environment(build, folder, variant, observer.stage)
    except CannotBuild as error:
        return PlannedVersion(version=version, reason=" ".join((str(error), *error.log)))
    download = environment if isinstance(environment, BuildPlan) else None
    return PlannedVersion(version=version, download=download)


def _recent_runs(results: Path) -> list[Run]:
    """The newest readable runs of this machine."""
    this_machine, recent_runs = fingerprint(machine()), []
    for name in selectors.run_ids(results)[-RECENT_RUNS:]:
        try:
            run = runs.read_run(results / runs.RUNS / name)
        except UnreadableInput:
            continue
        if fingerprint(run.info.machine) == this_machine:
            recent_runs.append(run)
    return recent_runs


def pair_deviation(
    stored_runs: Sequence[Run], workloads: Iterable[str], backends: Iterable[str], metric: Metric
) -> float | None:
    """Standard deviation of a pair's log ratio: √2 times the root mean square of the cases' deviations.

    None if no case has three processes. `backends`: if empty, runs of all backends are used.
    """
    workload_names, backend_names, variances = {*workloads}, {*backends}, list[tuple[float, int]]()
    for run in stored_runs:
        logs: dict[str, list[float]] = {}
        for record in run.records:
            case, outcome = record.case, record.outcome
            if case.workload not in workload_names or (backend_names and case.backend not in backend_names):
                continue
            value = metric.source.process(outcome).value if isinstance(outcome, Measurement) else None
            if value:
                logs.setdefault(case.id, []).append(math.log(value))
        variances += [
            (deviation(values) ** 2, len(values) - 1) for values in logs.values() if len(values) > 2
        ]
    degrees = sum(weight for _, weight in variances)
    if not degrees:
        return None
    return math.sqrt(2 * sum(variance * weight for variance, weight in variances) / degrees)


def _expected_pairs(rules: SearchRules, step: float, deviation: float) -> ExpectedPairs:
    counts = expected_pairs(rules, step, deviation)
    most = counts[math.ceil(0.9 * len(counts)) - 1]
    return ExpectedPairs(step=step, deviation=deviation, middle=counts[len(counts) // 2], most=most)
