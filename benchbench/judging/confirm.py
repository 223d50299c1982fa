"""The second test of a check: flagged cases measured again, in processes of their own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.judging.pairs import ELSEWHERE
from benchbench.judging.session_cases import CaseTest, GatePolicy, paired_differences
from benchbench.judging.session_match import BaselineMatch, match_interleaved, match_sessions
from benchbench.judging.sessions import session_deviation
from benchbench.judging.significance import (
    Estimate,
    Family,
    TestResult,
    adjusted_results,
    estimate,
    family_size,
)
from benchbench.model.status import Verdict
from benchbench.stats import Difference


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
    confirmation: Confirmation,
    family: Family,
    policy: GatePolicy,
    rest: Sequence[CaseTest] = (),
) -> dict[tuple[str, str], Remeasured]:
    """By case and metric. `family`: of the first tests, which stored sessions are adjusted for.

    `rest`: the tests that flagged nothing. Where they were of pairs, these tell how much pairs vary as well.
    """
    if confirmation.ref:
        again = _pairs_again(flagged, confirmation.ref, confirmation.new, policy, rest)
    else:
        again = {test.match.key: _sessions_again(test, confirmation.new, policy) for test in flagged}
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
    matches = [
        match_interleaved(case, ref.cases.get(case, none), new.cases.get(case, none), test.match.metric)
        for test in flagged
        for case in [test.match.case]
    ]
    others = [test.match for test in rest if test.match.interleaved]
    differences = paired_differences(matches, policy.variance, others)
    return {
        match.key: _interleaved(match, differences.get(match.key), test.limit.value)
        for test, match in zip(flagged, matches, strict=True)
    }


def _sessions_again(test: CaseTest, run: Digest, policy: GatePolicy) -> Remeasured:
    match, none = test.match, CaseDigest(absent=ELSEWHERE)
    new = run.cases.get(match.case, none)
    if new.failure or new.absent:
        return _nothing(Verdict.BROKEN, new.failure or new.absent, new)
    again = match_sessions(match.case, match.sides, new, match.metric)
    if again.verdict:
        return _nothing(again.verdict, again.reason, new)
    assumed = policy.assumed_of(match.metric)
    deviation = session_deviation(again.days, again.logs, assumed, test.variance.prior)
    own = deviation.process_variance / len(again.logs)
    return Remeasured(estimate=estimate(again, deviation.difference, test.limit.value, own), side=new)


def _interleaved(match: BaselineMatch, difference: Difference | None, threshold: float) -> Remeasured:
    if match.verdict:
        return _nothing(match.verdict, match.reason, match.new)
    assert difference
    return Remeasured(estimate=estimate(match, difference, threshold), side=match.new)


def _nothing(verdict: Verdict, reason: str, side: CaseDigest) -> Remeasured:
    return Remeasured(verdict=verdict, reason=f"measured again: {reason}", side=side)
