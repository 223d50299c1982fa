"""A check: sessions, a run and, for what it flags, a second test become findings and an exit code. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from benchbench.analyse.digest import CaseDigest, Digest, partnered, work_change
from benchbench.analyse.metrics import Metric
from benchbench.format import count_of
from benchbench.judging.comparison import ALPHA, LARGEST, THRESHOLD, CommonFactor, common_factor
from benchbench.judging.pairs import ELSEWHERE, changes, suspect
from benchbench.judging.session_cases import (
    BaselineMatch,
    CaseTest,
    GatePolicy,
    against_code,
    against_sessions,
    estimate,
    match_interleaved,
    match_sessions,
    paired_differences,
)
from benchbench.judging.sessions import ENOUGH, SessionDeviation, session_deviation
from benchbench.judging.significance import (
    Estimate,
    Family,
    TestResult,
    adjusted_results,
    family_of,
    family_size,
)
from benchbench.model.options import Isolation
from benchbench.model.run import Policy
from benchbench.model.status import Verdict
from benchbench.plan.suite import Rule
from benchbench.stats import Difference, median, t_quantile, t_tail, tost


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
        seen=seen(test.match) if verdict is Verdict.INSUFFICIENT and first is None else None,
        reason=reason,
        size=called_size(verdict, test, again, family),
        work="" if verdict is Verdict.INCOMPARABLE else work_change(test.match.newest, test.match.new),
    )


def seen(match: BaselineMatch) -> Seen | None:
    """What both sides measured of a case that cannot be tested; None where either measured nothing."""
    ref = [value for each in match.sides for value in _positive(each.side, match.metric)]
    new = _positive(match.new, match.metric)
    if not ref or not new:
        return None
    return Seen(ref=median(ref), new=median(new), ref_processes=len(ref), new_processes=len(new))


def _positive(side: CaseDigest, metric: Metric) -> list[float]:
    return [value for value in side.of(metric) if value is not None and 0 < value < math.inf]


def _idle(rules: Sequence[Rule], tests: Sequence[CaseTest]) -> tuple[str, ...]:
    cases = {(test.match.suite, test.match.case) for test in tests}
    return tuple(rule.source for rule in rules if not any(rule.names(*case) for case in cases))


NOT_PLANNED = "in the baseline, but not in the plan of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """A case that the run should have measured and has not, or not in every round."""

    case: str
    reason: str


def missing_records(sessions: Sequence[Digest], new: Digest) -> list[MissingRecords]:
    """Cases of `new` without all their rounds, then those of `sessions` that `new` did not plan."""
    worked = dict.fromkeys(
        name for each in sessions for name, side in each.cases.items() if side.rounds or side.failure
    )
    absent = [MissingRecords(case=name, reason=NOT_PLANNED) for name in worked if name not in new.cases]
    return [*missing_rounds(new), *absent]


def missing_pairs(ref: Digest, new: Digest) -> list[MissingRecords]:
    """Cases without all their rounds on either side of an interleaved run.

    A case that fails on one side is not measured again on the other.
    """
    failed = {
        name
        for name, side in new.cases.items()
        for partner in [ref.cases.get(name, side)]
        if side.failure or partner.failure or partner.absent
    }
    both = {each.case: each for digest in (ref, new) for each in missing_rounds(digest)}
    return [each for name, each in both.items() if name not in failed]


def missing_rounds(new: Digest) -> list[MissingRecords]:
    """Planned cases that neither failed nor have a record of every round."""
    anyhow = new.settings.isolation is Isolation.SHARED  # a test session runs the tests it was asked for
    return [
        MissingRecords(case=name, reason=reason)
        for name, side in new.cases.items()
        if not (side.absent or side.failure) and (reason := _shortfall(side, new.policy, anyhow))
    ]


def _shortfall(side: CaseDigest, policy: Policy, anyhow: bool) -> str:
    count, wanted = len(side.rounds), policy.rounds
    if count == 0:
        return "planned, but without a record"
    if anyhow:
        return ""
    if not set(range(wanted)) <= set(side.rounds):
        return f"records of {count} of {count_of(wanted, 'round')}"
    may_stop = policy.budget_s is not None or policy.most_rounds is not None  # after any further round
    continued = policy.continue_above is not None and count > wanted and not may_stop
    return f"records of {count} of {2 * wanted} rounds" if continued and count < 2 * wanted else ""


HALVINGS = 40
FARTHEST = 30.0  # in errors: beyond it the tails have no float


def likely_size(difference: Difference, margin: float, level: float) -> float:
    """The size of a change as a logarithm, allowing for that it is told only where it looks large.

    What is called lies beyond a bar: the `margin` of the threshold, and significance at `level`, one-sided.
    Of the estimates there that a change of the likely size gives, half are above the one seen:
    median-unbiased given the selection (Fithian, Sun & Taylor 2014, "Optimal inference after model
    selection"). At least `margin`, which the change is said to have reached.
    """
    seen, error, degrees = abs(difference.mid), difference.error, difference.degrees
    bar = min(seen, max(margin, t_quantile(1 - level, degrees) * error))

    def beyond(size: float) -> float:
        """The share of called estimates above the one seen."""
        return t_tail((size - seen) / error, degrees) / t_tail((size - bar) / error, degrees)

    low, high = max(margin, seen - FARTHEST * error), seen
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) < 1 / 2 else (low, middle)
    return low


MOST_SESSIONS = 10  # of a machine that a baseline keeps
MOST_ROUNDS = 100
SPREAD_TOO_LARGE = "sessions differ too much for this threshold: interleave with the baseline's code (--ab)"
TOO_CLOSE = f"too close to the threshold to be told in {MOST_ROUNDS} rounds"


def advice(estimate: Estimate, deviation: SessionDeviation | None, family: Family) -> str:
    """How many more sessions or rounds would settle the case, if estimate and noise stay as they are.

    `deviation`: from the sessions; None where the two sides were interleaved.
    """
    if deviation is None or estimate.interleaved:
        return _pairs(estimate, family)
    if deviation.provisional:
        missing = ENOUGH - deviation.days
        return f"{missing} more session{'s' if missing > 1 else ''} on other days would tell how they differ"
    return _sessions(estimate, deviation, family) or _rounds(estimate, deviation, family)


def _pairs(estimate: Estimate, family: Family) -> str:
    count, error = estimate.against, estimate.difference.error
    for rounds in range(count + 1, MOST_ROUNDS + 1):
        known = max(rounds - 1, estimate.difference.degrees)
        if _tells(estimate, error * math.sqrt(count / rounds), known, family):
            return f"about {rounds} rounds would tell"
    return TOO_CLOSE


def _sessions(estimate: Estimate, deviation: SessionDeviation, family: Family) -> str:
    """Where the sessions explain the error, and more of them would make it small enough."""
    for days in range(deviation.days + 1, MOST_SESSIONS + 1):
        error = deviation.further * math.sqrt(1 + 1 / days)
        small = error >= _processes_error(deviation, estimate.processes)
        known = max(days - 1, estimate.difference.degrees)  # more where other cases tell as well
        if small and _tells(estimate, error, known, family):
            more = days - deviation.days
            return f"about {more} more session{'s' if more > 1 else ''} on other days would tell"
    return ""


def _rounds(estimate: Estimate, deviation: SessionDeviation, family: Family) -> str:
    """Where the processes explain the error, and more of them would make it small enough."""
    floor = deviation.further * math.sqrt(1 + 1 / deviation.days)

    def tells(rounds: int) -> bool:
        error = max(floor, _processes_error(deviation, rounds))
        return _tells(estimate, error, estimate.difference.degrees, family)

    counts = range(estimate.processes + 1, MOST_ROUNDS + 1)
    first = bisect_left(counts, True, key=tells)  # the error only falls with their number
    return f"about {counts[first]} rounds would tell" if first < len(counts) else SPREAD_TOO_LARGE


def _processes_error(deviation: SessionDeviation, rounds: int) -> float:
    """With as many processes in the run; those of the sessions stay as they are."""
    return math.sqrt(deviation.process_variance / rounds + deviation.stored_variance)


def _tells(estimate: Estimate, error: float, degrees: float, family: Family) -> bool:
    """Whether the same estimate would be within the threshold, or significant beyond it."""
    size = abs(estimate.difference.mid)
    if size < estimate.margin:
        return size + t_quantile(0.95, degrees) * error < estimate.margin
    return size >= t_quantile(1 - family.level, degrees) * error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Medians over the processes of both sides, whatever speaks against them: no ground for a verdict."""

    ref: float
    new: float
    ref_processes: int
    new_processes: int

    @property
    def ratio(self) -> float:
        """new / ref."""
        return self.new / self.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFinding:
    """One case and metric; a test result is None where nothing was tested. `seen`: what was measured then.

    `spread` is that of the sessions, as a fraction; where `provisional`, one is assumed too. `heavy_tails`:
    some sessions are far from the rest. `lost`: the case was asked for and cannot run. `reason` says why
    there is no other verdict, or what is suspect. `size`: of what is called, the likely ratio new / ref,
    allowing for that it was called because it looked large. `work`: how what is computed has changed.
    """

    case: str
    metric: str
    verdict: Verdict
    flagged: bool
    threshold: float
    threshold_from: str
    spread: float | None
    provisional: bool
    heavy_tails: bool
    first: TestResult | None
    confirmation: TestResult | None
    steady: bool
    stopped_by: tuple[str, ...]
    lost: bool
    reason: str
    size: float | None = None
    seen: Seen | None = None
    work: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """`changes` since the newest session bar nothing; `idle`: thresholds that name no case.

    `missing`: what keeps the run from being complete. `interleaved`: the one session is the baseline's code,
    measured process by process with the run. `common`: what nearly all cases have in common, by the first
    metric, against stored sessions.
    """

    sessions: tuple[Digest, ...]
    new: Digest
    confirmation: Confirmation | None
    policy: GatePolicy
    findings: tuple[CaseFinding, ...]
    missing: tuple[MissingRecords, ...]
    tested: int
    changes: tuple[str, ...]
    idle: tuple[str, ...]
    common: CommonFactor | None = None
    interleaved: bool = False

    @property
    def flagged(self) -> list[str]:
        """The cases that are to be measured again."""
        return list(dict.fromkeys(each.case for each in self.findings if each.flagged))


Cause = CaseFinding | MissingRecords


class Ending(Enum):
    """What keeps a check from passing, in the order told; the value is its name in JSON."""

    NOTHING_TESTED = "nothing_tested"
    INCOMPLETE = "incomplete"
    REGRESSED = "regressed"
    FAILED = "failed"
    NOT_COMPARABLE = "not_comparable"
    PROVISIONAL = "provisional"
    INCONCLUSIVE = "inconclusive"

    @property
    def code(self) -> int:
        """The exit code of a process that ends so (docs/checking.md)."""
        return CODES[self]


CODES: Mapping[Ending, int] = {
    Ending.REGRESSED: 10,
    Ending.FAILED: 4,
    Ending.NOTHING_TESTED: 11,
    Ending.INCOMPLETE: 11,
    Ending.NOT_COMPARABLE: 11,
    Ending.PROVISIONAL: 12,
    Ending.INCONCLUSIVE: 12,  # with --strict, else 0
}  # the gravest first
TOLD_ONLY = (Ending.REGRESSED, Ending.PROVISIONAL, Ending.INCONCLUSIVE)  # by --exit-zero
JUDGED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)
VERDICTS = {
    Ending.REGRESSED: (Verdict.SLOWER,),
    Ending.FAILED: (Verdict.BROKEN,),
    Ending.NOT_COMPARABLE: (Verdict.INCOMPARABLE,),
    Ending.PROVISIONAL: (Verdict.PROVISIONAL,),
    Ending.INCONCLUSIVE: (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT),
}


def endings(result: GateResult) -> dict[Ending, list[Cause]]:
    """What the check comes to, in the order told, and what caused it; empty where every case was judged.

    A set-up that is broken, incomplete or without anything to compare with is never a regression, and never
    a pass.
    """
    causes: dict[Ending, list[Cause]] = {Ending.NOTHING_TESTED: [], Ending.INCOMPLETE: [*result.missing]}
    for ending, verdicts in VERDICTS.items():
        causes[ending] = [each for each in result.findings if each.verdict in verdicts]
    causes[Ending.NOT_COMPARABLE] += [each for each in result.findings if each.lost]
    nothing = {Ending.NOTHING_TESTED} if not result.tested else set()
    return {ending: causes[ending] for ending in Ending if causes[ending] or ending in nothing}


def exit_code(result: GateResult, *, strict: bool = False, exit_zero: bool = False) -> int:
    """The exit code of the process, by the gravest ending. `strict`: a case that cannot be told counts.

    `exit_zero`: what was compared is told, and fails nothing.
    """
    ignored: Sequence[Ending] = TOLD_ONLY if exit_zero else () if strict else (Ending.INCONCLUSIVE,)
    present = endings(result)
    return next((code for ending, code in CODES.items() if ending in present and ending not in ignored), 0)


def judged(findings: Sequence[CaseFinding]) -> int:
    """How many got a verdict of the test."""
    return sum(each.verdict in JUDGED for each in findings)
