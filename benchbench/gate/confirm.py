"""The second test of a check: flagged cases measured again, in processes of their own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.comparing.match import ELSEWHERE
from benchbench.gate.cases import CaseTest, GatePolicy
from benchbench.gate.match import BaselineMatch, match_interleaved, match_sessions
from benchbench.gate.significance import Estimate, Family, TestResult, adjusted_results, estimate, family_size
from benchbench.gate.spread import session_deviation
from benchbench.model.status import Verdict
from benchbench.stats import paired


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
    flagged: Sequence[CaseTest], confirmation: Confirmation, family: Family, policy: GatePolicy
) -> dict[tuple[str, str], Remeasured]:
    """By case and metric. `family`: of the first tests, which stored sessions are adjusted for."""
    again = {test.match.key: _again(test, confirmation, policy) for test in flagged}
    tested = {key: each.estimate for key, each in again.items() if each.estimate}
    estimates = list(tested.values())
    if confirmation.ref:
        family = replace(family, size=family_size(estimates), fewest=1)
    shown = dict(zip(tested, adjusted_results(estimates, family), strict=True))
    return {key: replace(each, result=shown.get(key)) for key, each in again.items()}


def _again(test: CaseTest, confirmation: Confirmation, policy: GatePolicy) -> Remeasured:
    match, none = test.match, CaseDigest(absent=ELSEWHERE)
    new = confirmation.new.cases.get(match.case, none)
    if confirmation.ref:
        ref = confirmation.ref.cases.get(match.case, none)
        return _interleaved(match_interleaved(match.case, ref, new, match.metric), test.limit.value)
    if new.failure or new.absent:
        return _nothing(Verdict.BROKEN, new.failure or new.absent, new)
    again = match_sessions(match.case, match.sides, new, match.metric)
    if again.verdict:
        return _nothing(again.verdict, again.reason, new)
    deviation = session_deviation(again.days, again.logs, policy.assumed_of(match.metric))
    own = deviation.process_variance / len(again.logs)
    return Remeasured(estimate=estimate(again, deviation.difference, test.limit.value, own), side=new)


def _interleaved(match: BaselineMatch, threshold: float) -> Remeasured:
    if match.verdict:
        return _nothing(match.verdict, match.reason, match.new)
    return Remeasured(estimate=estimate(match, paired(match.pairs), threshold), side=match.new)


def _nothing(verdict: Verdict, reason: str, side: CaseDigest) -> Remeasured:
    return Remeasured(verdict=verdict, reason=f"measured again: {reason}", side=side)
