"""Has a run become slower than its baseline? Sessions, a run and, of what it flags, a second test. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchbench.analyse.digest import Digest, partnered
from benchbench.judging.common import CommonFactor, common_factor
from benchbench.judging.comparison import THRESHOLD
from benchbench.judging.completeness import missing_pairs, missing_records
from benchbench.judging.confirm import Confirmation, Remeasured, remeasured
from benchbench.judging.pairs import changes, suspect
from benchbench.judging.result import CaseFinding, GateResult
from benchbench.judging.session_cases import CaseTest, GatePolicy, against_code, against_sessions
from benchbench.judging.significance import Family, TestResult, adjusted_results, family_of, family_size
from benchbench.judging.verdict import called_size, reach_verdict
from benchbench.model.status import Verdict
from benchbench.plan.thresholds import Rule


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
    again = remeasured(flagged, confirmation, family, policy, rest) if confirmation else {}
    return GateResult(
        sessions=tuple(sessions),
        new=new,
        confirmation=confirmation,
        policy=policy,
        findings=tuple(
            _finding(test, first.get(key), key in pending, again.get(key), family)
            for test in tests
            for key in [test.match.key]
        ),
        missing=(),
        tested=len(first),
        changes=tuple(changes(sessions[-1], new)),
        idle=_idle(policy.thresholds, tests),
    )


def _common(result: GateResult) -> CommonFactor | None:
    metric = result.policy.metrics[0].name
    tested = [each.first for each in result.findings if each.first and each.metric == metric]
    return common_factor([math.log(each.ratio) for each in tested], THRESHOLD)


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
        reason=reason,
        size=called_size(verdict, test, again, family),
    )


def _idle(rules: Sequence[Rule], tests: Sequence[CaseTest]) -> tuple[str, ...]:
    cases = {(test.match.suite, test.match.case) for test in tests}
    return tuple(rule.source for rule in rules if not any(rule.names(*case) for case in cases))
