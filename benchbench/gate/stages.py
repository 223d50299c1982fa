"""Run a check end to end: compare with the baseline, re-measure what looks slower, decide; accept a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.analyse.digest import Digest, digest, partnered, under_present_names
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.environments.targets import absolute_interpreters
from benchbench.errors import NotComparable, UsageError, member
from benchbench.format import count_of
from benchbench.gate import baselines
from benchbench.gate.baselines import Tell
from benchbench.judging.check import GateResult, check_interleaved, decide
from benchbench.judging.pairs import MIN_PROCESSES
from benchbench.judging.second_test import Confirmation
from benchbench.judging.session_cases import GatePolicy
from benchbench.judging.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED, days_of
from benchbench.launch import catalogue
from benchbench.machine.environment import machine, same_hardware
from benchbench.model.case import Case
from benchbench.model.device import Machine
from benchbench.model.options import OPTIONS, MeasureOptions, Variance, Weights, flag_of
from benchbench.model.run import Run
from benchbench.model.status import Verdict
from benchbench.plan import config, rerun, suite
from benchbench.plan.cases import entry_plans
from benchbench.plan.rerun import Variant
from benchbench.plan.suite import Entry, Rule, Selection, fraction, select
from benchbench.running.interleaved import measure_cases_on, measure_sides
from benchbench.running.measure import measure_cases
from benchbench.running.observer import RunObserver
from benchbench.running.request import Terms
from benchbench.store import naming, runs, selectors

ELSEWHERE = "not measured again, since the run is of another machine: one stage decided"
CALL_AGAIN = "Call them again, then check that run: accelbench check latest --baseline {name}"
UNKNOWN = "not measured again, since a stored run has no functions: one stage decided"
HERE = "here"  # the side that is checked, beside the baseline's code


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What is asked of a check, as given; empty or None means what the nearest accelbench.toml says.

    `run`: a stored one, else the baseline's cases are measured now. `ab`: the baseline's code, to measure
    interleaved. `max_slowdown` is a fraction, as text `5%` or `0.05`. `measure`: what is measured and how.
    """

    measure: MeasureOptions
    results: Path
    run: str | None = None
    baseline: str | None = None
    ab: str | None = None
    max_slowdown: str | float | None = None
    metrics: tuple[str, ...] = ()
    confirm: bool = True
    dedicated: bool | None = None
    variance: Variance = Variance.SHARED
    strict_env: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """The gate's `result` on `run`; `baseline` is a name, empty where it is code measured with the run.

    `note`: why nothing was measured again, and whether the run is itself a session, if so.
    """

    baseline: str
    result: GateResult
    run: Run
    note: str = ""


def run_check(asked: CheckOptions, observer: RunObserver) -> CheckedRun:
    """Measure what has to be measured, and decide.

    Raises UsageError, NotComparable where there is no such baseline of this hardware, UnreadableInput,
    NothingToMeasure, CannotWrite.
    """
    rounds = asked.measure.rounds
    if rounds is not None and rounds < MIN_PROCESSES:
        hint = f"A check needs {MIN_PROCESSES} processes of each case."
        raise UsageError(f"{count_of(rounds, 'round')} cannot be tested.", hint)
    judge = _judge(asked)
    project = config.nearest_at(judge, Path()) if judge else config.nearest(Path())
    policy = _policy(asked, project)
    name = asked.baseline or ("" if asked.ab else project.check.baseline or "")
    if name:
        return _Stages(asked, project, observer).against_sessions(name, policy)
    if asked.ab and not asked.run:
        return _Stages(asked, project, observer, judge).against_code(asked.ab, policy)
    hint = "Give --baseline NAME (accelbench baseline list shows them), or make one of a run: "
    raise UsageError("Which baseline?", f"{hint}accelbench baseline set main latest")


def _judge(asked: CheckOptions) -> str:
    """The revision whose settings decide: that of the other code, so that no change sets its own limits."""
    if asked.baseline or not asked.ab:
        return ""
    return rerun.parse_variant(asked.ab, absolute_interpreters(asked.measure.pythons)).revision


def _policy(asked: CheckOptions, project: config.Config) -> GatePolicy:
    alone = project.check.dedicated if asked.dedicated is None else asked.dedicated
    names = asked.metrics or tuple(project.check.metric) or ("latency_s",)
    limit = asked.max_slowdown
    return GatePolicy(
        metrics=tuple(metric_named(name) for name in dict.fromkeys(names)),
        thresholds=() if limit is None else (Rule("", fraction(str(limit)), "--max-slowdown"),),
        assumed=ASSUMED_DEDICATED if alone else ASSUMED_SHARED,
        variance=asked.variance,
        strict_env=asked.strict_env,
        confirm=asked.confirm,
    )


@dataclass(frozen=True, slots=True)
class _Stages:
    """The first test of a run and, of what that flags, the second.

    `judge`: the revision that `project` is of, if it is not of here and now.
    """

    asked: CheckOptions
    project: config.Config
    observer: RunObserver
    judge: str = ""

    def against_sessions(self, name: str, policy: GatePolicy) -> CheckedRun:
        if others := [name for name in sorted(self.asked.measure.given) if OPTIONS[name].of_baseline]:
            flags = ", ".join(map(flag_of, others))
            shorter = " --rounds 3 makes it short." if "preset" in others else ""
            raise UsageError(
                f"The baseline says what is measured and how: {', '.join(others)} cannot be chosen.",
                f"Leave out {flags}, for --ab without --baseline.{shorter}",
            )
        sides = _sides(self.asked.ab, self.asked.measure) if self.asked.ab else None
        stored, run = self._run(name, sides)
        sessions, note = _others(stored, run, name, self.asked.results)
        policy = replace(policy, thresholds=self._thresholds(run, policy), interleaved=sides is not None)
        *sessions, new = under_present_names([*sessions, self._narrowed(digest(run))])
        result = decide(sessions, new, policy)
        if result.flagged:
            again = self._measured_again(result, sides)
            if again is None:
                policy = replace(policy, confirm=False, interleaved=False)
                calls = any(case.is_call for case in run.info.plan)
                note = "; ".join(filter(None, (note, UNKNOWN if calls else ELSEWHERE)))
            result = decide(sessions, new, policy, again)
        return CheckedRun(baseline=name, result=result, run=run, note=note)

    def against_code(self, ab: str, policy: GatePolicy) -> CheckedRun:
        sides = _sides(ab, self.asked.measure)
        before, after = measure_sides(sides, self.asked.measure, self.asked.results, self.observer)
        policy = replace(policy, thresholds=self._thresholds(after, policy))
        ref, new = digest(before), digest(after)
        first = check_interleaved(ref, new, policy)
        if not first.flagged:
            return CheckedRun(baseline="", result=first, run=after)
        again = self._measured_again(first, sides)
        return CheckedRun(baseline="", result=check_interleaved(ref, new, policy, again), run=after)

    def _run(self, name: str, sides: tuple[Variant, Variant] | None) -> tuple[list[Digest], Run]:
        """The sessions of a baseline, and the run: stored, or measured now as the newest of them was."""
        asked = self.asked
        if asked.run:
            run = runs.read_run(selectors.find_run(asked.results, asked.run))
            _only_code(sides, run.info.plan)
            return self._sessions(name, run.info.machine), run
        sessions = self._sessions(name, machine())
        cases = rerun.present_cases(planned(sessions))
        if any(case.is_call for case in cases):
            raise UsageError(
                f"Baseline {name!r} has functions of yours, which it cannot call.",
                CALL_AGAIN.format(name=name),
            )
        models = {case.workload for case in cases if case.suite == suite.OWN_SUITE}
        if unnamed := sorted(models - catalogue.models_in(models).keys()):
            raise UsageError(
                f"Baseline {name!r} has a model of yours, {', '.join(unnamed)}: nothing says where it is.",
                f"accelbench check --baseline {name} --model FILE.py",
            )
        _only_code(sides, cases)
        terms = self._terms(sessions[-1], asked.measure.rounds or sessions[-1].policy.rounds)
        return sessions, measure_cases(cases, terms, asked.measure.pythons, asked.results, self.observer)

    def _sessions(self, name: str, on: Machine) -> list[Digest]:
        stored = baselines.sessions(self.asked.results, name, on, self.observer.note)
        narrowed = [self._narrowed(each) for each in stored]
        if not any(each.cases for each in narrowed):
            suites = ", ".join(self.asked.measure.suites)
            where = selectors.results_option(self.asked.results)
            raise UsageError(
                f"Baseline {name!r} holds no case of {suites}.",
                f"accelbench baseline show {name}{where} lists what it holds.",
            )
        return narrowed

    def _narrowed(self, session: Digest) -> Digest:
        """Only the cases of the suites that were asked for, if any were."""
        entries = [entry for name in self.asked.measure.suites for entry in self._entries(name)]
        if not entries:
            return session
        cases = {
            name: side
            for name, side in session.cases.items()
            if side.case and any(entry_plans(entry, side.case) for entry in entries)
        }
        return replace(session, cases=cases)

    def _entries(self, name: str) -> list[Entry]:
        return [entry for _, entry in select([suite.load_suite(name)], Selection())]

    def _terms(self, like: Digest, rounds: int) -> Terms:
        policy = replace(like.policy, rounds=rounds)
        asked = self.asked.measure
        settings = replace(
            like.settings, input=str(asked.input or ""), weights=member(Weights, asked.weights)
        )
        return Terms(policy=policy, settings=settings, seed=None, command=asked.command, wait_s=asked.wait_s)

    def _measured_again(
        self, first: GateResult, sides: tuple[Variant, Variant] | None
    ) -> Confirmation | None:
        """Flagged cases measured again, with `sides` interleaved.

        None for a run of another machine, and for functions of the user's.
        """
        new = first.new
        cases = [case for name in first.flagged if (case := new.cases[name].case)]
        if not same_hardware(machine(), new.machine) or any(case.is_call for case in cases):
            return None
        names = ", ".join(case.id for case in cases)
        self.observer.note(f"{len(cases)} flagged, measuring again: {names}")
        terms = self._terms(new, max(new.policy.rounds, MIN_PROCESSES))
        within = self.asked.results / runs.RUNS / new.id  # or `latest` would be a run of flagged cases only
        pythons = self.asked.measure.pythons
        if sides is None:
            return Confirmation(new=digest(measure_cases(cases, terms, pythons, within, self.observer)))
        pinned = equal_params(first.sessions[-1], new) if first.interleaved else {}
        pair = measure_cases_on(sides, cases, terms, pythons, within, self.observer, pinned)
        ref, again = map(digest, pair)
        return Confirmation(new=again, ref=partnered(ref, again))

    def _thresholds(self, run: Run, policy: GatePolicy) -> tuple[Rule, ...]:
        """What is typed, else what the project and the suites say."""
        if policy.thresholds:
            return policy.thresholds
        return thresholds(run, self.project, self.asked.measure.suites, self.observer.note, self.judge)


def equal_params(ref: Digest, new: Digest) -> dict[str, frozenset[str]]:
    """Case id → the parameters that have equal values on both sides of an interleaved run.

    The others are at the defaults of each side's own code, where they are to be found again.
    """
    counterparts = partnered(ref, new).cases
    return {
        name: frozenset(
            key for key, value in side.case.params.items() if counterpart.case.params.get(key) == value
        )
        for name, side in new.cases.items()
        if (counterpart := counterparts.get(name)) and side.case and counterpart.case
    }


def thresholds(
    run: Run, project: config.Config, suites: Sequence[str], tell: Callable[[str], None], judge: str = ""
) -> tuple[Rule, ...]:
    """The project's patterns, those of the suites, given or found by the run's names, the project's limit.

    `judge`: the revision that the project's settings are of; then the suites' are of it, too.
    """
    of_suites = [case for case in run.info.plan if not (case.is_call or case.workload in run.info.models)]
    names = dict.fromkeys(case.suite for case in of_suites)
    known = {name: name for name in suite.suite_names()}
    known |= {suite.thresholds_of(name, judge)[0]: name for name in project.run.suite}
    for name in names:
        if not suites and name not in known and name != suite.DEFAULTS:
            tell(f"suite {name!r} is not found by name: give --suite FILE for its thresholds")
    chosen = suites or [known[name] for name in names if name in known]
    patterns = [rule for name in chosen for rule in suite.thresholds_of(name, judge)[1]]
    version = f" of {judge}" if judge else ""
    own, usual = config.config_thresholds(project, version), config.default_rules(project, version)
    return (*own, *patterns, *usual)


def _others(sessions: Sequence[Digest], run: Run, name: str, results: Path) -> tuple[list[Digest], str]:
    """The sessions other than the run itself, and a note if it is one. Raises NotComparable for none."""
    others = [each for each in sessions if each.id != run.info.id]
    if not others:
        again = f"accelbench check --baseline {name}{selectors.results_option(results)}"
        calls = any(case.is_call for case in run.info.plan)
        raise NotComparable(
            f"Run {run.info.id} is the only session of baseline {name!r}: against itself it always passes.",
            CALL_AGAIN.format(name=name) if calls else f"Measure now: {again}",
        )
    if len(others) == len(sessions):
        return others, ""
    return others, f"run {run.info.id} is itself a session of the baseline, and left out of it"


def planned(sessions: Sequence[Digest]) -> list[Case]:
    """Every case that a session could run, as it was planned last."""
    latest = {name: side.case for each in sessions for name, side in each.cases.items() if not side.absent}
    return [case for case in latest.values() if case]


def _sides(reference: str, options: MeasureOptions) -> tuple[Variant, Variant]:
    """The baseline's code as a side, and what is here. Raises UsageError."""
    return rerun.parse_variant(reference, absolute_interpreters(options.pythons)), Variant(text=HERE)


def _only_code(sides: tuple[Variant, Variant] | None, cases: Sequence[Case]) -> None:
    """Raise UsageError where a side is other than the baseline's code for these cases."""
    if sides is None:
        return
    side = sides[0]
    if side.mode or side.dtype or side.device or side.settings:
        raise UsageError(
            f"{side.text!r} does not name code of the baseline.",
            "Beside --baseline, --ab takes rev:… or NAME=PATH.",
        )
    others = {case.backend for case in cases} - {side.target.backend if side.target else ""}
    if side.target and others:
        raise UsageError(
            f"{side.text!r} says nothing of {', '.join(sorted(others))}.",
            "Check a run of that backend alone.",
        )


FAILING = (Verdict.SLOWER, Verdict.PROVISIONAL, Verdict.BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A session that was accepted, the ids it displaced, and how many runs and days its machine has now."""

    session: Digest
    dropped: list[str]
    runs: int
    days: int


def accept(
    results: Path, name: str, selector: str, tell: Tell, *, replace: bool = False, anyway: bool = False
) -> Acceptance:
    """Add a run to a baseline; with `replace` as the only session of its machine.

    Raises UsageError for a run that something speaks against, unless it is accepted `anyway`;
    UnreadableInput, CannotWrite.
    """
    folder = selectors.find_run(results, selector)
    if folder.parent.parent.parent == results / runs.RUNS:
        whole = folder.parent.parent.name
        raise UsageError(f"Run {folder.name} is the second test of {whole}, not a run.", f"Name {whole}.")
    run = runs.read_run(folder)
    session = digest(run)
    if not anyway and (doubts := objections(results, name, folder, run)):
        raise UsageError(
            f"Run {session.id} is not accepted: {'; '.join(doubts)}.",
            "Add --accept to make it part of the baseline anyway.",
        )
    dropped = baselines.add_session(results, name, session, tell, replace=replace)
    sessions = baselines.sessions(results, name, session.machine)
    days = len(set(days_of([each.started for each in sessions])))
    return Acceptance(session=session, dropped=dropped, runs=len(sessions), days=days)


def objections(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """Why a run should be no session: changed code, half of a comparison, no case that counts, a failure."""
    doubts = []
    measured = [side for side in digest(run).cases.values() if side.rounds]
    if measured and all(side.contended for side in measured):
        doubts.append(f"others disturbed all of its cases ({measured[0].contended}), so no check can use it")
    if measured and all(side.unsteady == len(side.rounds) for side in measured):
        doubts.append("all of its processes were still warming up, so no check can use it")
    if run.info.commit.endswith(naming.DIRTY):
        commit = naming.short(run.info.commit)
        doubts.append(f"its checkout had uncommitted changes ({commit})")
    if run.info.partner:
        doubts.append(f"it is the side {run.info.partner.label!r} of a comparison")
    if bisection := naming.bisect_of(run.info.tags):
        doubts.append(f"it is a version of the bisection {bisection}")
    if failing := _failing(results, name, folder, run):
        more = f" and {len(failing) - 1} more" if len(failing) > 1 else ""
        doubts.append(f"it fails its check against {name}: {failing[0]}{more}")
    return doubts


def _failing(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """The cases that fail against the sessions there are, by the same second test if the run had one."""
    new = digest(run)
    stored = baselines.stored_sessions(results, name, new.machine)
    sessions = [each for each in stored if each.id != new.id]
    if not sessions:
        return []
    again = _confirmation(folder)
    rules = thresholds(run, config.nearest(Path()), (), baselines.untold)
    policy = GatePolicy(
        metrics=METRICS[:1],
        thresholds=rules,
        confirm=again is not None,
        interleaved=bool(again and again.ref),
    )
    result = decide(sessions, new, policy, again)
    return [f"{each.case} {each.verdict}" for each in result.findings if each.verdict in FAILING]


def _confirmation(folder: Path) -> Confirmation | None:
    """What the last check of a run measured again, kept within its folder."""
    ids = selectors.run_ids(folder)
    if not ids:
        return None
    again = [digest(runs.read_run(folder / runs.RUNS / each)) for each in ids]
    here = next((each for each in reversed(again) if each.partner and each.partner.label == HERE), None)
    if here is None:
        return Confirmation(new=again[-1])
    ref = next((each for each in again if here.partner and each.id == here.partner.run), None)
    return Confirmation(new=here, ref=ref and partnered(ref, here))
