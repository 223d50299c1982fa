"""Second test of a check: the flagged cases, measured again. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.judging.case_tests import CaseTest, estimate, paired_differences
from benchbench.judging.common_change import match_together, remove_common_change
from benchbench.judging.comparison import MIN_CASES
from benchbench.judging.pairs import MIN_PROCESSES, NOT_IN_RUN
from benchbench.judging.session_cases import BaselineMatch, GatePolicy, match_interleaved, match_sessions
from benchbench.judging.sessions import hours_of, session_deviation
from benchbench.judging.significance import Estimate, Family, TestResult, adjusted_results, family_size
from benchbench.model.status import Verdict
from benchbench.stats import Difference, mean, median, paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Second measurement of the flagged cases; `ref`: the baseline's code, interleaved with them."""

    new: Digest
    ref: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondTest:
    """Second test of a case: a test result, or the verdict that says why there is none."""

    digest: CaseDigest
    result: TestResult | None = None
    estimate: Estimate | None = None
    verdict: Verdict | None = None
    reason: str = ""


def second_tests(
    flagged: Sequence[CaseTest],
    run: Digest,
    confirmation: Confirmation,
    family: Family,
    policy: GatePolicy,
    unflagged: Sequence[CaseTest] = (),
) -> dict[tuple[str, str], SecondTest]:
    """Second tests by case and metric.

    `run`: the run that was tested first. `family`: the family of the first tests, used again against
    sessions. `unflagged`: tests that flagged nothing; interleaved ones contribute to the variance of pairs.
    """
    if confirmation.ref:
        tests = _interleaved_tests(flagged, confirmation.ref, confirmation.new, policy, unflagged)
    else:
        metrics_of_all = {test.match.metric.name for test in flagged if test.is_together}
        same_hour = len(set(hours_of([run.started, confirmation.new.started]))) == 1
        tests = {
            test.match.key: _session_test(
                test, confirmation.new, policy, test.match.metric.name in metrics_of_all, same_hour
            )
            for test in flagged
        }
    tested = {key: test.estimate for key, test in tests.items() if test.estimate}
    estimates = list(tested.values())
    if confirmation.ref:
        family = replace(family, size=family_size(estimates), min_size=1)
    results = dict(zip(tested, adjusted_results(estimates, family), strict=True))
    return {key: replace(test, result=results.get(key)) for key, test in tests.items()}


def _interleaved_tests(
    flagged: Sequence[CaseTest], ref: Digest, new: Digest, policy: GatePolicy, unflagged: Sequence[CaseTest]
) -> dict[tuple[str, str], SecondTest]:
    missing_case = CaseDigest(absent=NOT_IN_RUN)
    cases = [test for test in flagged if not test.is_together]
    matches = [
        match_interleaved(
            case, ref.cases.get(case, missing_case), new.cases.get(case, missing_case), test.match.metric
        )
        for test in cases
        for case in [test.match.case]
    ]
    other_matches = [test.match for test in unflagged if test.match.interleaved]
    differences = paired_differences(matches, policy.variance, other_matches)
    tests = {
        match.key: _interleaved_test(match, differences.get(match.key), test.limit.value)
        for test, match in zip(cases, matches, strict=True)
    }
    return tests | {
        test.match.key: _interleaved_test_together(test, ref, new) for test in flagged if test.is_together
    }


def _interleaved_test_together(test: CaseTest, ref: Digest, new: Digest) -> SecondTest:
    """Test of all cases as one: the change of each round is the median over the cases."""
    assert test.common
    cases = test.common.case_levels.keys() & ref.cases.keys() & new.cases.keys()
    matches = [
        match_interleaved(case, ref.cases[case], new.cases[case], test.match.metric) for case in sorted(cases)
    ]
    testable = [match for match in matches if match.verdict is None]
    rounds = min((len(match.pairs) for match in testable), default=0)
    if len(testable) < MIN_CASES or rounds < MIN_PROCESSES:
        return _untestable(Verdict.INSUFFICIENT, "too few cases have pairs", CaseDigest())
    rows = [[match.pairs[index] for match in testable] for index in range(rounds)]
    ref_means = [mean([ref for ref, _ in row]) for row in rows]
    median_changes = [median([new_means - ref for ref, new_means in row]) for row in rows]
    new_means = [ref + change for ref, change in zip(ref_means, median_changes, strict=True)]
    match = replace(test.match, new_logs=new_means, days=[[ref_means]], interleaved=True)
    return SecondTest(estimate=estimate(match, paired(match.pairs), test.limit.value), digest=CaseDigest())


def _session_test(
    test: CaseTest, run: Digest, policy: GatePolicy, is_complete: bool, is_same_hour: bool
) -> SecondTest:
    """Test a case that was measured again against the sessions.

    The common change of `run` is known if all cases were measured again, and taken from the first run if that
    was in the same hour. Otherwise it is unknown, and its variance between sessions is added to the error.
    """
    match, missing_case, change = test.match, CaseDigest(absent=NOT_IN_RUN), test.common
    new, common = run.cases.get(match.case, missing_case), 0.0
    if change:
        common = change.of_run(run) if is_complete else change.run if is_same_hour else 0.0
    if test.is_together:
        assert change
        new, new_match = CaseDigest(), match_together(change, common)
    elif new.failure or new.absent:
        return _untestable(Verdict.BROKEN, new.failure or new.absent, new)
    else:
        new_match = match_sessions(match.case, match.sessions, new, match.metric)
        new_match = remove_common_change(new_match, change, common) if change else new_match
    if new_match.verdict:
        return _untestable(new_match.verdict, new_match.reason, new)
    assumed = policy.assumed_of(match.metric)
    deviation = session_deviation(new_match.days, new_match.new_logs, assumed, test.variance.prior)
    own_variance = deviation.process_variance / len(new_match.new_logs)
    difference = deviation.difference
    if change and not (is_complete or is_same_hour):
        common_match = match_together(change, common)
        error = session_deviation(common_match.days, common_match.new_logs, assumed).difference.error
        difference = replace(difference, error=math.hypot(difference.error, error))
    return SecondTest(estimate=estimate(new_match, difference, test.limit.value, own_variance), digest=new)


def _interleaved_test(match: BaselineMatch, difference: Difference | None, threshold: float) -> SecondTest:
    if match.verdict:
        return _untestable(match.verdict, match.reason, match.new)
    assert difference
    return SecondTest(estimate=estimate(match, difference, threshold), digest=match.new)


def _untestable(verdict: Verdict, reason: str, side: CaseDigest) -> SecondTest:
    return SecondTest(verdict=verdict, reason=f"measured again: {reason}", digest=side)
