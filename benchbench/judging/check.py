"""Check of a run: sessions, run and second measurement become findings, endings and an exit code. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from benchbench.analyse.digest import CaseDigest, Digest, with_partner_ids, work_change
from benchbench.analyse.metrics import Metric
from benchbench.format import count_of
from benchbench.judging.case_tests import (
    TOGETHER,
    CaseTest,
    Confirmation,
    GatePolicy,
    interleaved_tests,
    second_tests,
    session_tests,
)
from benchbench.judging.comparison import (
    ALPHA,
    NOISY_SESSIONS,
    TOO_NOISY,
    judge,
    undecided_reason,
)
from benchbench.judging.pairs import run_changes, version_suspect
from benchbench.judging.session_cases import BaselineMatch
from benchbench.judging.sessions import MIN_SESSIONS
from benchbench.judging.significance import (
    Family,
    TestResult,
    adjusted_results,
    family_of,
    family_size,
)
from benchbench.model.case import Verdict
from benchbench.model.options import Inconclusive, Isolation, Rule
from benchbench.model.run import Policy
from benchbench.stats import median

MAX_SESSIONS = 10  # of a machine in a baseline: older ones show other weather


NOT_PLANNED = "in the baseline, but not in the plan of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """A planned case without a record in every round."""

    case: str
    reason: str


def missing_records(sessions: Sequence[Digest], new: Digest) -> list[MissingRecords]:
    """Cases of `new` without all their rounds, then cases of `sessions` that `new` did not plan."""
    baseline_cases = dict.fromkeys(
        name for session in sessions for name, side in session.cases.items() if side.rounds or side.failure
    )
    absent = [
        MissingRecords(case=name, reason=NOT_PLANNED) for name in baseline_cases if name not in new.cases
    ]
    return [*missing_rounds(new), *absent]


def missing_pairs(ref: Digest, new: Digest) -> list[MissingRecords]:
    """Cases without all their rounds on either side of an interleaved run.

    A case that fails on one side is not measured again on the other.
    """
    failed = {
        name
        for name, side in new.cases.items()
        for partner in [ref.cases.get(name, side)]
        if side.failure or partner.failure or partner.absent
    }
    missing = {entry.case: entry for digest in (ref, new) for entry in missing_rounds(digest)}
    return [entry for name, entry in missing.items() if name not in failed]


def missing_rounds(new: Digest) -> list[MissingRecords]:
    """Planned cases that neither failed nor have a record of every round."""
    may_lack_rounds = new.settings.isolation is Isolation.SHARED  # pytest may run a selection of tests
    return [
        MissingRecords(case=name, reason=reason)
        for name, side in new.cases.items()
        if not (side.absent or side.failure)
        and (reason := _missing_rounds_reason(side, new.policy, may_lack_rounds))
    ]


def _missing_rounds_reason(side: CaseDigest, policy: Policy, may_lack_rounds: bool) -> str:
    count, planned = len(side.rounds), policy.rounds
    if count == 0:
        return "planned, but without a record"
    if may_lack_rounds:
        return ""
    if not set(range(planned)) <= set(side.rounds):
        return f"records of {count} of {count_of(planned, 'round')}"
    return ""


def decide(
    sessions: Sequence[Digest], new: Digest, policy: GatePolicy, confirmation: Confirmation | None = None
) -> GateResult:
    """Check `new` against sessions of the same machine, oldest first.

    The first test flags a case with a one-sided p < 0.05 and an estimate worse than its threshold. The second
    test uses only the processes of `confirmation`. Interleaved with the baseline's code they are a new
    experiment, and undecided cases are measured again, too. Holm's family is then the flagged cases or, for
    an undecided case, all cases measured again. Against stored sessions both tests share the hour and the
    sessions. So the family is every test of the check, and with fewer than five sessions, or outlying ones, a
    case is provisional at most (docs/checking.md). Without a confirmation, flagged cases are inconclusive
    unless the `policy` has one test only.
    """
    tests, missing = session_tests(sessions, new, policy), missing_records(sessions, new)
    return _gate_result(tests, sessions, new, policy, confirmation, missing)


def check_interleaved(
    ref: Digest, new: Digest, policy: GatePolicy, confirmation: Confirmation | None = None
) -> GateResult:
    """Check `new` against the baseline's code `ref`, which was measured interleaved with it."""
    policy, ref_cases = replace(policy, interleaved=True), with_partner_ids(ref, new)
    tests, missing = interleaved_tests(ref_cases, new, policy), missing_pairs(ref_cases, new)
    return _gate_result(tests, [ref], new, policy, confirmation, missing, interleaved=True)


def _gate_result(
    tests: Sequence[CaseTest],
    sessions: Sequence[Digest],
    new: Digest,
    policy: GatePolicy,
    confirmation: Confirmation | None,
    missing: Sequence[MissingRecords],
    *,
    interleaved: bool = False,
) -> GateResult:
    size, confirmed = family_size(tests), policy.confirm
    family = family_of(size, stored=not interleaved, confirmed=confirmed, interleaved=policy.interleaved)
    first_results = adjusted_results(tests, family)
    flagged, undecided = set[tuple[str, str]](), set[tuple[str, str]]()
    for test in tests:
        if first := first_results.get(test.match.key):
            if _is_flagged(test, first, policy):
                flagged.add(test.match.key)
            elif _is_undecided(test, first, policy, family):
                undecided.add(test.match.key)
    repeated = [test for test in tests if test.match.key in flagged | undecided]
    others = [test for test in tests if test.match.key not in flagged | undecided]
    second = second_tests(repeated, new, confirmation, policy, others) if confirmation else []
    second_by_key = {test.match.key: test for test in second}
    if confirmation and confirmation.ref:
        second_results = _results_of_new_pairs(second, flagged, family)
    else:
        second_results = adjusted_results(second, family)
    findings = []
    for test in tests:
        key = test.match.key
        first, second_result = first_results.get(key), second_results.get(key)
        findings.append(_finding(test, first, key in flagged, second_by_key.get(key), second_result, family))
    return GateResult(
        sessions=tuple(sessions),
        new=new,
        confirmation=confirmation,
        policy=policy,
        findings=tuple(finding for finding in findings if finding.case != TOGETHER),
        together=tuple(finding for finding in findings if finding.case == TOGETHER),
        missing=tuple(missing),
        tested=sum(case != TOGETHER for case, _ in first_results),
        changes=tuple(run_changes(sessions[-1], new)),
        unused_thresholds=_unused_thresholds(policy.thresholds, tests),
        undecided=tuple(dict.fromkeys(test.match.case for test in tests if test.match.key in undecided)),
        interleaved=interleaved,
    )


def _results_of_new_pairs(
    second: Sequence[CaseTest], flagged: set[tuple[str, str]], family: Family
) -> dict[tuple[str, str], TestResult]:
    """Results of the second tests, if they are a new experiment with the baseline's code.

    Flagged cases are a family of their own, so that undecided ones do not cost them power. For an undecided
    case the family is all cases measured again.
    """
    flagged_tests = [test for test in second if test.match.key in flagged]
    undecided_tests = [test for test in second if test.match.key not in flagged]
    flagged_family = replace(family, size=family_size(flagged_tests), min_size=1)
    return {
        **adjusted_results(flagged_tests, flagged_family),
        **adjusted_results(undecided_tests, replace(flagged_family, size=family_size(second))),
    }


def _is_flagged(test: CaseTest, first: TestResult, policy: GatePolicy) -> bool:
    """True if the first test is a reason for a second one.

    If the second test will be a new experiment with the baseline's code, the difference alone is enough.
    """
    if not policy.confirm or test.worsening.mid < test.margin:
        return False
    return first.p < ALPHA or (test.deviation is not None and policy.interleaved)


def _is_undecided(test: CaseTest, first: TestResult, policy: GatePolicy, family: Family) -> bool:
    """True if the first test decides nothing, and the second one will be a new experiment with the code."""
    if test.is_together or not (policy.confirm and policy.interleaved):
        return False
    return _verdict_of(test, first, family)[0] is Verdict.INCONCLUSIVE


def _finding(
    test: CaseTest,
    first: TestResult | None,
    flagged: bool,
    second: CaseTest | None,
    confirmation: TestResult | None,
    family: Family,
) -> CaseFinding:
    verdict, reason = reach_verdict(test, first, flagged, second, confirmation, family)
    if verdict in (Verdict.SLOWER, Verdict.FASTER):
        reason = version_suspect(test.match.newest, test.match.new)
    sides = [test.match.new, *([second.match.new] if second else [])]
    return CaseFinding(
        case=test.match.case,
        metric=test.match.metric.name,
        verdict=verdict,
        flagged=flagged,
        threshold=test.limit.value,
        threshold_from=test.limit.source,
        spread=test.deviation.spread if test.deviation else None,
        provisional=test.is_provisional,
        heavy_tails=test.heavy_tails,
        first=first,
        confirmation=confirmation,
        steady=not any(side.unsteady for side in sides),
        stopped_by=tuple(sorted({reason for side in sides for reason in side.stopped_by})),
        lost=test.match.is_unrunnable,
        seen=untested_medians(test.match) if verdict is Verdict.INSUFFICIENT and first is None else None,
        reason=reason,
        work="" if verdict is Verdict.INCOMPARABLE else work_change(test.match.newest, test.match.new),
    )


def untested_medians(match: BaselineMatch) -> UntestedMedians | None:
    """Medians of a case that cannot be tested; None if a side measured nothing."""
    ref = [value for session in match.sessions for value in _positive(session.digest, match.metric)]
    new = _positive(match.new, match.metric)
    if not ref or not new:
        return None
    return UntestedMedians(ref=median(ref), new=median(new), ref_processes=len(ref), new_processes=len(new))


def _positive(side: CaseDigest, metric: Metric) -> list[float]:
    return [value for value in side.values_of(metric) if value is not None and 0 < value < math.inf]


def _unused_thresholds(rules: Sequence[Rule], tests: Sequence[CaseTest]) -> tuple[str, ...]:
    cases = {(test.match.suite, test.match.case) for test in tests if not test.is_together}
    return tuple(rule.source for rule in rules if not any(rule.names(*case) for case in cases))


UNCONFIRMED = "flagged, and not measured again"
OUTLYING_SESSIONS = "slower, though some sessions are far from the rest"
WAIT_HINT = "--wait-for-idle measures once they are done"


def reach_verdict(
    test: CaseTest,
    first: TestResult | None,
    flagged: bool,
    second: CaseTest | None,
    confirmation: TestResult | None,
    family: Family,
) -> tuple[Verdict, str]:
    """Verdict of a case with its reason: from the second test if there is one, else from the first.

    A flagged case without a second test is inconclusive.
    """
    if first is None:
        assert test.match.verdict
        return test.match.verdict, test.match.reason
    if second is None:
        return (Verdict.INCONCLUSIVE, UNCONFIRMED) if flagged else _verdict_of(test, first, family)
    if confirmation is None:
        assert second.match.verdict
        return second.match.verdict, f"measured again: {second.match.reason}"
    verdict, reason = _verdict_of(second, confirmation, family)
    if verdict in (Verdict.SLOWER, Verdict.PROVISIONAL):
        return verdict, reason
    first_result = "flagged, not confirmed" if flagged else "measured again"
    return verdict, f"{first_result}; {reason}".rstrip("; ")


def _verdict_of(test: CaseTest, result: TestResult, family: Family) -> tuple[Verdict, str]:
    """Verdict of one test, with its reason."""
    difference = test.difference
    assert difference
    # Pairs have weighed a disturbance already.
    disturbance = "" if test.match.interleaved else test.match.new.disturbance(test.match.metric)
    if disturbance:
        return Verdict.INSUFFICIENT, f"{disturbance}: {WAIT_HINT}"
    deviation = test.deviation  # None for pairs
    verdict = judge(difference, result.p_holm, test.margin, test.match.metric.better)
    if verdict is Verdict.SLOWER and deviation and deviation.is_provisional:
        return Verdict.PROVISIONAL, f"slower, on {deviation.days} of {MIN_SESSIONS} sessions"
    if verdict is Verdict.SLOWER and test.heavy_tails:
        return Verdict.PROVISIONAL, OUTLYING_SESSIONS
    if verdict is not Verdict.INCONCLUSIVE:
        return verdict, ""
    if deviation and deviation.is_provisional:
        missing_days = count_of(MIN_SESSIONS - deviation.days, "more session")
        return verdict, f"{missing_days} on other days would show how they differ"
    noise = NOISY_SESSIONS if deviation and deviation.sessions_dominate else TOO_NOISY
    return verdict, undecided_reason(difference, test.margin, family.level, noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class UntestedMedians:
    """Medians over the processes of both sides of a case that was not tested; not a basis for a verdict."""

    ref: float
    new: float
    ref_processes: int
    new_processes: int

    @property
    def ratio(self) -> float:
        """The ratio new / ref."""
        return self.new / self.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFinding:
    """Finding on one case and metric. `seen`: medians of a case that was not tested.

    `first`, `confirmation`: results of the tests; None if there was none. `spread`: measured between the
    sessions, as a fraction; if `provisional`, an assumed one is included. `heavy_tails`: some sessions are
    outliers. `lost`: the case was requested but cannot run. `reason`: explanation of an undecided verdict,
    or the suspected cause of a change. `work`: how the computation of the case has changed.
    """

    case: str
    metric: str
    verdict: Verdict
    flagged: bool
    threshold: float
    threshold_from: str
    spread: float | None
    provisional: bool
    heavy_tails: bool
    first: TestResult | None
    confirmation: TestResult | None
    steady: bool
    stopped_by: tuple[str, ...]
    lost: bool
    reason: str
    seen: UntestedMedians | None = None
    work: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Result of a check. `missing`: planned cases and rounds without a record.

    `changes`: differences from the newest session that do not prevent a comparison. `unused_thresholds`:
    those that name no case. `interleaved`: the only session is the baseline's code, measured interleaved
    with the run. `together`: findings on all cases as one, per metric, against stored sessions; each case
    is judged relative to them. `undecided`: cases that are measured again since the first test decides
    nothing.
    """

    sessions: tuple[Digest, ...]
    new: Digest
    confirmation: Confirmation | None
    policy: GatePolicy
    findings: tuple[CaseFinding, ...]
    missing: tuple[MissingRecords, ...]
    tested: int
    changes: tuple[str, ...]
    unused_thresholds: tuple[str, ...]
    together: tuple[CaseFinding, ...] = ()
    undecided: tuple[str, ...] = ()
    interleaved: bool = False

    @property
    def flagged(self) -> list[str]:
        """Cases flagged by the first test; all cases if they are flagged together."""
        flagged_metrics = {finding.metric for finding in self.together if finding.flagged}
        return list(
            dict.fromkeys(
                finding.case
                for finding in self.findings
                if finding.flagged or (finding.first and finding.metric in flagged_metrics)
            )
        )

    @property
    def repeated(self) -> list[str]:
        """Cases to measure again, flagged ones first."""
        return list(dict.fromkeys([*self.flagged, *self.undecided]))


Cause = CaseFinding | MissingRecords


class Ending(Enum):
    """Reason why a check does not pass, in the order of the report; the value is its name in JSON."""

    NOTHING_TESTED = "nothing_tested"
    INCOMPLETE = "incomplete"
    REGRESSED = "regressed"
    FAILED = "failed"
    NOT_COMPARABLE = "not_comparable"
    PROVISIONAL = "provisional"
    INCONCLUSIVE = "inconclusive"

    @property
    def code(self) -> int:
        """Exit code of a process with this ending (docs/checking.md)."""
        return EXIT_CODES[self]


EXIT_CODES: Mapping[Ending, int] = {
    Ending.REGRESSED: 10,
    Ending.FAILED: 4,
    Ending.NOTHING_TESTED: 11,
    Ending.INCOMPLETE: 11,
    Ending.NOT_COMPARABLE: 11,
    Ending.PROVISIONAL: 12,
    Ending.INCONCLUSIVE: 13,
}  # most serious first
REPORT_ONLY = (Ending.REGRESSED, Ending.PROVISIONAL, Ending.INCONCLUSIVE)  # with --exit-zero
DECIDED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)
VERDICTS = {
    Ending.REGRESSED: (Verdict.SLOWER,),
    Ending.FAILED: (Verdict.BROKEN,),
    Ending.NOT_COMPARABLE: (Verdict.INCOMPARABLE,),
    Ending.PROVISIONAL: (Verdict.PROVISIONAL,),
    Ending.INCONCLUSIVE: (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT),
}


def endings(result: GateResult) -> dict[Ending, list[Cause]]:
    """Endings of the check with their causes, in the order of the report; empty if every case was decided.

    A set-up that is broken, incomplete or without anything to compare is neither a regression nor a pass. A
    case measured on both sides counts as compared, even if it was too noisy to be tested.
    """
    causes: dict[Ending, list[Cause]] = {Ending.NOTHING_TESTED: [], Ending.INCOMPLETE: [*result.missing]}
    for ending, verdicts in VERDICTS.items():
        causes[ending] = [
            finding for finding in (*result.together, *result.findings) if finding.verdict in verdicts
        ]
    causes[Ending.NOT_COMPARABLE] += [finding for finding in result.findings if finding.lost]
    is_compared = result.tested or any(finding.seen for finding in result.findings)
    empty_endings = set() if is_compared else {Ending.NOTHING_TESTED}
    return {ending: causes[ending] for ending in Ending if causes[ending] or ending in empty_endings}


def exit_code(
    result: GateResult, *, inconclusive: Inconclusive | None = None, exit_zero: bool = False
) -> int:
    """Exit code for the most serious ending. `exit_zero`: no result of a comparison fails the check."""
    ignored: Sequence[Ending] = ()
    if exit_zero:
        ignored = REPORT_ONLY
    elif not fails_undecided(result, inconclusive):
        ignored = (Ending.INCONCLUSIVE,)
    present = endings(result)
    return next(
        (code for ending, code in EXIT_CODES.items() if ending in present and ending not in ignored), 0
    )


def fails_undecided(result: GateResult, inconclusive: Inconclusive | None) -> bool:
    """True if undecided cases fail the check: by default, if no case was decided."""
    if inconclusive is None:
        return decided_count(result.findings) == 0
    return inconclusive is Inconclusive.FAIL


def decided_count(findings: Sequence[CaseFinding]) -> int:
    """Number of cases that the tests decided."""
    return sum(finding.verdict in DECIDED for finding in findings)
