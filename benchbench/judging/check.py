"""A check: sessions, a run and, for what it flags, a second test become findings and an exit code. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest, partnered, work_change
from benchbench.analyse.metrics import Metric
from benchbench.judging.advice import advice, likely_size
from benchbench.judging.case_tests import CaseTest, against_code, against_sessions
from benchbench.judging.common_change import TOGETHER
from benchbench.judging.comparison import ALPHA, LARGEST, THRESHOLD, CommonFactor, common_factor
from benchbench.judging.missing import MissingRecords, missing_pairs, missing_records
from benchbench.judging.pairs import changes, suspect
from benchbench.judging.second_test import Confirmation, Remeasured, remeasured
from benchbench.judging.session_cases import BaselineMatch, GatePolicy
from benchbench.judging.sessions import ENOUGH
from benchbench.judging.significance import (
    Estimate,
    Family,
    TestResult,
    adjusted_results,
    family_of,
    family_size,
)
from benchbench.model.status import Verdict
from benchbench.plan.suite import Rule
from benchbench.stats import median, tost


def decide(
    sessions: Sequence[Digest], new: Digest, policy: GatePolicy, confirmation: Confirmation | None = None
) -> GateResult:
    """`new` against sessions of its machine, oldest first.

    Stage 1 flags a case at p < 0.05, one-sided, and an estimate worse by its threshold. Stage 2 decides
    on the processes of the `confirmation` alone. Interleaved with the baseline's code they are a new
    experiment, and Holm's family is the flagged. Against stored sessions both stages share the hour and
    the sessions, so there the family is every test of the check, and fewer than five sessions, or some that
    are far from the rest, make a case provisional at most (docs/checking.md). Without a confirmation what is
    flagged is inconclusive, unless the `policy` says that one stage decides.
    """
    result = _decided(against_sessions(sessions, new, policy), sessions, new, policy, confirmation)
    return replace(result, missing=tuple(missing_records(sessions, new)), common=_common(result))


def check_interleaved(
    ref: Digest, new: Digest, policy: GatePolicy, confirmation: Confirmation | None = None
) -> GateResult:
    """`new` against the baseline's code, `ref`, each interleaved with the other, as partners."""
    policy, ref_cases = replace(policy, interleaved=True), partnered(ref, new)
    result = _decided(against_code(ref_cases, new, policy), [ref], new, policy, confirmation)
    return replace(result, interleaved=True, missing=tuple(missing_pairs(ref_cases, new)))


def _decided(
    tests: Sequence[CaseTest],
    sessions: Sequence[Digest],
    new: Digest,
    policy: GatePolicy,
    confirmation: Confirmation | None,
) -> GateResult:
    first, family = _first(tests, policy)
    flagged = [
        test
        for test in tests
        if policy.confirm and test.match.key in first and test.flags(first[test.match.key], policy)
    ]
    pending = {test.match.key for test in flagged}
    rest = [test for test in tests if test.match.key not in pending]
    again = remeasured(flagged, new, confirmation, family, policy, rest) if confirmation else {}
    findings = [
        _finding(test, first.get(key), key in pending, again.get(key), family)
        for test in tests
        for key in [test.match.key]
    ]
    return GateResult(
        sessions=tuple(sessions),
        new=new,
        confirmation=confirmation,
        policy=policy,
        findings=tuple(finding for finding in findings if finding.case != TOGETHER),
        together=tuple(finding for finding in findings if finding.case == TOGETHER),
        missing=(),
        tested=sum(case != TOGETHER for case, _ in first),
        changes=tuple(changes(sessions[-1], new)),
        idle=_idle(policy.thresholds, tests),
    )


def _common(result: GateResult) -> CommonFactor | None:
    """The change that nearly all cases have in common, by the first metric."""
    metric = result.policy.metrics[0].name
    common = [
        finding.first.ratio for finding in result.together if finding.first and finding.metric == metric
    ]
    tested = [finding.first for finding in result.findings if finding.first and finding.metric == metric]
    return common_factor([math.log(each.ratio * math.prod(common)) for each in tested], THRESHOLD)


def _first(tests: Sequence[CaseTest], policy: GatePolicy) -> tuple[dict[tuple[str, str], TestResult], Family]:
    """The first test of each case and metric that can be tested, and the family that these are."""
    estimates = {test.match.key: test.estimate for test in tests if test.estimate}
    stored = not any(each.interleaved for each in estimates.values())
    size = family_size(list(estimates.values()))
    family = family_of(size, stored=stored, confirmed=policy.confirm, interleaved=policy.interleaved)
    return dict(zip(estimates, adjusted_results(list(estimates.values()), family), strict=True)), family


def _finding(
    test: CaseTest, first: TestResult | None, flagged: bool, again: Remeasured | None, family: Family
) -> CaseFinding:
    verdict, reason = reach_verdict(test, first, flagged, again, family)
    if verdict in (Verdict.SLOWER, Verdict.FASTER):
        reason = suspect(test.match.newest, test.match.new)
    sides = [test.match.new, *([again.side] if again else [])]
    return CaseFinding(
        case=test.match.case,
        metric=test.match.metric.name,
        verdict=verdict,
        flagged=flagged,
        threshold=test.limit.value,
        threshold_from=test.limit.source,
        spread=test.deviation.spread if test.deviation else None,
        provisional=test.provisional,
        heavy_tails=test.variance.heavy_tails,
        first=first,
        confirmation=again.result if again else None,
        steady=not any(side.unsteady for side in sides),
        stopped_by=tuple(sorted({reason for side in sides for reason in side.stopped_by})),
        lost=test.match.lost,
        seen=seen(test.match) if verdict is Verdict.INSUFFICIENT and first is None else None,
        reason=reason,
        size=called_size(verdict, test, again, family),
        work="" if verdict is Verdict.INCOMPARABLE else work_change(test.match.newest, test.match.new),
    )


def seen(match: BaselineMatch) -> Seen | None:
    """What both sides measured of a case that cannot be tested; None where either measured nothing."""
    ref = [value for each in match.sides for value in _positive(each.side, match.metric)]
    new = _positive(match.new, match.metric)
    if not ref or not new:
        return None
    return Seen(ref=median(ref), new=median(new), ref_processes=len(ref), new_processes=len(new))


def _positive(side: CaseDigest, metric: Metric) -> list[float]:
    return [value for value in side.of(metric) if value is not None and 0 < value < math.inf]


def _idle(rules: Sequence[Rule], tests: Sequence[CaseTest]) -> tuple[str, ...]:
    cases = {(test.match.suite, test.match.case) for test in tests if not test.is_together}
    return tuple(rule.source for rule in rules if not any(rule.names(*case) for case in cases))


UNCONFIRMED = "flagged, and not measured again"
FAR_APART = "slower, though some sessions are far from the rest"
QUIETLY = "--wait-for-idle measures once they are done"


def reach_verdict(
    test: CaseTest, first: TestResult | None, flagged: bool, again: Remeasured | None, family: Family
) -> tuple[Verdict, str]:
    """And its reason, by the first test or, of what that flagged, by what measuring again showed."""
    if test.estimate is None or first is None:
        assert test.match.verdict
        return test.match.verdict, test.match.reason
    if not flagged:
        return _judged(test, test.estimate, first, test.match.new, family)
    if again is None:
        return Verdict.INCONCLUSIVE, UNCONFIRMED
    if again.estimate is None or again.result is None:
        assert again.verdict
        return again.verdict, again.reason
    verdict, reason = _judged(test, again.estimate, again.result, again.side, family)
    if verdict in (Verdict.SLOWER, Verdict.PROVISIONAL):
        return verdict, reason
    return verdict, f"flagged, not confirmed; {reason}".rstrip("; ")


def _judged(
    test: CaseTest, estimate: Estimate, result: TestResult, new: CaseDigest, family: Family
) -> tuple[Verdict, str]:
    """Slower and faster are alike in the logarithm; same needs the 90 % interval within the threshold."""
    others = "" if estimate.interleaved else new.disturbance(test.match.metric)  # pairs have weighed it
    if others:
        return Verdict.INSUFFICIENT, f"{others}: {QUIETLY}"
    if result.p_holm < ALPHA and abs(estimate.worse.mid) >= estimate.margin:
        return (Verdict.FASTER, "") if estimate.worse.mid < 0 else _slower(test, estimate)
    if tost(estimate.difference, estimate.margin) < ALPHA:
        return Verdict.SAME, ""
    return Verdict.INCONCLUSIVE, advice(estimate, test.deviation, family)


def _slower(test: CaseTest, estimate: Estimate) -> tuple[Verdict, str]:
    if estimate.interleaved:
        return Verdict.SLOWER, ""
    if test.deviation and test.deviation.provisional:
        return Verdict.PROVISIONAL, f"slower, on {test.deviation.days} of {ENOUGH} sessions"
    if test.variance.heavy_tails:
        return Verdict.PROVISIONAL, FAR_APART
    return Verdict.SLOWER, ""


def called_size(verdict: Verdict, test: CaseTest, again: Remeasured | None, family: Family) -> float | None:
    """The likely ratio new / ref of what is called, allowing for that it was called for looking large."""
    if verdict not in (Verdict.SLOWER, Verdict.PROVISIONAL, Verdict.FASTER):
        return None
    tested = again.estimate if again else test.estimate
    assert tested
    level = family.level
    if tested.interleaved:  # of a family of its own, and no p is below the two-sided one
        level = ALPHA / max(again.result.family if again and again.result else family.size, 2)
    size = likely_size(tested.difference, tested.margin, level)
    return math.exp(math.copysign(min(size, LARGEST), tested.difference.mid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Medians over the processes of both sides, whatever speaks against them: no ground for a verdict."""

    ref: float
    new: float
    ref_processes: int
    new_processes: int

    @property
    def ratio(self) -> float:
        """new / ref."""
        return self.new / self.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFinding:
    """One case and metric; a test result is None where nothing was tested. `seen`: what was measured then.

    `spread` is that of the sessions, as a fraction; where `provisional`, one is assumed too. `heavy_tails`:
    some sessions are far from the rest. `lost`: the case was asked for and cannot run. `reason` says why
    there is no other verdict, or what is suspect. `size`: of what is called, the likely ratio new / ref,
    allowing for that it was called because it looked large. `work`: how what is computed has changed.
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
    size: float | None = None
    seen: Seen | None = None
    work: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """`changes` since the newest session bar nothing; `idle`: thresholds that name no case.

    `missing`: what keeps the run from being complete. `interleaved`: the one session is the baseline's code,
    measured process by process with the run. `together`: all cases as if they were one, by metric, against
    stored sessions; each case is judged relative to it. `common`: what nearly all cases have in common, by
    the first metric, against stored sessions.
    """

    sessions: tuple[Digest, ...]
    new: Digest
    confirmation: Confirmation | None
    policy: GatePolicy
    findings: tuple[CaseFinding, ...]
    missing: tuple[MissingRecords, ...]
    tested: int
    changes: tuple[str, ...]
    idle: tuple[str, ...]
    common: CommonFactor | None = None
    together: tuple[CaseFinding, ...] = ()
    interleaved: bool = False

    @property
    def flagged(self) -> list[str]:
        """The cases that are to be measured again: all, if they are flagged together."""
        all_of = {finding.metric for finding in self.together if finding.flagged}
        return list(
            dict.fromkeys(
                finding.case
                for finding in self.findings
                if finding.flagged or (finding.first and finding.metric in all_of)
            )
        )
