"""What a check tests: each case against its baseline, its threshold, and the difference estimated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.judging.comparison import ALPHA
from benchbench.judging.pairs import ELSEWHERE
from benchbench.judging.session_match import BaselineMatch, match_interleaved, match_sessions, session_cases
from benchbench.judging.session_variance import ALONE, SessionVariance, session_variance
from benchbench.judging.sessions import ASSUMED_MEMORY, ASSUMED_SHARED, SessionDeviation, session_deviation
from benchbench.judging.significance import Estimate, TestResult, estimate
from benchbench.judging.variance import judged_together
from benchbench.model.options import Variance
from benchbench.plan.thresholds import Rule, Threshold, threshold
from benchbench.stats import Difference, paired


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePolicy:
    """`confirm`: what the first test flags is slower only once a second says so; else one decides.

    `interleaved`: the last test measures the baseline's code as well, process by process. `assumed`: the
    standard deviation that sessions of the machine are taken to have, as a fraction, where few are stored.
    `variance`: what tells how much a case varies, all cases of the check or that case alone.
    """

    metrics: tuple[Metric, ...]
    thresholds: tuple[Rule, ...] = ()
    assumed: float = ASSUMED_SHARED
    variance: Variance = Variance.SHARED
    strict_env: bool = False
    confirm: bool = True
    interleaved: bool = False

    def assumed_of(self, metric: Metric) -> float:
        """The standard deviation that sessions are taken to have in one metric."""
        return min(self.assumed, ASSUMED_MEMORY) if metric.unit == "B" else self.assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTest:
    """A case and metric against its baseline; `estimate` where it is tested.

    `variance`: what the sessions of all cases tell of its own.
    """

    match: BaselineMatch
    limit: Threshold
    variance: SessionVariance = ALONE
    deviation: SessionDeviation | None = None
    estimate: Estimate | None = None

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
    variances = {
        metric.name: session_variance([each for each in matches if each.metric == metric], policy.variance)
        for metric in policy.metrics
    }
    return [_against_sessions(match, variances[match.metric.name], policy) for match in matches]


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
