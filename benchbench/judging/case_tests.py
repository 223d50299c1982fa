"""Tests of the cases of a check against stored sessions, or against interleaved code. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric, Rate
from benchbench.judging.common_change import (
    TOGETHER,
    CommonChange,
    common_change,
    match_together,
    remove_common_change,
)
from benchbench.judging.comparison import ALPHA
from benchbench.judging.pairs import NOT_IN_RUN
from benchbench.judging.session_cases import (
    UNSHARED,
    BaselineMatch,
    GatePolicy,
    SessionVariance,
    match_interleaved,
    match_sessions,
    session_cases,
    session_variance,
)
from benchbench.judging.sessions import SessionDeviation, session_deviation
from benchbench.judging.significance import Estimate, TestResult
from benchbench.judging.variance import moderated
from benchbench.model.options import Variance
from benchbench.model.threshold import Threshold, threshold
from benchbench.stats import Difference, mean, paired


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTest:
    """Test of a case and metric against its baseline; `estimate` is None if it cannot be tested.

    `limit`: the threshold. `variance`: variance between sessions, estimated from all cases. `common`: the
    common change of all cases, which is already removed from `match`.
    """

    match: BaselineMatch
    limit: Threshold
    variance: SessionVariance = UNSHARED
    deviation: SessionDeviation | None = None
    estimate: Estimate | None = None
    common: CommonChange | None = None

    @property
    def is_together(self) -> bool:
        """True for the test of all cases together."""
        return self.match.case == TOGETHER

    @property
    def is_provisional(self) -> bool:
        """True if the error includes an assumed spread between sessions."""
        return self.deviation is not None and self.deviation.is_provisional

    def is_flagged(self, first: TestResult, policy: GatePolicy) -> bool:
        """True if the first test is a reason for a second one.

        If the second test will be a new experiment with the baseline's code, the estimate alone is enough.
        """
        if self.estimate is None or not self.estimate.exceeds_margin:
            return False
        return first.p < ALPHA or (self.deviation is not None and policy.interleaved)


def session_tests(sessions: Sequence[Digest], new: Digest, policy: GatePolicy) -> list[CaseTest]:
    """Tests of every case that a session or the run could run, one per metric, against stored sessions."""
    session_cases_by_id, missing_case = (
        session_cases(sessions, new, strict=policy.strict_env),
        CaseDigest(absent=NOT_IN_RUN),
    )
    matches = [
        match_sessions(case, case_sessions, new_case, metric)
        for case in dict.fromkeys([*session_cases_by_id, *new.cases])
        for case_sessions, new_case in [
            (session_cases_by_id.get(case, ()), new.cases.get(case, missing_case))
        ]
        if not (new_case.absent and all(session.digest.absent for session in case_sessions))
        for metric in policy.metrics
    ]
    return [
        test
        for metric in policy.metrics
        for test in _tests_of_metric([match for match in matches if match.metric == metric], policy)
    ]


def _tests_of_metric(matches: Sequence[BaselineMatch], policy: GatePolicy) -> list[CaseTest]:
    """Tests of all cases together, and of each case relative to their common change."""
    change = common_change(matches)
    if change is None or not change.days:
        variance = session_variance(matches, policy.variance)
        return [_session_test(match, variance, policy) for match in matches]
    cases = [remove_common_change(match, change, change.run) for match in matches]
    variance = session_variance(cases, policy.variance)
    tests = [
        _session_test(match_together(change, change.run), UNSHARED, policy),
        *(_session_test(match, variance, policy) for match in cases),
    ]
    return [replace(test, common=change) for test in tests]


def interleaved_tests(ref: Digest, new: Digest, policy: GatePolicy) -> list[CaseTest]:
    """Tests against the baseline's code `ref`, measured interleaved and with the same case ids."""
    matches = [
        match_interleaved(case, ref.cases[case], new_case, metric)
        for case, new_case in new.cases.items()
        if not (new_case.absent and ref.cases[case].absent)
        or new_case.skipped_for_partner
        or ref.cases[case].skipped_for_partner
        for metric in policy.metrics
    ]
    differences = paired_differences(matches, policy.variance)
    return [_interleaved_test(match, differences.get(match.key), policy) for match in matches]


def paired_differences(
    matches: Sequence[BaselineMatch], variance: Variance, others: Sequence[BaselineMatch] = ()
) -> dict[tuple[str, str], Difference]:
    """Differences of interleaved cases, by case and metric. `others` contribute only to the variance."""
    differences: dict[tuple[str, str], Difference] = {}
    for metric in dict.fromkeys(match.metric.name for match in matches):
        comparable = [
            match for match in (*matches, *others) if match.metric.name == metric and match.verdict is None
        ]
        groups = [[after - before for before, after in match.pairs] for match in comparable]
        moderated_differences = moderated([paired(match.pairs) for match in comparable], groups, variance)
        differences |= {
            match.key: difference for match, difference in zip(comparable, moderated_differences, strict=True)
        }
    return {match.key: differences[match.key] for match in matches if match.verdict is None}


def _session_test(match: BaselineMatch, variance: SessionVariance, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    if match.verdict:
        return CaseTest(match=match, limit=limit)
    assumed = policy.assumed_of(match.metric)
    deviation = session_deviation(match.days, match.new_logs, assumed, variance.prior)
    if deviation.spread and 2 * deviation.spread > limit.value:
        limit = Threshold(2 * deviation.spread, f"{limit.source}, raised to twice the sessions' spread")
    return CaseTest(
        match=match,
        limit=limit,
        variance=variance,
        deviation=deviation,
        estimate=estimate(
            match, deviation.difference, limit.value, deviation.process_variance / len(match.new_logs)
        ),
    )


def _interleaved_test(match: BaselineMatch, difference: Difference | None, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    tested = estimate(match, difference, limit.value) if difference else None
    return CaseTest(match=match, limit=limit, estimate=tested)


def estimate(
    match: BaselineMatch, difference: Difference, threshold: float, own_variance: float = 0.0
) -> Estimate:
    """Estimated change of a case against its sessions, or against the code measured interleaved with it."""
    sign = 1 if match.metric.better == "lower" else -1
    return Estimate(
        quantity=(match.case, _measured_quantity(match.metric)),
        ref=mean([mean([mean(hour) for hour in day]) for day in match.days]),
        new=mean(match.new_logs),
        difference=difference,
        worsening=Difference(sign * difference.mid, difference.error, difference.degrees),
        margin=math.log1p(threshold),
        own_variance=own_variance,
        processes=len(match.new_logs),
        against=len(match.new_logs) if match.interleaved else len(match.days),
        interleaved=match.interleaved,
    )


def _measured_quantity(metric: Metric) -> str:
    """Name of the metric that is measured: for a rate, that of its divisor."""
    return metric.source.divisor.name if isinstance(metric.source, Rate) else metric.name
