"""What a bisection would take: downloads for versions without an environment, and the pairs expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchbench.analyse.metrics import Metric
from benchbench.environments.build import BuildPlan, build_request, dry_run_folder, planned_environment
from benchbench.environments.targets import absolute_interpreters
from benchbench.errors import CannotBuild, UnreadableInput
from benchbench.judging.bisection import SearchRules, expected_pairs
from benchbench.machine.environment import fingerprint, machine
from benchbench.model.measurement import Measurement
from benchbench.model.run import Run
from benchbench.plan.versions import Version
from benchbench.running.bisecting import BisectObserver, BisectOptions, describing, is_missing
from benchbench.running.measure import described_models
from benchbench.running.request import request, with_project
from benchbench.stats import deviation
from benchbench.store import runs, selectors

RECENT = 20  # stored runs that are looked into
STEPS = (0.03, 0.05, 0.1)  # that the pairs are told for
USUAL_DEVIATIONS = (0.01, 0.02, 0.04)  # of a pair, where no stored run tells it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVersion:
    """A version before it is measured: what its environment takes, or why it cannot be built."""

    version: Version
    download: BuildPlan | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPairs:
    """The pairs that a step takes at a deviation of pairs: in the middle, and in nine of ten searches."""

    step: float
    deviation: float
    middle: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectPlan:
    """What `bisect` would do. `deviation`: of a pair of this work's processes, where stored runs tell it."""

    versions: tuple[PlannedVersion, ...]
    rules: SearchRules
    deviation: float | None
    pairs: tuple[ExpectedPairs, ...]


def plan_bisection(asked: BisectOptions, results: Path, observer: BisectObserver) -> BisectPlan:
    """Nothing is measured or kept. Raises UsageError."""
    options = with_project(asked.measure)
    with described_models(describing(asked.versions, options), observer) as models:
        names = {entry.workload for _, entry in request(asked.measure, models).entries}
    backends = {version.target.partition("@")[0] for version in asked.versions if version.target}
    found = pair_deviation(_recent(results), names, backends or set(options.backends), asked.metric)
    pythons = absolute_interpreters(options.pythons)
    rules = SearchRules(
        versions=len(asked.versions),
        threshold=asked.threshold,
        confidence=asked.confidence,
        most=asked.most,
    )
    return BisectPlan(
        versions=_planned(asked, pythons, observer),
        rules=rules,
        deviation=found,
        pairs=tuple(
            _expected(rules, step, each)
            for each in ([found] if found else USUAL_DEVIATIONS)
            for step in STEPS
        ),
    )


def _planned(
    asked: BisectOptions, pythons: Iterable[str], observer: BisectObserver
) -> tuple[PlannedVersion, ...]:
    known = {*pythons}
    missing = [each for each in asked.versions if each.target and is_missing(each.target, known)]
    with dry_run_folder() if missing else nullcontext(Path()) as folder:
        return tuple(
            _to_build(version, asked.variant, folder, observer)
            if version in missing
            else PlannedVersion(version=version)
            for version in asked.versions
        )


def _to_build(version: Version, variant: str, folder: Path, observer: BisectObserver) -> PlannedVersion:
    try:
        asked = build_request(version.target, (), variant=variant or None)
        found = planned_environment(asked, folder, variant, observer.stage)
    except CannotBuild as error:
        return PlannedVersion(version=version, reason=" ".join((str(error), *error.log)))
    return PlannedVersion(version=version, download=found if isinstance(found, BuildPlan) else None)


def _recent(results: Path) -> list[Run]:
    """The newest runs of this machine that can be read."""
    own, found = fingerprint(machine()), []
    for name in selectors.run_ids(results)[-RECENT:]:
        try:
            run = runs.read_run(results / runs.RUNS / name)
        except UnreadableInput:
            continue
        if fingerprint(run.info.machine) == own:
            found.append(run)
    return found


def pair_deviation(
    stored: Sequence[Run], workloads: Iterable[str], backends: Iterable[str], metric: Metric
) -> float | None:
    """The standard deviation of a pair's logarithm, √2 of a process's: the root mean square over cases."""
    names, known, squares = {*workloads}, {*backends}, list[tuple[float, int]]()
    for run in stored:
        logs: dict[str, list[float]] = {}
        for record in run.records:
            case, made = record.case, record.outcome
            if case.workload not in names or (known and case.backend not in known):
                continue
            value = metric.source.process(made).value if isinstance(made, Measurement) else None
            if value:
                logs.setdefault(case.id, []).append(math.log(value))
        squares += [(deviation(each) ** 2, len(each) - 1) for each in logs.values() if len(each) > 2]
    degrees = sum(weight for _, weight in squares)
    return math.sqrt(2 * sum(square * weight for square, weight in squares) / degrees) if degrees else None


def _expected(rules: SearchRules, step: float, deviation: float) -> ExpectedPairs:
    counts = expected_pairs(rules, step, deviation)
    most = counts[math.ceil(0.9 * len(counts)) - 1]
    return ExpectedPairs(step=step, deviation=deviation, middle=counts[len(counts) // 2], most=most)
