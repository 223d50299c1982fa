"""Tests of the cases of a check against stored sessions, or against other code measured interleaved. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric, Rate
from benchbench.judging.common_change import TOGETHER, CommonChange, common_change, relative, together
from benchbench.judging.comparison import ALPHA
from benchbench.judging.pairs import ELSEWHERE
from benchbench.judging.session_cases import (
    ALONE,
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
from benchbench.judging.variance import judged_together
from benchbench.model.options import Variance
from benchbench.plan.suite import Threshold, threshold
from benchbench.stats import Difference, mean, paired


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTest:
    """A case and metric against its baseline; `estimate` where it is tested.

    `variance`: what the sessions of all cases tell of its own. `common`: what the cases of its metric have in
    common, which its match is freed of.
    """

    match: BaselineMatch
    limit: Threshold
    variance: SessionVariance = ALONE
    deviation: SessionDeviation | None = None
    estimate: Estimate | None = None
    common: CommonChange | None = None

    @property
    def is_together(self) -> bool:
        """Whether it is of all cases together."""
        return self.match.case == TOGETHER

    @property
    def provisional(self) -> bool:
        """Whether it stands on an assumed spread between sessions."""
        return self.deviation is not None and self.deviation.provisional

    def flags(self, first: TestResult, policy: GatePolicy) -> bool:
        """Whether the first test is reason for a second.

        Against sessions, where a new experiment with the baseline's code will decide, the estimate alone is.
        """
        if self.estimate is None or not self.estimate.beyond:
            return False
        return first.p < ALPHA or (self.deviation is not None and policy.interleaved)


def against_sessions(sessions: Sequence[Digest], new: Digest, policy: GatePolicy) -> list[CaseTest]:
    """A test per metric of every case that a session or the run could run."""
    sides, none = session_cases(sessions, new, strict=policy.strict_env), CaseDigest(absent=ELSEWHERE)
    matches = [
        match_sessions(case, known, now, metric)
        for case in dict.fromkeys([*sides, *new.cases])
        for known, now in [(sides.get(case, ()), new.cases.get(case, none))]
        if not (now.absent and all(each.side.absent for each in known))
        for metric in policy.metrics
    ]
    return [
        test
        for metric in policy.metrics
        for test in _of_one_metric([match for match in matches if match.metric == metric], policy)
    ]


def _of_one_metric(matches: Sequence[BaselineMatch], policy: GatePolicy) -> list[CaseTest]:
    """A test of each case relative to what all have in common, and one of all together."""
    change = common_change(matches)
    if change is None or not change.days:
        variance = session_variance(matches, policy.variance)
        return [_against_sessions(match, variance, policy) for match in matches]
    cases = [relative(match, change, change.run) for match in matches]
    variance = session_variance(cases, policy.variance)
    tests = [
        _against_sessions(together(change, change.run), ALONE, policy),
        *(_against_sessions(match, variance, policy) for match in cases),
    ]
    return [replace(test, common=change) for test in tests]


def against_code(ref: Digest, new: Digest, policy: GatePolicy) -> list[CaseTest]:
    """The same against the baseline's code, `ref`, measured interleaved and with the same ids."""
    matches = [
        match_interleaved(case, ref.cases[case], now, metric)
        for case, now in new.cases.items()
        if not (now.absent and ref.cases[case].absent)
        or now.skipped_for_partner
        or ref.cases[case].skipped_for_partner
        for metric in policy.metrics
    ]
    differences = paired_differences(matches, policy.variance)
    return [_interleaved(match, differences.get(match.key), policy) for match in matches]


def paired_differences(
    matches: Sequence[BaselineMatch], variance: Variance, others: Sequence[BaselineMatch] = ()
) -> dict[tuple[str, str], Difference]:
    """By case and metric, of what was measured interleaved; `others` tell how much pairs vary as well."""
    differences: dict[tuple[str, str], Difference] = {}
    for metric in dict.fromkeys(match.metric.name for match in matches):
        together = [
            match for match in (*matches, *others) if match.metric.name == metric and match.verdict is None
        ]
        groups = [[after - before for before, after in match.pairs] for match in together]
        judged = judged_together([paired(match.pairs) for match in together], groups, variance)
        differences |= {match.key: each for match, each in zip(together, judged, strict=True)}
    return {match.key: differences[match.key] for match in matches if match.verdict is None}


def _against_sessions(match: BaselineMatch, variance: SessionVariance, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    if match.verdict:
        return CaseTest(match=match, limit=limit)
    assumed = policy.assumed_of(match.metric)
    deviation = session_deviation(match.days, match.logs, assumed, variance.prior)
    if deviation.spread and 2 * deviation.spread > limit.value:
        limit = Threshold(2 * deviation.spread, f"{limit.source}, raised to twice the sessions' spread")
    return CaseTest(
        match=match,
        limit=limit,
        variance=variance,
        deviation=deviation,
        estimate=estimate(
            match, deviation.difference, limit.value, deviation.process_variance / len(match.logs)
        ),
    )


def _interleaved(match: BaselineMatch, difference: Difference | None, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    tested = estimate(match, difference, limit.value) if difference else None
    return CaseTest(match=match, limit=limit, estimate=tested)


def estimate(
    match: BaselineMatch, difference: Difference, threshold: float, own_variance: float = 0.0
) -> Estimate:
    """Estimate a case against its sessions, or against the one it was measured interleaved with."""
    sign = 1 if match.metric.better == "lower" else -1
    return Estimate(
        quantity=(match.case, _measured(match.metric)),
        ref=mean([mean([mean(hour) for hour in day]) for day in match.days]),
        new=mean(match.logs),
        difference=difference,
        worse=Difference(sign * difference.mid, difference.error, difference.degrees),
        margin=math.log1p(threshold),
        own_variance=own_variance,
        processes=len(match.logs),
        against=len(match.logs) if match.interleaved else len(match.days),
        interleaved=match.interleaved,
    )


def _measured(metric: Metric) -> str:
    """What a metric is derived from: for a rate, the latency or energy that the work is divided by."""
    return metric.source.divisor.name if isinstance(metric.source, Rate) else metric.name
