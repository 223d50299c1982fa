"""The second test of a check: what the first flagged, measured again. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.judging.case_tests import CaseTest, estimate, paired_differences
from benchbench.judging.common_change import relative, together
from benchbench.judging.comparison import LEAST_CASES
from benchbench.judging.pairs import ELSEWHERE, LEAST_PROCESSES
from benchbench.judging.session_cases import BaselineMatch, GatePolicy, match_interleaved, match_sessions
from benchbench.judging.sessions import hours_of, session_deviation
from benchbench.judging.significance import Estimate, Family, TestResult, adjusted_results, family_size
from benchbench.model.status import Verdict
from benchbench.stats import Difference, mean, median, paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Flagged cases measured again; `ref`: the baseline's code interleaved with them, by the same ids."""

    new: Digest
    ref: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remeasured:
    """What measuring a case again showed, or by what verdict it showed nothing."""

    side: CaseDigest
    result: TestResult | None = None
    estimate: Estimate | None = None
    verdict: Verdict | None = None
    reason: str = ""


def remeasured(
    flagged: Sequence[CaseTest],
    run: Digest,
    confirmation: Confirmation,
    family: Family,
    policy: GatePolicy,
    rest: Sequence[CaseTest] = (),
) -> dict[tuple[str, str], Remeasured]:
    """By case and metric. `family`: of the first tests, which stored sessions are adjusted for.

    `run`: the one that was tested first. `rest`: the tests that flagged nothing. Where they were of pairs,
    these tell how much pairs vary as well.
    """
    if confirmation.ref:
        again = _pairs_again(flagged, confirmation.ref, confirmation.new, policy, rest)
    else:
        all_again = {test.match.metric.name for test in flagged if test.is_together}
        same_hour = len(set(hours_of([run.started, confirmation.new.started]))) == 1
        again = {
            test.match.key: _sessions_again(
                test, confirmation.new, policy, test.match.metric.name in all_again, same_hour
            )
            for test in flagged
        }
    tested = {key: each.estimate for key, each in again.items() if each.estimate}
    estimates = list(tested.values())
    if confirmation.ref:
        family = replace(family, size=family_size(estimates), fewest=1)
    shown = dict(zip(tested, adjusted_results(estimates, family), strict=True))
    return {key: replace(each, result=shown.get(key)) for key, each in again.items()}


def _pairs_again(
    flagged: Sequence[CaseTest], ref: Digest, new: Digest, policy: GatePolicy, rest: Sequence[CaseTest]
) -> dict[tuple[str, str], Remeasured]:
    none = CaseDigest(absent=ELSEWHERE)
    cases = [test for test in flagged if not test.is_together]
    matches = [
        match_interleaved(case, ref.cases.get(case, none), new.cases.get(case, none), test.match.metric)
        for test in cases
        for case in [test.match.case]
    ]
    known = [test.match for test in rest if test.match.interleaved]
    differences = paired_differences(matches, policy.variance, known)
    found = {
        match.key: _interleaved(match, differences.get(match.key), test.limit.value)
        for test, match in zip(cases, matches, strict=True)
    }
    return found | {test.match.key: _pairs_together(test, ref, new) for test in flagged if test.is_together}


def _pairs_together(test: CaseTest, ref: Digest, new: Digest) -> Remeasured:
    """All cases as if they were one: in each round, the median change over the cases."""
    assert test.common
    cases = test.common.places.keys() & ref.cases.keys() & new.cases.keys()
    matches = [
        match_interleaved(case, ref.cases[case], new.cases[case], test.match.metric) for case in sorted(cases)
    ]
    known = [match for match in matches if match.verdict is None]
    rounds = min((len(match.pairs) for match in known), default=0)
    if len(known) < LEAST_CASES or rounds < LEAST_PROCESSES:
        return _nothing(Verdict.INSUFFICIENT, "too few cases have pairs", CaseDigest())
    rows = [[match.pairs[index] for match in known] for index in range(rounds)]
    before = [mean([ref for ref, _ in row]) for row in rows]
    changes = [median([after - ref for ref, after in row]) for row in rows]
    after = [ref + change for ref, change in zip(before, changes, strict=True)]
    match = replace(test.match, logs=after, days=[[before]], interleaved=True)
    return Remeasured(estimate=estimate(match, paired(match.pairs), test.limit.value), side=CaseDigest())


def _sessions_again(
    test: CaseTest, run: Digest, policy: GatePolicy, all_again: bool, same_hour: bool
) -> Remeasured:
    """Test a case measured again against the sessions.

    Only `all_again` tells the common change of that run. It is that of the first in the `same_hour`; else it
    is unknown, and counts as by how much sessions differ in common.
    """
    match, none, change = test.match, CaseDigest(absent=ELSEWHERE), test.common
    new, common = run.cases.get(match.case, none), 0.0
    if change:
        common = change.of(run) if all_again else change.run if same_hour else 0.0
    if test.is_together:
        assert change
        new, again = CaseDigest(), together(change, common)
    elif new.failure or new.absent:
        return _nothing(Verdict.BROKEN, new.failure or new.absent, new)
    else:
        again = match_sessions(match.case, match.sides, new, match.metric)
        again = relative(again, change, common) if change else again
    if again.verdict:
        return _nothing(again.verdict, again.reason, new)
    assumed = policy.assumed_of(match.metric)
    deviation = session_deviation(again.days, again.logs, assumed, test.variance.prior)
    own = deviation.process_variance / len(again.logs)
    difference = deviation.difference
    if change and not (all_again or same_hour):
        hours = together(change, common)
        error = session_deviation(hours.days, hours.logs, assumed).difference.error
        difference = replace(difference, error=math.hypot(difference.error, error))
    return Remeasured(estimate=estimate(again, difference, test.limit.value, own), side=new)


def _interleaved(match: BaselineMatch, difference: Difference | None, threshold: float) -> Remeasured:
    if match.verdict:
        return _nothing(match.verdict, match.reason, match.new)
    assert difference
    return Remeasured(estimate=estimate(match, difference, threshold), side=match.new)


def _nothing(verdict: Verdict, reason: str, side: CaseDigest) -> Remeasured:
    return Remeasured(verdict=verdict, reason=f"measured again: {reason}", side=side)
