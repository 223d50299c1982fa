"""The verdict on one case of a check, and the size of a change that is called. Pure."""

from __future__ import annotations

import math

from benchbench.analyse.digest import CaseDigest
from benchbench.judging.advice import advice
from benchbench.judging.comparison import ALPHA, LARGEST
from benchbench.judging.confirm import Remeasured
from benchbench.judging.session_cases import CaseTest
from benchbench.judging.sessions import ENOUGH
from benchbench.judging.significance import Estimate, Family, TestResult
from benchbench.judging.size import likely_size
from benchbench.model.status import Verdict
from benchbench.stats import tost

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
