"""Check of a run from start to end, and the acceptance of a run into a baseline.

A check compares with the baseline, measures flagged and undecided cases again, and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchbench.analyse.digest import Digest, digest, with_partner_ids
from benchbench.analyse.metrics import LATENCY, metric_named
from benchbench.environments.interpreters import absolute_interpreters
from benchbench.errors import NotComparable, UsageError, member
from benchbench.format import count_of
from benchbench.gate import baselines
from benchbench.gate.baselines import Acceptance, Warn
from benchbench.judging.case_tests import Confirmation, GatePolicy
from benchbench.judging.check import GateResult, check_interleaved, decide
from benchbench.judging.pairs import MIN_PROCESSES
from benchbench.judging.sessions import ASSUMED_DEDICATED, ASSUMED_SHARED, days_of
from benchbench.launch import catalogue
from benchbench.machine.environment import machine, same_hardware
from benchbench.model.case import Case, Verdict
from benchbench.model.device import Machine
from benchbench.model.options import OPTIONS, MeasureOptions, Rule, Weights, flag_of
from benchbench.model.run import Run
from benchbench.plan import config, rerun, suite
from benchbench.plan.cases import entry_plans
from benchbench.plan.rerun import Variant
from benchbench.plan.suite import Entry, Selection, fraction, select
from benchbench.running.measure import measure_cases
from benchbench.running.observer import RunObserver
from benchbench.running.request import Terms
from benchbench.running.sides import measure_cases_on, measure_sides
from benchbench.store import disk, runs, selectors

OTHER_MACHINE = "not measured again, since the run is of another machine: one stage decided"
CALL_HINT = "Call them again, then check that run: accelbench check latest --baseline {name}"
STORED_FUNCTIONS = "not measured again, since a stored run has no functions: one stage decided"
HERE = "here"  # label of the checked side, beside the baseline's code


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of a check; empty or None means the setting of the nearest accelbench.toml.

    `run`: a stored run; otherwise the baseline's cases are measured now. `ab`: the baseline's code, to
    measure interleaved. `max_slowdown`: a fraction, or text like `5%` or `0.05`. `measure`: options for
    measuring.
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
    strict_env: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """Result of a check of `run`. `baseline`: its name; empty if its code was measured with the run.

    `note`: why nothing was measured again, and whether the run is itself a session.
    """

    baseline: str
    result: GateResult
    run: Run
    note: str = ""


def run_check(options: CheckOptions, observer: RunObserver) -> CheckedRun:
    """Measure what is needed, and decide.

    Raises UsageError, NotComparable if the baseline has no session of this hardware, UnreadableInput,
    NothingToMeasure, CannotWrite.
    """
    rounds = options.measure.rounds
    if rounds is not None and rounds < MIN_PROCESSES:
        hint = f"A check needs {MIN_PROCESSES} processes of each case."
        raise UsageError(f"{count_of(rounds, 'round')} cannot be tested.", hint)
    revision = _settings_revision(options)
    project = config.nearest_at(revision, Path()) if revision else config.nearest(Path())
    policy = _policy(options, project)
    name = options.baseline or ("" if options.ab else project.check.baseline or "")
    if name:
        return _Check(options, project, observer).against_sessions(name, policy)
    if options.ab and not options.run:
        return _Check(options, project, observer, revision).against_code(options.ab, policy)
    hint = "Give --baseline NAME (accelbench baseline list shows them), or make one of a run: "
    raise UsageError("Which baseline?", f"{hint}accelbench baseline set main latest")


def _settings_revision(options: CheckOptions) -> str:
    """Revision whose settings apply: that of the other code, so that a change cannot set its own limits."""
    if options.baseline or not options.ab:
        return ""
    return rerun.parse_variant(options.ab, absolute_interpreters(options.measure.pythons)).revision


def _policy(options: CheckOptions, project: config.Config) -> GatePolicy:
    dedicated = project.check.dedicated if options.dedicated is None else options.dedicated
    names = options.metrics or tuple(project.check.metric) or ("latency_s",)
    limit = options.max_slowdown
    return GatePolicy(
        metrics=tuple(metric_named(name) for name in dict.fromkeys(names)),
        thresholds=() if limit is None else (Rule("", fraction(str(limit)), "--max-slowdown"),),
        assumed=ASSUMED_DEDICATED if dedicated else ASSUMED_SHARED,
        strict_env=options.strict_env,
        confirm=options.confirm,
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """First test of a run, and the second test of flagged and undecided cases.

    `settings_revision`: the revision of `project`; empty for the working tree.
    """

    options: CheckOptions
    project: config.Config
    observer: RunObserver
    settings_revision: str = ""

    def against_sessions(self, name: str, policy: GatePolicy) -> CheckedRun:
        if fixed_options := [
            name for name in sorted(self.options.measure.changed_fields) if OPTIONS[name].of_baseline
        ]:
            flags = ", ".join(map(flag_of, fixed_options))
            rounds_hint = " --rounds 3 makes it short." if "preset" in fixed_options else ""
            raise UsageError(
                f"The baseline says what is measured and how: {', '.join(fixed_options)} cannot be chosen.",
                f"Leave out {flags}, for --ab without --baseline.{rounds_hint}",
            )
        sides = _sides(self.options.ab, self.options.measure) if self.options.ab else None
        sessions, run = self._sessions_and_run(name, sides)
        sessions, note = _other_sessions(sessions, run, name, self.options.results)
        policy = replace(policy, thresholds=self._thresholds(run, policy), interleaved=sides is not None)
        new = self._of_suites(digest(run))
        result = decide(sessions, new, policy)
        if result.repeated:
            confirmation = self._measure_again(result, sides)
            if confirmation is None:
                policy = replace(policy, confirm=False, interleaved=False)
                has_functions = any(case.is_call for case in run.info.plan)
                note = "; ".join(filter(None, (note, STORED_FUNCTIONS if has_functions else OTHER_MACHINE)))
            result = decide(sessions, new, policy, confirmation)
        return CheckedRun(baseline=name, result=result, run=run, note=note)

    def against_code(self, ab: str, policy: GatePolicy) -> CheckedRun:
        sides = _sides(ab, self.options.measure)
        ref_run, new_run = measure_sides(sides, self.options.measure, self.options.results, self.observer)
        policy = replace(policy, thresholds=self._thresholds(new_run, policy))
        ref, new = digest(ref_run), digest(new_run)
        first = check_interleaved(ref, new, policy)
        if not first.repeated:
            return CheckedRun(baseline="", result=first, run=new_run)
        confirmation = self._measure_again(first, sides)
        return CheckedRun(baseline="", result=check_interleaved(ref, new, policy, confirmation), run=new_run)

    def _sessions_and_run(self, name: str, sides: tuple[Variant, Variant] | None) -> tuple[list[Digest], Run]:
        """Sessions of a baseline, and the run: a stored one, or one measured now like the newest session."""
        options = self.options
        if options.run:
            run = runs.read_run(selectors.find_run(options.results, options.run))
            _validate_reference(sides, run.info.plan)
            return self._sessions(name, run.info.machine), run
        sessions = self._sessions(name, machine())
        cases = planned_cases(sessions)
        if any(case.is_call for case in cases):
            raise UsageError(
                f"Baseline {name!r} has functions of yours, which it cannot call.",
                CALL_HINT.format(name=name),
            )
        models = {case.workload for case in cases if case.suite == suite.MODEL_SUITE}
        if missing_models := sorted(models - catalogue.models_in(models).keys()):
            raise UsageError(
                f"Baseline {name!r} has your model {', '.join(missing_models)}, whose file is unknown.",
                f"accelbench check --baseline {name} --model FILE.py",
            )
        _validate_reference(sides, cases)
        terms = self._terms(sessions[-1], options.measure.rounds or sessions[-1].policy.rounds)
        return sessions, measure_cases(cases, terms, options.measure.pythons, options.results, self.observer)

    def _sessions(self, name: str, on: Machine) -> list[Digest]:
        sessions = baselines.require_sessions(self.options.results, name, on, self.observer.note)
        selected = [self._of_suites(session) for session in sessions]
        if not any(session.cases for session in selected):
            suites = ", ".join(self.options.measure.suites)
            results_hint = selectors.results_option(self.options.results)
            raise UsageError(
                f"Baseline {name!r} has no case of {suites}.",
                f"accelbench baseline show {name}{results_hint} lists its cases.",
            )
        return selected

    def _of_suites(self, session: Digest) -> Digest:
        """The session with only the cases of the requested suites, if any were requested."""
        entries = [entry for name in self.options.measure.suites for entry in self._entries(name)]
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

    def _terms(self, template: Digest, rounds: int) -> Terms:
        policy = replace(template.policy, rounds=rounds)
        measure = self.options.measure
        settings = replace(
            template.settings, input=str(measure.input or ""), weights=member(Weights, measure.weights)
        )
        return Terms(
            policy=policy, settings=settings, seed=None, command=measure.command, wait_s=measure.wait_s
        )

    def _measure_again(self, first: GateResult, sides: tuple[Variant, Variant] | None) -> Confirmation | None:
        """Flagged and undecided cases measured again, interleaved with `sides` if given.

        None if the run is of another machine or has functions of the user.
        """
        new = first.new
        cases = [case for name in first.repeated if (case := new.cases[name].case)]
        if not same_hardware(machine(), new.machine) or any(case.is_call for case in cases):
            return None
        counts = {"flagged": len(first.flagged), "undecided": len(first.repeated) - len(first.flagged)}
        text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        self.observer.note(f"{text}, measuring again: {', '.join(case.id for case in cases)}")
        terms = self._terms(new, max(new.policy.rounds, MIN_PROCESSES))
        folder = self.options.results / runs.RUNS / new.id  # or `latest` would be a run of these cases only
        pythons = self.options.measure.pythons
        if sides is None:
            return Confirmation(new=digest(measure_cases(cases, terms, pythons, folder, self.observer)))
        pinned = equal_params(first.sessions[-1], new) if first.interleaved else {}
        pair = measure_cases_on(sides, cases, terms, pythons, folder, self.observer, pinned)
        ref, new_again = map(digest, pair)
        return Confirmation(new=new_again, ref=with_partner_ids(ref, new_again))

    def _thresholds(self, run: Run, policy: GatePolicy) -> tuple[Rule, ...]:
        """Thresholds from the command line; otherwise those of the project and its suites."""
        if policy.thresholds:
            return policy.thresholds
        return threshold_rules(
            run, self.project, self.options.measure.suites, self.observer.note, self.settings_revision
        )


def equal_params(ref: Digest, new: Digest) -> dict[str, frozenset[str]]:
    """Case id → parameters with equal values on both sides of an interleaved run.

    The other parameters have the defaults of each side's own code, and are looked up there again.
    """
    counterparts = with_partner_ids(ref, new).cases
    return {
        name: frozenset(
            key for key, value in side.case.params.items() if counterpart.case.params.get(key) == value
        )
        for name, side in new.cases.items()
        if (counterpart := counterparts.get(name)) and side.case and counterpart.case
    }


def threshold_rules(
    run: Run,
    project: config.Config,
    suites: Sequence[str],
    warn: Callable[[str], None],
    settings_revision: str = "",
) -> tuple[Rule, ...]:
    """Threshold rules: the project's patterns, those of the suites, and the project's limit.

    `suites`: if empty, suites are found by the names in the run. `settings_revision`: the revision of the
    project's settings; the suites' are read from it too.
    """
    suite_cases = [case for case in run.info.plan if not (case.is_call or case.workload in run.info.models)]
    names = dict.fromkeys(case.suite for case in suite_cases)
    suites_by_name = {name: name for name in suite.suite_names()}
    suites_by_name |= {suite.thresholds_of(name, settings_revision)[0]: name for name in project.run.suite}
    for name in names:
        if not suites and name not in suites_by_name and name != suite.DEFAULTS:
            warn(f"suite {name!r} is not found by name: give --suite FILE for its thresholds")
    chosen_suites = suites or [suites_by_name[name] for name in names if name in suites_by_name]
    patterns = [rule for name in chosen_suites for rule in suite.thresholds_of(name, settings_revision)[1]]
    version = f" of {settings_revision}" if settings_revision else ""
    project_rules, default_rules = (
        config.config_thresholds(project, version),
        config.default_rules(project, version),
    )
    return (*project_rules, *patterns, *default_rules)


def _other_sessions(
    sessions: Sequence[Digest], run: Run, name: str, results: Path
) -> tuple[list[Digest], str]:
    """Sessions except the run itself, and a note if it is one of them.

    Raises NotComparable if there is no other session.
    """
    others = [session for session in sessions if session.id != run.info.id]
    if not others:
        check_command = f"accelbench check --baseline {name}{selectors.results_option(results)}"
        has_functions = any(case.is_call for case in run.info.plan)
        raise NotComparable(
            f"Run {run.info.id} is the only session of baseline {name!r}: against itself it always passes.",
            CALL_HINT.format(name=name) if has_functions else f"Measure now: {check_command}",
        )
    if len(others) == len(sessions):
        return others, ""
    return others, f"run {run.info.id} is itself a session of the baseline, and left out of it"


def planned_cases(sessions: Sequence[Digest]) -> list[Case]:
    """All cases that a session could run, from the last plan."""
    latest = {
        name: side.case for session in sessions for name, side in session.cases.items() if not side.absent
    }
    return [case for case in latest.values() if case]


def _sides(reference: str, options: MeasureOptions) -> tuple[Variant, Variant]:
    """Variants for the baseline's code and for the working tree. Raises UsageError."""
    return rerun.parse_variant(reference, absolute_interpreters(options.pythons)), Variant(text=HERE)


def _validate_reference(sides: tuple[Variant, Variant] | None, cases: Sequence[Case]) -> None:
    """Raise UsageError unless the first side names code of the baseline for these cases."""
    if sides is None:
        return
    reference = sides[0]
    if reference.mode or reference.dtype or reference.device or reference.settings:
        raise UsageError(
            f"{reference.text!r} does not name code of the baseline.",
            "Beside --baseline, --ab takes rev:… or NAME=PATH.",
        )
    other_backends = {case.backend for case in cases} - {reference.target.backend if reference.target else ""}
    if reference.target and other_backends:
        raise UsageError(
            f"{reference.text!r} says nothing of {', '.join(sorted(other_backends))}.",
            "Check a run of that backend alone.",
        )


FAILED_VERDICTS = (Verdict.SLOWER, Verdict.PROVISIONAL, Verdict.BROKEN)


def accept(
    results: Path, name: str, selector: str, warn: Warn, *, replace: bool = False, anyway: bool = False
) -> Acceptance:
    """Add a run to a baseline; with `replace` as the only session of its machine.

    Raises NotComparable if there are objections, unless `anyway`; UsageError for the second test of a run;
    UnreadableInput, CannotWrite.
    """
    folder = selectors.find_run(results, selector)
    if folder.parent.parent.parent == results / runs.RUNS:
        checked_run = folder.parent.parent.name
        raise UsageError(
            f"Run {folder.name} is the second test of {checked_run}, not a run.", f"Name {checked_run}."
        )
    run = runs.read_run(folder)
    session = digest(run)
    if not anyway and (doubts := objections(results, name, folder, run)):
        raise NotComparable(
            f"Run {session.id} is not accepted: {'; '.join(doubts)}.",
            "Add --accept to make it part of the baseline anyway.",
        )
    removed = baselines.add_session(results, name, session, warn, replace=replace)
    sessions = baselines.require_sessions(results, name, session.machine)
    days = len(set(days_of([entry.started for entry in sessions])))
    return Acceptance(session=session, removed=removed, runs=len(sessions), days=days)


def objections(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """Reasons against a run as a session.

    Such as uncommitted changes, a side of a comparison, no usable case, or a failed check.
    """
    reasons = []
    measured = [side for side in digest(run).cases.values() if side.rounds]
    if measured and all(side.contended for side in measured):
        reasons.append(
            f"other programs disturbed all of its cases ({measured[0].contended}), so no check can use it"
        )
    if measured and all(side.unsteady == len(side.rounds) for side in measured):
        reasons.append("all of its processes were still warming up, so no check can use it")
    if run.info.commit.endswith(disk.DIRTY):
        commit = disk.short(run.info.commit)
        reasons.append(f"its checkout had uncommitted changes ({commit})")
    if run.info.partner:
        reasons.append(f"it is the side {run.info.partner.label!r} of a comparison")
    if bisection := disk.bisect_of(run.info.tags):
        reasons.append(f"it is a version of the bisection {bisection}")
    if failed_cases := _failed_cases(results, name, folder, run):
        more = f" and {len(failed_cases) - 1} more" if len(failed_cases) > 1 else ""
        reasons.append(f"it fails its check against {name}: {failed_cases[0]}{more}")
    return reasons


def _failed_cases(results: Path, name: str, folder: Path, run: Run) -> list[str]:
    """Cases that fail against the present sessions, with the same second test if the run had one."""
    new = digest(run)
    stored = baselines.find_sessions(results, name, new.machine)
    sessions = [session for session in stored if session.id != new.id]
    if not sessions:
        return []
    confirmation = _confirmation(folder)
    rules = threshold_rules(run, config.nearest(Path()), (), baselines.ignore_warning)
    policy = GatePolicy(
        metrics=(LATENCY,),
        thresholds=rules,
        confirm=confirmation is not None,
        interleaved=bool(confirmation and confirmation.ref),
    )
    result = decide(sessions, new, policy, confirmation)
    return [
        f"{finding.case} {finding.verdict}"
        for finding in result.findings
        if finding.verdict in FAILED_VERDICTS
    ]


def _confirmation(folder: Path) -> Confirmation | None:
    """Second measurement of the last check of a run, which is stored in its folder."""
    ids = selectors.run_ids(folder)
    if not ids:
        return None
    digests = [digest(runs.read_run(folder / runs.RUNS / run_id)) for run_id in ids]
    checked = next(
        (entry for entry in reversed(digests) if entry.partner and entry.partner.label == HERE), None
    )
    if checked is None:
        return Confirmation(new=digests[-1])
    ref = next((entry for entry in digests if checked.partner and entry.id == checked.partner.run), None)
    return Confirmation(new=checked, ref=ref and with_partner_ids(ref, checked))
