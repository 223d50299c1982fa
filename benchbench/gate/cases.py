"""What a check tests: each case against its baseline, its threshold, and the difference estimated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.comparing.match import ELSEWHERE
from benchbench.comparing.verdicts import ALPHA
from benchbench.gate.match import BaselineMatch, match_interleaved, match_sessions, session_cases
from benchbench.gate.significance import Estimate, TestResult, estimate
from benchbench.gate.spread import ASSUMED_MEMORY, ASSUMED_SHARED, SessionDeviation, session_deviation
from benchbench.plan.thresholds import Rule, Threshold, threshold
from benchbench.stats import paired


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePolicy:
    """`confirm`: what the first test flags is slower only once a second says so; else one decides.

    `interleaved`: the last test measures the baseline's code as well, process by process. `assumed`: the
    standard deviation that sessions of the machine are taken to have, as a fraction, where few are stored.
    """

    metrics: tuple[Metric, ...]
    thresholds: tuple[Rule, ...] = ()
    assumed: float = ASSUMED_SHARED
    strict_env: bool = False
    confirm: bool = True
    interleaved: bool = False

    def assumed_of(self, metric: Metric) -> float:
        """The standard deviation that sessions are taken to have in one metric."""
        return min(self.assumed, ASSUMED_MEMORY) if metric.unit == "B" else self.assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTest:
    """A case and metric against its baseline; `estimate` where it is tested."""

    match: BaselineMatch
    limit: Threshold
    deviation: SessionDeviation | None = None
    estimate: Estimate | None = None

    @property
    def provisional(self) -> bool:
        """Whether it stands on an assumed spread between sessions."""
        return self.deviation is not None and self.deviation.provisional

    def flags(self, first: TestResult, policy: GatePolicy) -> bool:
        """Whether the first test is reason for a second.

        Where the spread is assumed, and a new experiment with the baseline's code will decide, the estimate
        alone is.
        """
        if self.estimate is None or not self.estimate.beyond:
            return False
        return first.p < ALPHA or (self.provisional and policy.interleaved)


def against_sessions(sessions: Sequence[Digest], new: Digest, policy: GatePolicy) -> list[CaseTest]:
    """A test per metric of every case that a session or the run could run."""
    sides, none = session_cases(sessions, new, strict=policy.strict_env), CaseDigest(absent=ELSEWHERE)
    return [
        _against_sessions(match_sessions(case, known, now, metric), policy)
        for case in dict.fromkeys([*sides, *new.cases])
        for known, now in [(sides.get(case, ()), new.cases.get(case, none))]
        if not (now.absent and all(each.side.absent for each in known))
        for metric in policy.metrics
    ]


def against_code(ref: Digest, new: Digest, policy: GatePolicy) -> list[CaseTest]:
    """The same against the baseline's code, `ref`, measured interleaved and with the same ids."""
    return [
        _interleaved(match_interleaved(case, ref.cases[case], now, metric), policy)
        for case, now in new.cases.items()
        if not (now.absent and ref.cases[case].absent)
        or now.skipped_for_partner
        or ref.cases[case].skipped_for_partner
        for metric in policy.metrics
    ]


def _against_sessions(match: BaselineMatch, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    if match.verdict:
        return CaseTest(match=match, limit=limit)
    deviation = session_deviation(match.days, match.logs, policy.assumed_of(match.metric))
    if deviation.spread and 2 * deviation.spread > limit.value:
        limit = Threshold(2 * deviation.spread, f"{limit.source}, raised to twice the sessions' spread")
    return CaseTest(
        match=match,
        limit=limit,
        deviation=deviation,
        estimate=estimate(
            match, deviation.difference, limit.value, deviation.process_variance / len(match.logs)
        ),
    )


def _interleaved(match: BaselineMatch, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    if match.verdict:
        return CaseTest(match=match, limit=limit)
    return CaseTest(match=match, limit=limit, estimate=estimate(match, paired(match.pairs), limit.value))
