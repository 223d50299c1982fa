"""Bisection: search a range of versions for the one that caused a step, by pairs of processes.

Each measured version has a separate run with the tags `bisect` and `version`. A pair of a case is one
record in each of two runs; the round of both records is the number of the pair.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchbench.analyse.digest import (
    STEADY_METRICS,
    CaseDigest,
    work_change,
    work_digest,
    work_mismatches,
)
from benchbench.analyse.doubts import doubt, log_ratio, timed_process
from benchbench.analyse.metrics import LATENCY, Metric
from benchbench.environments import interpreters
from benchbench.environments.build import BuildPlan, build_environment, build_request
from benchbench.environments.interpreters import absolute_interpreters, targets
from benchbench.errors import CannotBuild, NotComparable, NothingToMeasure, UsageError
from benchbench.format import size
from benchbench.judging.bisection import (
    NextPair,
    SearchEnd,
    SearchResult,
    SearchRules,
    VersionPair,
    estimate,
    judge_ends,
    next_pair_or_result,
)
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode, user_code
from benchbench.machine.environment import machine
from benchbench.model.case import Case
from benchbench.model.device import Probe, Target
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Record, RunInfo
from benchbench.plan.cases import Plan, check_devices, plan, requested_devices, too_large, without_too_large
from benchbench.plan.estimates import planned_work
from benchbench.plan.rerun import Variant, apply_variant, obstacle_of
from benchbench.plan.revision import Version, code_at
from benchbench.running.heat import Recorder, measure_heat
from benchbench.running.measure import (
    SIZES,
    Side,
    described_models,
    machine_ready,
    models_of_revision,
    open_pools,
)
from benchbench.running.observer import MeasuredPair, RunObserver
from benchbench.running.recording import DEVICES_HINT, run_head, store_profiles
from benchbench.running.request import Request, request, with_project
from benchbench.store import runs, selectors
from benchbench.store.disk import BISECT, COMMIT, VERSION, new_id
from benchbench.store.runs import RunWriter
from benchbench.timing.policy import with_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """Options of a bisection.

    `most`: largest number of pairs of a case. `variant`: variant of the environments to build.
    """

    versions: Sequence[Version]
    measure: MeasureOptions
    metric: Metric
    threshold: float
    confidence: float
    most: int
    variant: str = ""
    profile: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsOfCase:
    """A case at both ends. `end`: the judgement; None if undecided after the largest number of pairs."""

    case: str
    changes: tuple[float, ...]  # log ratio of each pair
    end: SearchEnd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """Result of a bisection.

    `case`: the searched case, with the good version's defaults. `runs`: id of each version's run, by the
    version's number. `skipped`: why a version cannot be measured, by number. `frameworks`: backends with
    their releases, by number of the version. `disturbed`: number of pairs during which other programs
    computed. `work`: change of the computation in the version that caused the step.
    """

    id: str
    versions: tuple[Version, ...]
    metric: Metric
    rules: SearchRules
    ends: tuple[EndsOfCase, ...]
    case: str
    result: SearchResult
    pairs: tuple[VersionPair, ...]
    runs: Mapping[int, str]
    skipped: Mapping[int, str]
    frameworks: Mapping[int, str] = field(default_factory=dict)
    disturbed: int = 0
    profiled: bool = False
    work: str = ""


def bisect_versions(bisect_options: BisectOptions, results: Path, observer: RunObserver) -> Bisection:
    """Search the versions and store the measured pairs.

    Raises UsageError, CannotWrite, NothingToMeasure if an end cannot be measured, and NotComparable if the
    ends compute different things.
    """
    options = with_project(bisect_options.measure)
    selectors.follow_stored_ids(results)
    pythons = absolute_interpreters(options.pythons)
    with ExitStack() as stack:
        models = stack.enter_context(described_models(describing(bisect_options.versions, options), observer))
        run_request = request(bisect_options.measure, models)
        versions = _Versions(bisect_options, run_request, options, pythons, results, observer, stack)
        end_targets = versions.existing_end_targets()
        note_disturbances = stack.enter_context(machine_ready(end_targets, options.wait_s, results, observer))
        search = _Search(versions, observer)
        search.open_ends()
        if note_disturbances:
            note_disturbances()
        return search.run()


def describing(versions: Sequence[Version], options: MeasureOptions) -> MeasureOptions:
    """The options with the first existing version's target as the backend that describes user models."""
    pythons = absolute_interpreters(options.pythons)
    existing = [
        version.target for version in versions if version.target and not is_missing(version.target, pythons)
    ]
    return replace(options, backends=tuple(existing[:1]) or options.backends)


def is_missing(target: str, pythons: Iterable[str]) -> bool:
    """True if the environment of a target must be built first. `pythons`: names with an interpreter."""
    label = interpreters.split_name(target)[1]
    return bool(label) and target not in {*pythons, *interpreters.environment_names()}


class _Unmeasured(Exception):
    """A version cannot be measured; the message has the reason."""


class _OtherWork(_Unmeasured):
    """A version's computation cannot be compared with the good version's."""


class _OpenVersion:
    """A version with its workers and its run."""

    def __init__(
        self,
        pool: WorkerPool,
        info: RunInfo,
        writer: RunWriter,
        recorder: Recorder,
        cases: Mapping[str, Case],
    ) -> None:
        self.pool, self.info, self.writer = pool, info, writer
        self.cases = cases  # by the id of the good version's case
        self.records: list[Record] = []
        self.recorder = recorder
        self._is_fresh = True

    def start(self, case: Case) -> None:
        """Start new workers, as in every round of a run: memory layout differs from process to process."""
        if not self._is_fresh:
            self.pool.start([self.cases[case.id]])
        self._is_fresh = False

    def prefetch_workers(self, case: Case) -> None:
        """Start the workers in advance, so that both versions of a pair import in parallel."""
        if not self._is_fresh:
            self.pool.prefetch_workers([self.cases[case.id]], 1)

    def wait_for_workers(self, case: Case) -> None:
        self.pool.wait_for_workers([self.cases[case.id]])

    def end_workers(self) -> None:
        """End the workers to free memory for other versions."""
        if not self._is_fresh:
            self.pool.start([])

    def store(self, record: Record) -> Record:
        stored = self.writer.append(record)
        self.records.append(stored)
        return stored


class _Versions:
    """The versions of a bisection. Opening one builds its environment or checks out its revision."""

    def __init__(
        self,
        options: BisectOptions,
        run_request: Request,
        measure_options: MeasureOptions,
        pythons: Mapping[str, str],
        results: Path,
        observer: RunObserver,
        stack: ExitStack,
    ) -> None:
        self.options, self._request, self.results = options, run_request, results
        self._measure_options, self._pythons = measure_options, pythons
        self.observer, self._stack = observer, stack
        self._code = user_code()
        seed = run_request.seed
        self.seed = random.SystemRandom().randrange(2**32) if seed is None else seed
        self.opened: dict[int, _OpenVersion] = {}  # by number
        self.id = new_id()
        self.plan: Plan | None = None  # of the good version
        self.frameworks: dict[int, str] = {}
        self._works: dict[str, CaseDigest | None] = {}  # of the good version, by case id

    def existing_end_targets(self) -> list[Target]:
        """The targets of both ends whose environments exist."""
        ends = [self.options.versions[0].target, self.options.versions[-1].target]
        existing = [name for name in ends if name and not is_missing(name, self._pythons)]
        names = existing or list(self._measure_options.backends)
        return targets(names, self._pythons) if names else []

    def open(self, number: int, cases: Sequence[Case] = ()) -> _OpenVersion:
        """Open a version for `cases` unless it is open. The good version is opened for all planned cases.

        Raises _Unmeasured.
        """
        if number not in self.opened:
            self.opened[number] = self._open(number, cases)
        return self.opened[number]

    def _open(self, number: int, cases: Sequence[Case]) -> _OpenVersion:
        version = self.options.versions[number]
        code = self._code_of(version)
        version_targets = self._targets_of(version)
        described_code = (
            models_of_revision(code, version_targets, self._request.settings, self.observer)
            if version.revision
            else nullcontext(code)
        )
        with described_code as code:
            side = Side(targets=version_targets, settings=self._request.settings, code=code)
            # Warnings are the same for all versions, so they are shown only once.
            pool_observer = RunObserver() if self.opened else self.observer
            (pool,) = self._stack.enter_context(open_pools([side], pool_observer))
            self.observer.stage(f"looking for the devices of {version.label}")
            probes = pool.probe()
            self.frameworks[number] = ", ".join(
                f"{probe.target.name} {probe.version}" for probe in probes if probe.version
            )
            if self.plan is None:
                cases = self._plan(version, code, probes)
            version_cases = self._cases_of(version, code, cases, probes)
        tags = {**self._request.tags, BISECT: self.id, VERSION: version.label}
        tags |= {COMMIT: version.revision} if version.revision else {}
        policy = with_rounds(self._request.policy, 1)
        terms = replace(self._request, policy=policy, seed=self.seed, tags=tags)
        info = run_head(probes, Plan(tuple(version_cases.values()), ()), terms)
        recorder = Recorder(pool, info, self.observer.stage)
        recorder.prepare(info.plan)
        writer = self._stack.enter_context(runs.create_run(self.results, info))
        return _OpenVersion(pool, info, writer, recorder, version_cases)

    def _code_of(self, version: Version) -> UserCode:
        if not version.revision:
            return self._code
        try:
            return self._stack.enter_context(code_at(version.revision, self._code))
        except UsageError as error:
            raise _Unmeasured(str(error)) from error

    def _targets_of(self, version: Version) -> list[Target]:
        if not version.target:
            return targets(self._measure_options.backends, self._pythons)
        if is_missing(version.target, self._pythons):
            self._build(version.target)
        return targets([version.target], self._pythons)

    def _build(self, name: str) -> None:
        def announce(build: BuildPlan) -> None:
            self.observer.note(f"building {name}: {size(build.download.remote_bytes)} to download")

        variant = self.options.variant
        try:
            build = build_request(name, (), variant=variant or None)
            environment = build_environment(build, variant, self.observer.stage, announce)
        except CannotBuild as error:
            raise _Unmeasured(" ".join((str(error), *error.log))) from error
        if environment.health != "ready":
            raise _Unmeasured(f"{name} is built, but cannot be used: {environment.reason}")

    def _plan(self, good: Version, code: UserCode, probes: Sequence[Probe]) -> Sequence[Case]:
        """Plan the cases of the good version, with its defaults."""
        entries, selection = self._request.entries, self._request.selection
        check_devices(requested_devices(entries, selection.devices), probes)
        first_plan = plan(entries, selection, probes)
        variant = _variant(good, code, probes)
        pairs = [
            (case, apply_variant(case, variant, probes, first_plan.pinned[case.id]))
            for case in first_plan.cases
        ]
        good_plan = replace(
            first_plan,
            cases=tuple(case for _, case in pairs),
            pinned={case.id: first_plan.pinned[planned.id] for planned, case in pairs},
        )
        self.plan = without_too_large(good_plan, machine().memory_bytes)
        return self.plan.cases

    def _cases_of(
        self, version: Version, code: UserCode, cases: Sequence[Case], probes: Sequence[Probe]
    ) -> dict[str, Case]:
        """The cases that this version can run, with its defaults. Raises _Unmeasured if there is none."""
        variant = _variant(version, code, probes)
        pinned = self.plan.pinned if self.plan else {}
        version_cases: dict[str, Case] = {}
        reasons: list[str] = []
        mismatch_reasons: list[str] = []
        for case in cases:
            version_case = apply_variant(case, variant, probes, pinned.get(case.id))
            probe = next(probe for probe in probes if probe.target.name == version_case.target)
            obstacle = obstacle_of(version_case, probe, code) or too_large(
                version_case, machine().memory_bytes, code
            )
            if obstacle:
                reasons.append(obstacle.reason)
                continue
            work = planned_work(version_case, code)
            good_work = self._works.setdefault(case.id, work)
            if mismatches := work_mismatches(good_work, work) if good_work and work else []:
                mismatch_reasons.append(f"other work: {'; '.join(mismatches)}")
            else:
                version_cases[case.id] = version_case
        if mismatch_reasons and not version_cases:
            raise _OtherWork(mismatch_reasons[0])
        if not version_cases:
            broken = [probe.reason for probe in probes if probe.status != "ready"]
            left_out = [case.reason for case in self.plan.left_out] if self.plan else []
            raise _Unmeasured(next(iter([*reasons, *broken, *left_out]), "it has no such case"))
        return version_cases


def _variant(version: Version, code: UserCode, probes: Sequence[Probe]) -> Variant:
    return Variant(text=version.label, target=probes[0].target if version.target else None, code=code)


class _Search:
    """Measure and collect the pairs of a bisection. Case ids are those of the good version."""

    def __init__(self, versions: _Versions, observer: RunObserver) -> None:
        self._versions, self._options, self._observer = versions, versions.options, observer
        self._pairs: dict[str, list[VersionPair]] = {}  # by case
        self._skipped: dict[int, str] = {}
        self._number = 0  # of the next pair
        self._disturbed: dict[str, int] = {}  # number of disturbed pairs by case
        self._last_records: dict[tuple[int, str], Record] = {}  # by version and case
        self._cases: list[Case] = []
        self.rules = SearchRules(versions=len(self._options.versions))

    def open_ends(self) -> None:
        """Open both ends and keep the cases that both can run."""
        last = len(self._options.versions) - 1
        try:
            good = self._versions.open(0)
            self._cases = list(self._versions.plan.cases) if self._versions.plan else []
            bad = self._versions.open(last, [case for case in self._cases if case.id in good.cases])
        except _Unmeasured as error:
            number = last if 0 in self._versions.opened else 0
            label = self._options.versions[number].label
            if isinstance(error, _OtherWork):
                hint = f"Search a range whose versions have equal inputs and outputs, or set sizes: {SIZES}"
                raise NotComparable(f"{label} cannot be compared: {error}.", hint) from error
            raise NothingToMeasure(f"{label} cannot be measured: {error}", DEVICES_HINT) from error
        self._cases = [case for case in self._cases if case.id in good.cases and case.id in bad.cases]
        if not self._cases:
            raise NothingToMeasure("No case can run at both ends.", DEVICES_HINT)
        self.rules = SearchRules(
            versions=len(self._options.versions),
            threshold=self._options.threshold,
            confidence=self._options.confidence,
            most=self._options.most,
            cases=len(self._cases),
        )
        self._pairs = {case.id: [] for case in self._cases}

    def run(self) -> Bisection:
        """Measure the ends of every case, then search the case with the largest significant difference."""
        ends = self._measure_ends()
        steps = {
            case_ends.case: abs(estimate(case_ends.changes, 0.95).mid)
            for case_ends in ends
            if case_ends.end is SearchEnd.NAMED
        }
        # Without a difference, the result is that of the case with the most pairs.
        sizes = steps or {case_ends.case: len(case_ends.changes) for case_ends in ends}
        case = next(case for case in self._cases if case.id == max(sizes, key=lambda name: sizes[name]))
        pairs = self._pairs[case.id]
        while isinstance(step := next_pair_or_result(pairs, self.rules, self._skipped.keys()), NextPair):
            self._measure_pair(step, case)
        profiled = self._options.profile and self._profile(step, case)
        return Bisection(
            id=self._versions.id,
            versions=tuple(self._options.versions),
            metric=self._options.metric,
            rules=self.rules,
            ends=tuple(ends),
            case=case.id,
            result=step,
            pairs=tuple(pairs),
            runs={number: version.info.id for number, version in sorted(self._versions.opened.items())},
            skipped=self._skipped,
            frameworks=self._versions.frameworks,
            disturbed=self._disturbed.get(case.id, 0),
            profiled=profiled,
            work=self._work_change(step, case),
        )

    def _measure_ends(self) -> list[EndsOfCase]:
        """Measure pairs of the ends, of all cases in turn, until each case is decided or has enough pairs."""
        last, failed = self.rules.last, set[str]()

        def changes(case: Case) -> list[float]:
            pairs = self._pairs[case.id]
            return [pair.change for pair in pairs if (pair.version, pair.beside) == (last, 0)]

        while True:
            undecided = [
                case
                for case in self._cases
                if case.id not in failed
                and judge_ends(changes(case), self.rules) is None
                and len(self._pairs[case.id]) < self.rules.most
            ]
            if not undecided or (self._skipped.keys() & {0, last}):
                break
            for case in undecided:
                is_only = len(self._cases) == 1
                change = self._measure_pair(NextPair(last, 0), case, skip_failing=is_only)
                if change is None and not is_only:
                    failed.add(case.id)
            self._number += 1
        return [
            EndsOfCase(
                case=case.id,
                changes=tuple(changes(case)),
                end=SearchEnd.UNMEASURED if case.id in failed else judge_ends(changes(case), self.rules),
            )
            for case in self._cases
        ]

    def _measure_pair(self, pair: NextPair, case: Case, *, skip_failing: bool = True) -> float | None:
        """Measure and store a pair; return its log ratio, or None if a version failed.

        `skip_failing`: do not measure a failing version again.
        """
        number = self._number
        is_end = (pair.version, pair.beside) == (self.rules.last, 0)
        self._number += not is_end  # the ends of all cases have one number
        numbers = (pair.beside, pair.version)
        order = sorted(numbers, reverse=number % 2 == 1)
        try:
            opened = {version: self._versions.open(version, [case]) for version in numbers}
        except _Unmeasured as error:
            is_open = pair.version in self._versions.opened
            self._skip(pair.beside if is_open else pair.version, str(error))
            return None
        for version, other in self._versions.opened.items():
            if version not in opened:
                other.end_workers()
        for side in opened.values():
            side.prefetch_workers(case)
        for side in opened.values():
            side.wait_for_workers(case)
        for side in opened.values():
            side.start(case)
        records: dict[int, Record] = {}
        labels = [version.label for version in self._options.versions]
        self._observer.stage(f"pair {number + 1}: {labels[order[0]]} and {labels[order[1]]}, {case.id}")
        competitors = [(opened[version].recorder, opened[version].cases[case.id]) for version in order]
        for place, record in measure_heat(competitors, number, self._versions.seed, self._observer.progress):
            version = order[place]
            records[version] = opened[version].store(record)
            self._observer.record(records[version], version)
        change = self._add_pair(pair, case, records, skip_failing=skip_failing)
        measured_pair = MeasuredPair(
            number=number,
            case=case.id,
            version=labels[pair.version],
            beside=labels[pair.beside],
            change=None if change is None else math.exp(change),
            span=(labels[pair.span.first], labels[pair.span.last]) if pair.span else None,
        )
        self._observer.pair(measured_pair)
        return change

    def _add_pair(
        self, pair: NextPair, case: Case, records: Mapping[int, Record], *, skip_failing: bool
    ) -> float | None:
        """Add the pair to those of the case; return its log ratio, or None if a version has no value."""
        change, reasons = _change(records[pair.version], records[pair.beside], self._options.metric)
        if skip_failing:
            for version, reason in zip((pair.version, pair.beside), reasons, strict=True):
                if reason:
                    self._skip(version, reason)
        if change is not None:
            self._last_records |= {(version, case.id): record for version, record in records.items()}
            self._pairs[case.id].append(VersionPair(version=pair.version, beside=pair.beside, change=change))
            disturbed = any(_is_disturbed(record) for record in records.values())
            self._disturbed[case.id] = self._disturbed.get(case.id, 0) + disturbed
        return change

    def _skip(self, number: int, reason: str) -> None:
        self._skipped[number] = reason
        self._observer.note(f"{self._options.versions[number].label} cannot be measured: {reason}")

    def _work_change(self, result: SearchResult, case: Case) -> str:
        """Changes of the computation between the version that caused the step and its predecessor."""
        if result.end is not SearchEnd.NAMED or result.span is None:
            return ""
        numbers = (result.span.first - 1, result.span.last)
        records = [self._last_records.get((number, case.id)) for number in numbers]
        ref, new = (record and work_digest(record) for record in records)
        return work_change(ref, new) if ref and new else ""

    def _profile(self, result: SearchResult, case: Case) -> bool:
        """Profile the version that caused the step and its predecessor; return True if both succeed."""
        if result.end is not SearchEnd.NAMED or result.span is None:
            return False
        if self._options.metric.name not in STEADY_METRICS:
            return False
        outcomes = []
        for number in (result.span.first - 1, result.span.last):
            version = self._versions.open(number, [case])
            version.start(case)
            case_id = version.cases[case.id].id
            records = [record for record in version.records if record.case.id == case_id]
            for profile in store_profiles(version.pool, records, version.writer.folder, self._observer.stage):
                self._observer.profile(profile)
                outcomes.append(profile.outcome)
        return len(outcomes) == 2 and not any(isinstance(outcome, Failure) for outcome in outcomes)


def _change(version: Record, beside: Record, metric: Metric) -> tuple[float | None, tuple[str, str]]:
    """log(version / beside) of the metric, and for each record the reason why it has no value, or ""."""
    values: list[float | None] = []
    reasons: list[str] = []
    for record in (version, beside):
        if isinstance(record.outcome, Failure):
            values.append(None)
            reasons.append(f"{record.outcome.status}: {record.outcome.message}")
            continue
        value = metric.source.process(record.outcome)
        is_usable = value.value is not None and 0 < value.value < math.inf
        values.append(value.value if is_usable else None)
        reasons.append("" if is_usable else f"it has no {metric.name}: {value.reason or value.value}")
    if values[0] is None or values[1] is None:
        return None, (reasons[0], reasons[1])
    if mismatches := work_mismatches(work_digest(beside), work_digest(version)):
        return None, (f"other work: {'; '.join(mismatches)}", "")
    if metric.name == LATENCY.name:
        processes = [
            timed_process(record.outcome)
            for record in (beside, version)
            if isinstance(record.outcome, Measurement)
        ]
        return log_ratio(*processes), ("", "")
    return math.log(values[0]) - math.log(values[1]), ("", "")


def _is_disturbed(record: Record) -> bool:
    return isinstance(record.outcome, Measurement) and not doubt(record.outcome).is_undisturbed
