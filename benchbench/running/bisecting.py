"""A row of versions searched for the one that brought a step: pair after pair of processes, all stored.

Each version that is measured has a run of its own, with the tags `bisect` and `version`. The records of one
pair have its number for their round, in two of these runs.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchbench.analyse.digest import (
    LATENCY,
    STEADY_METRICS,
    CaseDigest,
    work_change,
    work_digest,
    work_mismatches,
)
from benchbench.analyse.doubts import doubt, log_ratio, timed_process
from benchbench.analyse.metrics import Metric
from benchbench.environments import interpreters
from benchbench.environments.build import BuildPlan, build_environment, build_request
from benchbench.environments.targets import absolute_interpreters, targets
from benchbench.errors import CannotBuild, NotComparable, NothingToMeasure, UnreadableInput, UsageError
from benchbench.format import count_of, size
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
from benchbench.machine.environment import machine, same_hardware
from benchbench.model.case import Case, Scalar
from benchbench.model.device import Probe, Target
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.options import MeasureOptions
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.plan.cases import Plan, plan, too_large, without_too_large
from benchbench.plan.costs import planned_work
from benchbench.plan.devices import check_devices, requested_devices
from benchbench.plan.rerun import Variant, apply_variant, obstacle_of
from benchbench.plan.revision import code_at
from benchbench.plan.versions import Version
from benchbench.running.measure import (
    SIZES,
    Side,
    described_models,
    machine_ready,
    models_of_revision,
    open_pools,
)
from benchbench.running.observer import RunObserver
from benchbench.running.recorder import Recorder, measure_heat
from benchbench.running.recording import DEVICES_HINT, run_head, store_profiles
from benchbench.running.request import Request, request, with_project
from benchbench.store import runs, selectors
from benchbench.store.naming import BISECT, COMMIT, VERSION, bisect_of, new_id
from benchbench.store.runs import RunWriter
from benchbench.timing.policy import with_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOptions:
    """What is searched for, and how. `resume`: the id of a bisection, whose pairs are gone on from."""

    versions: Sequence[Version]
    measure: MeasureOptions
    metric: Metric
    threshold: float
    confidence: float
    most: int
    variant: str = ""  # of environments that are built
    profile: bool = True
    resume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePair:
    """A pair that was measured. `change`: a ratio, None where a side failed. `span`: where the step was known
    to be before, by the first and the last version that it may have come with.
    """

    number: int
    case: str
    version: str
    beside: str
    change: float | None
    span: tuple[str, str] | None = None


class BisectObserver(RunObserver):
    """Ignores everything: a subclass overrides what it wants to know."""

    def pair(self, made: MadePair) -> None:
        """A pair was measured, and is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsOfCase:
    """A case at both ends: `end` says whether they differ, None where its pairs were used up."""

    case: str
    changes: tuple[float, ...]  # logarithms, a pair each
    end: SearchEnd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """What came of it. `case` as the good version has it; `runs`: version by number → ids of its runs.

    `skipped`: version by number → why it cannot be measured. `disturbed`: pairs beside which others computed.
    `work`: what the step's version changed in what is computed.
    """

    id: str
    versions: tuple[Version, ...]
    metric: Metric
    rules: SearchRules
    ends: tuple[EndsOfCase, ...]
    case: str
    found: SearchResult
    pairs: tuple[VersionPair, ...]
    runs: Mapping[int, tuple[str, ...]]
    skipped: Mapping[int, str]
    frameworks: Mapping[int, str] = field(default_factory=dict)
    disturbed: int = 0
    profiled: bool = False
    work: str = ""


def bisect_versions(asked: BisectOptions, results: Path, observer: BisectObserver) -> Bisection:
    """Search the row. Raises UsageError, NothingToMeasure, CannotBuild of an end, CannotWrite."""
    options = with_project(asked.measure)
    selectors.follow_stored_ids(results)
    pythons = absolute_interpreters(options.pythons)
    with ExitStack() as stack:
        models = stack.enter_context(described_models(describing(asked.versions, options), observer))
        terms = request(asked.measure, models)
        row = _Row(asked, terms, options, pythons, results, observer, stack)
        known = row.known_targets()
        tell = stack.enter_context(machine_ready(known, options.wait_s, results, observer))
        search = _Search(row, observer)
        search.open_ends()
        if tell:
            tell()
        return search.searched()


def describing(versions: Sequence[Version], options: MeasureOptions) -> MeasureOptions:
    """The options as they say who describes the user's models: the first version that is there."""
    pythons = absolute_interpreters(options.pythons)
    there = [each.target for each in versions if each.target and not is_missing(each.target, pythons)]
    return replace(options, backends=tuple(there[:1]) or options.backends)


def is_missing(target: str, pythons: Iterable[str]) -> bool:
    """Whether the environment of a target has still to be built. `pythons`: names with an interpreter."""
    label = interpreters.split_name(target)[1]
    return bool(label) and target not in {*pythons, *interpreters.environment_names()}


class _Unmeasured(Exception):
    """A version cannot be measured; the message says why."""


class _OtherWork(_Unmeasured):
    """A version computes what cannot be compared with the good version's work."""


class _OpenVersion:
    """One version opened: its workers, and its run."""

    def __init__(
        self,
        pool: WorkerPool,
        info: RunInfo,
        writer: RunWriter,
        recorder: Recorder,
        cases: Mapping[str, Case],
    ) -> None:
        self.pool, self.info, self.writer = pool, info, writer
        self.cases = cases  # id of a case of the good version → the same here
        self.records: list[Record] = []
        self.recorder = recorder
        self._is_fresh = True

    def start(self, case: Case) -> None:
        """Fresh workers, as in every round of a run: memory lies otherwise in each process that imports."""
        if not self._is_fresh:
            self.pool.start([self.cases[case.id]])
        self._is_fresh = False

    def prefetch_workers(self, case: Case) -> None:
        """Start these workers beside those of the other side of a pair: both import at once."""
        if not self._is_fresh:
            self.pool.prefetch_workers([self.cases[case.id]], 1)

    def wait_for_workers(self, case: Case) -> None:
        self.pool.wait_for_workers([self.cases[case.id]])

    def rest(self) -> None:
        """End the workers: another version is measured now, and needs the memory."""
        if not self._is_fresh:
            self.pool.start([])

    def store(self, record: Record) -> Record:
        """Append a record to the run."""
        stored = self.writer.append(record)
        self.records.append(stored)
        return stored


class _Row:
    """The versions, each opened when it is needed: its environment is built, or its revision checked out."""

    def __init__(
        self,
        asked: BisectOptions,
        terms: Request,
        options: MeasureOptions,
        pythons: Mapping[str, str],
        results: Path,
        observer: BisectObserver,
        stack: ExitStack,
    ) -> None:
        self.asked, self.terms, self.results = asked, terms, results
        self._options, self._pythons, self._observer, self._stack = options, pythons, observer, stack
        self._code = user_code()
        self.seed = random.SystemRandom().randrange(2**32) if terms.seed is None else terms.seed
        self._sides: dict[int, _OpenVersion] = {}
        self.id = asked.resume or new_id()
        self.plan: Plan | None = None  # of the good version
        self.frameworks: dict[int, str] = {}
        self._works: dict[str, CaseDigest | None] = {}  # of the good version, by case id

    def known_targets(self) -> list[Target]:
        """The targets of the ends, as far as they need not be built."""
        chosen = [self.asked.versions[0], self.asked.versions[-1]]
        named = [each.target for each in chosen if each.target and not is_missing(each.target, self._pythons)]
        wanted = named or list(self._options.backends)
        return targets(wanted, self._pythons, sys.executable) if wanted else []

    def tell(self, text: str) -> None:
        """A line for whoever looks on."""
        self._observer.note(text)

    @property
    def sides(self) -> Mapping[int, _OpenVersion]:
        """Those that are open."""
        return self._sides

    def side(self, number: int, cases: Sequence[Case] = ()) -> _OpenVersion:
        """The version, opened for `cases`, for all that are planned where it is the good one.

        Raises _Unmeasured.
        """
        if number not in self._sides:
            self._sides[number] = self._opened(number, cases)
        return self._sides[number]

    def _opened(self, number: int, cases: Sequence[Case]) -> _OpenVersion:
        version = self.asked.versions[number]
        code = self._code_of(version)
        targets = self._targets_of(version)
        described = (
            models_of_revision(code, targets, self.terms.settings, self._observer)
            if version.revision
            else nullcontext(code)
        )
        with described as code:
            side = Side(targets=targets, settings=self.terms.settings, code=code)
            heard = self._observer if not self._sides else RunObserver()  # what is wrong is the same for all
            (pool,) = self._stack.enter_context(open_pools([side], heard))
            self._observer.stage(f"looking for the devices of {version.label}")
            probes = pool.probe()
            self.frameworks[number] = ", ".join(
                f"{each.target.name} {each.version}" for each in probes if each.version
            )
            if self.plan is None:
                cases = self._planned(version, code, probes)
            here = self._cases_of(version, code, cases, probes)
        tags = {**self.terms.tags, BISECT: self.id, VERSION: version.label}
        tags |= {COMMIT: version.revision} if version.revision else {}
        own = replace(self.terms, policy=with_rounds(self.terms.policy, 1), seed=self.seed, tags=tags)
        info = run_head(probes, Plan(tuple(here.values()), ()), own)
        recorder = Recorder(pool, info, self._observer.stage)
        recorder.prepare(info.plan)
        writer = self._stack.enter_context(runs.create_run(self.results, info))
        return _OpenVersion(pool, info, writer, recorder, here)

    def _code_of(self, version: Version) -> UserCode:
        if not version.revision:
            return self._code
        try:
            return self._stack.enter_context(code_at(version.revision, self._code))
        except UsageError as error:
            raise _Unmeasured(str(error)) from error

    def _targets_of(self, version: Version) -> list[Target]:
        if not version.target:
            return targets(self._options.backends, self._pythons, sys.executable)
        if is_missing(version.target, self._pythons):
            self._build(version.target)
        return targets([version.target], self._pythons, sys.executable)

    def _build(self, name: str) -> None:
        def announce(made: BuildPlan) -> None:
            self._observer.note(f"building {name}: {size(made.download.remote_bytes)} to download")

        try:
            asked = build_request(name, (), variant=self.asked.variant or None)
            found = build_environment(asked, self.asked.variant, self._observer.stage, announce)
        except CannotBuild as error:
            raise _Unmeasured(" ".join((str(error), *error.log))) from error
        if found.health != "ready":
            raise _Unmeasured(f"{name} is built, but cannot be used: {found.reason}")

    def _planned(self, good: Version, code: UserCode, probes: Sequence[Probe]) -> Sequence[Case]:
        """The cases of the good version, at its own defaults."""
        check_devices(requested_devices(self.terms.entries, self.terms.selection.devices), probes)
        chosen = plan(self.terms.entries, self.terms.selection, probes)
        variant = _variant(good, code, probes)
        pairs = [
            (case, apply_variant(case, variant, probes, chosen.pinned[case.id])) for case in chosen.cases
        ]
        own = replace(
            chosen,
            cases=tuple(case for _, case in pairs),
            pinned={case.id: chosen.pinned[planned.id] for planned, case in pairs},
        )
        self.plan = without_too_large(own, machine().memory_bytes)
        return self.plan.cases

    def _cases_of(
        self, version: Version, code: UserCode, cases: Sequence[Case], probes: Sequence[Probe]
    ) -> dict[str, Case]:
        """The cases as this version has them, those that it can run. Raises _Unmeasured where it has none."""
        variant = _variant(version, code, probes)
        pinned = self.plan.pinned if self.plan else {}
        found: dict[str, Case] = {}
        reasons: list[str] = []
        others: list[str] = []
        for case in cases:
            own = apply_variant(case, variant, probes, pinned.get(case.id))
            probe = next(each for each in probes if each.target.name == own.target)
            obstacle = obstacle_of(own, probe, code) or too_large(own, machine().memory_bytes, code)
            if obstacle:
                reasons.append(obstacle.reason)
                continue
            work = planned_work(own, code)
            good = self._works.setdefault(case.id, work)
            if bars := work_mismatches(good, work) if good and work else []:
                others.append(f"other work: {'; '.join(bars)}")
            else:
                found[case.id] = own
        if others and not found:
            raise _OtherWork(others[0])
        if not found:
            faulty = [each.reason for each in probes if each.status != "ready"]
            left_out = [each.reason for each in self.plan.left_out] if self.plan else []
            raise _Unmeasured(next(iter([*reasons, *faulty, *left_out]), "it has no such case"))
        return found


def _variant(version: Version, code: UserCode, probes: Sequence[Probe]) -> Variant:
    return Variant(text=version.label, target=probes[0].target if version.target else None, code=code)


class _Search:
    """The pairs of one bisection, and what is made of them."""

    def __init__(self, row: _Row, observer: BisectObserver) -> None:
        self._row, self._asked, self._observer = row, row.asked, observer
        self._changes: dict[str, list[VersionPair]] = {}  # by the case's id of the good version
        self._skipped: dict[int, str] = {}
        self._number = 0
        self._disturbed: dict[str, int] = {}  # by the same: pairs
        self._measured: dict[tuple[int, str], Record] = {}  # the last record of a version, by the same
        self._earlier = _earlier_runs(row) if row.asked.resume else []
        self._cases: list[Case] = []
        self.rules = SearchRules(versions=len(self._asked.versions))

    def open_ends(self) -> None:
        """Open both ends, since what either cannot run is searched in none between."""
        last = len(self._asked.versions) - 1
        try:
            good = self._row.side(0)
            self._cases = list(self._row.plan.cases) if self._row.plan else []
            bad = self._row.side(last, [case for case in self._cases if case.id in good.cases])
        except _Unmeasured as error:
            number = last if 0 in self._row.sides else 0
            label = self._asked.versions[number].label
            if isinstance(error, _OtherWork):
                hint = f"Search a range whose versions have equal inputs and outputs, or set sizes: {SIZES}"
                raise NotComparable(f"{label} cannot be compared: {error}.", hint) from error
            raise NothingToMeasure(f"{label} cannot be measured: {error}", DEVICES_HINT) from error
        self._cases = [case for case in self._cases if case.id in good.cases and case.id in bad.cases]
        if not self._cases:
            raise NothingToMeasure("No case can run at both ends.", DEVICES_HINT)
        self.rules = SearchRules(
            versions=len(self._asked.versions),
            threshold=self._asked.threshold,
            confidence=self._asked.confidence,
            most=self._asked.most,
            cases=len(self._cases),
        )
        self._changes = {case.id: [] for case in self._cases}
        self._read_earlier()

    def searched(self) -> Bisection:
        """The ends of every case first; then the one with the largest step is searched."""
        ends = self._measured_ends()
        differing = [each for each in ends if each.end is SearchEnd.NAMED]
        sizes = {each.case: abs(estimate(each.changes, 0.95).mid) for each in differing}
        name = max(sizes, key=lambda each: sizes[each]) if sizes else _most_telling(ends)
        case = next(each for each in self._cases if each.id == name)
        pairs = self._changes[case.id]
        while isinstance(wanted := next_pair_or_result(pairs, self.rules, self._skipped.keys()), NextPair):
            self._pair(wanted, case)
        profiled = self._asked.profile and self._profile(wanted, case)
        for folder, _ in self._earlier:  # nothing is added to them any more
            with RunWriter(folder) as writer:
                writer.drop_torn()
        return Bisection(
            id=self._row.id,
            versions=tuple(self._asked.versions),
            metric=self._asked.metric,
            rules=self.rules,
            ends=tuple(ends),
            case=case.id,
            found=wanted,
            pairs=tuple(pairs),
            runs=self._runs(),
            skipped=self._skipped,
            frameworks=self._row.frameworks,
            disturbed=self._disturbed.get(case.id, 0),
            profiled=profiled,
            work=self._work_change(wanted, case),
        )

    def _measured_ends(self) -> list[EndsOfCase]:
        """Pairs of the ends, of all cases side by side, until each case is told or has used up its pairs."""
        last, failed = self.rules.last, set[str]()

        def changes(case: Case) -> list[float]:
            return [p.change for p in self._changes[case.id] if (p.version, p.beside) == (last, 0)]

        while True:
            open_ones = [
                case
                for case in self._cases
                if case.id not in failed
                and judge_ends(changes(case), self.rules) is None
                and len(self._changes[case.id]) < self.rules.most
            ]
            if not open_ones or (self._skipped.keys() & {0, last}):
                break
            for case in open_ones:
                several = len(self._cases) > 1
                if self._pair(NextPair(last, 0), case, skips=not several) is None and several:
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

    def _pair(self, wanted: NextPair, case: Case, *, skips: bool = True) -> float | None:
        """Measure a pair and keep it; its change. `skips`: a version that fails is not measured again."""
        number = self._number
        is_end = (wanted.version, wanted.beside) == (self.rules.last, 0)
        self._number += not is_end  # the ends of all cases have one number
        both = {wanted.beside: "", wanted.version: ""}
        try:
            sides = {each: self._row.side(each, [case]) for each in both}
        except _Unmeasured as error:
            self._skip(wanted.version if wanted.version not in self._row.sides else wanted.beside, str(error))
            return None
        for each, side in self._row.sides.items():
            if each not in both:
                side.rest()
        for side in sides.values():
            side.prefetch_workers(case)
        for side in sides.values():
            side.wait_for_workers(case)
        for side in sides.values():
            side.start(case)
        made: dict[int, Record] = {}
        order = sorted(both, reverse=number % 2 == 1)
        labels = " and ".join(self._asked.versions[version].label for version in order)
        self._observer.stage(f"pair {number + 1}: {labels}, {case.id}")
        competitors = [(sides[version].recorder, sides[version].cases[case.id]) for version in order]
        for place, record in measure_heat(competitors, number, self._row.seed, self._observer.progress):
            version = order[place]
            made[version] = sides[version].store(record)
            self._observer.record(made[version], version)
        change = self._keep(wanted, case, made, skips=skips)
        versions, known = self._asked.versions, wanted.span
        told = MadePair(
            number=number,
            case=case.id,
            version=versions[wanted.version].label,
            beside=versions[wanted.beside].label,
            change=None if change is None else math.exp(change),
            span=(versions[known.first].label, versions[known.last].label) if known else None,
        )
        self._observer.pair(told)
        return change

    def _keep(self, wanted: NextPair, case: Case, made: Mapping[int, Record], *, skips: bool) -> float | None:
        change, reasons = _change(made[wanted.version], made[wanted.beside], self._asked.metric)
        self._measured |= {(number, case.id): record for number, record in made.items() if change is not None}
        if skips:
            for place, reason in zip((wanted.version, wanted.beside), reasons, strict=True):
                if reason:
                    self._skip(place, reason)
        if change is not None:
            self._changes[case.id].append(
                VersionPair(version=wanted.version, beside=wanted.beside, change=change)
            )
            disturbed = any(_is_disturbed(record) for record in made.values())
            self._disturbed[case.id] = self._disturbed.get(case.id, 0) + disturbed
        return change

    def _skip(self, number: int, reason: str) -> None:
        self._skipped[number] = reason
        self._observer.note(f"{self._asked.versions[number].label} cannot be measured: {reason}")

    def _work_change(self, found: SearchResult, case: Case) -> str:
        """What changed in the work between the version that is named and its predecessor."""
        if found.end is not SearchEnd.NAMED or found.span is None:
            return ""
        both = [self._measured.get((number, case.id)) for number in (found.span.first - 1, found.span.last)]
        ref, new = (record and work_digest(record) for record in both)
        return work_change(ref, new) if ref and new else ""

    def _profile(self, found: SearchResult | NextPair, case: Case) -> bool:
        """Profile the version that is named and its predecessor; whether both have a profile to compare."""
        if not isinstance(found, SearchResult) or found.end is not SearchEnd.NAMED or found.span is None:
            return False
        if self._asked.metric.name not in STEADY_METRICS:
            return False
        outcomes = []
        for number in (found.span.first - 1, found.span.last):
            side = self._row.side(number, [case])
            side.start(case)
            own = [record for record in side.records if record.case.id == side.cases[case.id].id]
            for profile in store_profiles(side.pool, own, side.writer.folder, self._observer.stage):
                self._observer.profile(profile)
                outcomes.append(profile.outcome)
        return len(outcomes) == 2 and not any(isinstance(each, Failure) for each in outcomes)

    def _runs(self) -> dict[int, tuple[str, ...]]:
        found: dict[int, list[str]] = {}
        for folder, run in self._earlier:
            found.setdefault(self._place(run), []).append(folder.name)
        for number, side in self._row.sides.items():
            found.setdefault(number, []).append(side.info.id)
        return {number: tuple(names) for number, names in sorted(found.items())}

    def _place(self, run: Run) -> int:
        """The number of the version that a run is of. Raises UsageError where it is none of the row."""
        label = run.info.tags[VERSION]
        for number, version in enumerate(self._asked.versions):
            if version.label == label:
                return number
        raise UsageError(
            f"The bisection {self._row.id} measured {label}, which is not in this row.",
            "It is resumed by the command that began it, with --resume.",
        )

    def _read_earlier(self) -> None:
        """The pairs that were measured before this one went on: two records of one case and number."""
        made: dict[tuple[int, str], dict[int, Record]] = {}
        here = machine()
        for folder, run in self._earlier:
            if not same_hardware(run.info.machine, here):
                raise UsageError(f"The run {folder.name} is of another machine.", "Begin the bisection anew.")
            place = self._place(run)
            for record in run.records:
                for case in self._cases:
                    if self._is_of(record.case, case, place):
                        made.setdefault((record.round, case.id), {})[place] = record
                self._number = max(self._number, record.round + 1)
        for (_, name), both in sorted(made.items(), key=lambda each: each[0]):
            if len(both) == 2:
                beside, version = sorted(both)
                case = next(each for each in self._cases if each.id == name)
                skips = len(self._cases) == 1 or (version, beside) != (self.rules.last, 0)
                self._keep(NextPair(version, beside), case, both, skips=skips)
        if made:
            self._observer.note(f"{count_of(len(made), 'pair')} of this bisection exist already")

    def _is_of(self, stored: Case, case: Case, number: int) -> bool:
        """Whether a stored case is the one of the good version, but for the version's own defaults."""
        target = self._asked.versions[number].target or case.target
        pinned = self._row.plan.pinned[case.id] if self._row.plan else frozenset()

        def known(of: Case) -> dict[str, Scalar]:
            return {name: value for name, value in of.params.items() if name in pinned}

        return replace(stored, params=known(stored)).id == replace(case, params=known(case), target=target).id


def _most_telling(ends: Sequence[EndsOfCase]) -> str:
    """The case of which the ends were measured most often: what is said of all is said of it."""
    return max(ends, key=lambda each: len(each.changes)).case


def _change(version: Record, beside: Record, metric: Metric) -> tuple[float | None, tuple[str, str]]:
    """log(version / beside) of the metric, and why either has no value, if so."""
    values: list[float | None] = []
    reasons: list[str] = []
    for record in (version, beside):
        if isinstance(record.outcome, Failure):
            values.append(None)
            reasons.append(f"{record.outcome.status}: {record.outcome.message}")
            continue
        found = metric.source.process(record.outcome)
        usable = found.value is not None and 0 < found.value < math.inf
        values.append(found.value if usable else None)
        reasons.append("" if usable else f"it has no {metric.name}: {found.reason or found.value}")
    if values[0] is None or values[1] is None:
        return None, (reasons[0], reasons[1])
    if bars := work_mismatches(work_digest(beside), work_digest(version)):
        return None, (f"other work: {'; '.join(bars)}", "")
    if metric.name == LATENCY:
        pair = [
            timed_process(record.outcome)
            for record in (beside, version)
            if isinstance(record.outcome, Measurement)
        ]
        return log_ratio(*pair), ("", "")
    return math.log(values[0]) - math.log(values[1]), ("", "")


def _is_disturbed(record: Record) -> bool:
    return isinstance(record.outcome, Measurement) and not doubt(record.outcome).is_undisturbed


def _earlier_runs(row: _Row) -> list[tuple[Path, Run]]:
    """The runs of the bisection that is gone on with. Raises UsageError where there is none."""
    found = []
    for name in selectors.run_ids(row.results):
        folder = row.results / runs.RUNS / name
        try:
            if bisect_of(runs.read_head(folder).tags) == row.id:
                found.append((folder, runs.read_run(folder)))
        except UnreadableInput as error:
            row.tell(f"left out: {error}")
    if not found:
        raise UsageError(
            f"No stored run is of a bisection {row.id!r}.", "accelbench list runs shows the tags."
        )
    return found
