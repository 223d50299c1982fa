"""Tests of the cases of a check against stored sessions or interleaved code: the first, and the second. Pure.

The change that all cases share is removed before a case is tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CONTENDED_METRICS, CaseDigest, Digest
from benchbench.analyse.metrics import Metric, Rate
from benchbench.judging.comparison import MIN_CASES, seconds_apart
from benchbench.judging.pairs import MIN_PROCESSES, NOT_IN_RUN
from benchbench.judging.session_cases import (
    BaselineMatch,
    match_interleaved,
    match_sessions,
    session_cases,
    session_variance,
)
from benchbench.judging.sessions import (
    ASSUMED_MEMORY,
    ASSUMED_SHARED,
    SessionDeviation,
    SharedVariance,
    day_means,
    session_deviation,
)
from benchbench.judging.variance import moderated
from benchbench.model.case import Verdict
from benchbench.model.options import Rule, Threshold, threshold
from benchbench.stats import MAD_TO_DEVIATION, Difference, deviation, mad, mean, median, paired

MIN_CASES_PER_DAY = 3  # the median of fewer cases follows any single one
TOGETHER = "all cases together"  # used as the name of a case


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePolicy:
    """Settings of a check. `confirm`: a second test has to confirm what the first one flags as slower.

    `interleaved`: the last test measures the baseline's code too, process by process. `assumed`: standard
    deviation assumed between sessions, as a fraction, while few are stored.
    """

    metrics: tuple[Metric, ...]
    thresholds: tuple[Rule, ...] = ()
    assumed: float = ASSUMED_SHARED
    strict_env: bool = False
    confirm: bool = True
    interleaved: bool = False

    def assumed_of(self, metric: Metric) -> float:
        """Standard deviation assumed between sessions for one metric, as a fraction."""
        return min(self.assumed, ASSUMED_MEMORY) if metric.unit == "B" else self.assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonChange:
    """Common change of all cases on each day and in the run, as logarithms.

    Changes are relative to each case's usual level. `case_levels`: median of each case's days. The median
    over cases does not follow a few cases that changed by themselves, and the median over days does not
    follow a few slow days. `explained_share`: the part of the changes that chance does not explain. Only
    this part is removed: if cases vary independently, removing their median would add its error.
    """

    metric: Metric
    case_levels: Mapping[str, float]
    days: Mapping[int, float]
    run: float
    explained_share: float

    def of_run(self, run: Digest) -> float:
        """Common change of another run of these cases."""
        logs = {case: run.cases[case].logs(self.metric) for case in self.case_levels if case in run.cases}
        return median(
            [mean(case_logs) - self.case_levels[case] for case, case_logs in logs.items() if case_logs]
        )


def common_change(matches: Sequence[BaselineMatch]) -> CommonChange | None:
    """Common change of one metric; None with too few cases, or if the metric does not depend on the hour."""
    testable = [
        match for match in matches if match.verdict is None and not match.new.disturbance(match.metric)
    ]
    if len(testable) < MIN_CASES or testable[0].metric.name not in CONTENDED_METRICS:
        return None
    levels = {match.case: median(day_means(match.days)) for match in testable}
    by_date: dict[int, list[float]] = {}
    for match in testable:
        for date, day in zip(match.dates, day_means(match.days), strict=True):
            by_date.setdefault(date, []).append(day - levels[match.case])
    offsets = {
        date: offsets_of_day
        for date, offsets_of_day in sorted(by_date.items())
        if len(offsets_of_day) >= MIN_CASES_PER_DAY
    }
    of_run = [mean(match.new_logs) - levels[match.case] for match in testable]
    return CommonChange(
        metric=testable[0].metric,
        case_levels=levels,
        days={date: median(offsets_of_day) for date, offsets_of_day in offsets.items()},
        run=median(of_run),
        explained_share=_explained_share([*offsets.values(), of_run]),
    )


def _explained_share(offsets: Sequence[Sequence[float]]) -> float:
    """Part of the variance of the sessions' medians that chance does not explain (James & Stein 1961).

    The median of n normal values has π/2 times the variance of their mean. The variance by chance is that of
    the median session, since many cases of one run may have changed.
    """
    if len(offsets) < 2:
        return 1.0
    chance = median(
        [
            math.pi / 2 * (MAD_TO_DEVIATION * mad(session_offsets)) ** 2 / len(session_offsets)
            for session_offsets in offsets
        ]
    )
    variance = deviation([median(session_offsets) for session_offsets in offsets]) ** 2
    return max(0.0, 1 - chance / variance) if variance else 0.0


def remove_common_change(match: BaselineMatch, change: CommonChange, run: float) -> BaselineMatch:
    """The match without the common change of its days and of its run."""
    changes = [change.explained_share * change.days.get(date, 0.0) for date in match.dates]
    return replace(
        match,
        new_logs=[log - change.explained_share * run for log in match.new_logs],
        days=[[log - common for log in day] for common, day in zip(changes, match.days, strict=True)],
    )


def match_together(change: CommonChange, run: float) -> BaselineMatch:
    """Match of all cases as one: the geometric mean of their usual levels, times the common change."""
    level = mean(list(change.case_levels.values()))
    return BaselineMatch(
        case=TOGETHER,
        metric=change.metric,
        sessions=(),
        new=CaseDigest(),
        new_logs=[level + run],
        days=[[level + common] for common in change.days.values()],
        dates=tuple(change.days),
        verdict=None,
        reason="",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTest:
    """Test of a case and metric against its baseline.

    `difference`: change in logarithms; None if the case cannot be tested. `limit`: the threshold. `shared`:
    variance between sessions, estimated from all cases. `common`: the common change of all cases, which is
    already removed from `match`.
    """

    match: BaselineMatch
    limit: Threshold
    difference: Difference | None = None
    shared: SharedVariance | None = None
    deviation: SessionDeviation | None = None
    common: CommonChange | None = None

    @property
    def quantity(self) -> tuple[str, str]:
        """The case and the metric that is measured: for a rate, its divisor."""
        metric = self.match.metric
        return self.match.case, metric.source.divisor.name if isinstance(metric.source, Rate) else metric.name

    @property
    def margin(self) -> float:
        """Threshold as a logarithm."""
        return math.log1p(self.limit.value)

    @property
    def worsening(self) -> Difference:
        """The difference, with the sign that makes positive values worse."""
        assert self.difference
        sign = 1 if self.match.metric.better == "lower" else -1
        return replace(self.difference, mid=sign * self.difference.mid)

    @property
    def is_together(self) -> bool:
        """True for the test of all cases together."""
        return self.match.case == TOGETHER

    @property
    def is_provisional(self) -> bool:
        """True if the error includes an assumed spread between sessions."""
        return self.deviation is not None and self.deviation.is_provisional

    @property
    def heavy_tails(self) -> bool:
        """True if some sessions are far from the rest."""
        return self.shared is not None and self.shared.heavy_tails


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
        shared = session_variance(matches)
        return [_session_test(match, shared, policy) for match in matches]
    cases = [remove_common_change(match, change, change.run) for match in matches]
    shared = session_variance(cases)
    tests = [
        _session_test(match_together(change, change.run), None, policy),
        *(_session_test(match, shared, policy) for match in cases),
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
    differences = paired_differences(matches)
    limits = [threshold(match.suite, match.case, policy.thresholds) for match in matches]
    return [
        CaseTest(match=match, limit=limit, difference=differences.get(match.key))
        for match, limit in zip(matches, limits, strict=True)
    ]


def paired_differences(
    matches: Sequence[BaselineMatch], others: Sequence[BaselineMatch] = ()
) -> dict[tuple[str, str], Difference]:
    """Differences of interleaved cases, by case and metric. `others` contribute only to the variance."""
    differences: dict[tuple[str, str], Difference] = {}
    for metric in dict.fromkeys(match.metric.name for match in matches):
        comparable = [
            match for match in (*matches, *others) if match.metric.name == metric and match.verdict is None
        ]
        groups = [[after - before for before, after in match.pairs] for match in comparable]
        moderated_differences = moderated([paired(match.pairs) for match in comparable], groups)
        differences |= {
            match.key: difference for match, difference in zip(comparable, moderated_differences, strict=True)
        }
    return {match.key: differences[match.key] for match in matches if match.verdict is None}


def _session_test(match: BaselineMatch, shared: SharedVariance | None, policy: GatePolicy) -> CaseTest:
    limit = threshold(match.suite, match.case, policy.thresholds)
    if match.verdict:
        return CaseTest(match=match, limit=limit)
    assumed = policy.assumed_of(match.metric)
    deviation = session_deviation(match.days, match.new_logs, assumed, shared)
    if deviation.spread and 2 * deviation.spread > limit.value:
        limit = Threshold(2 * deviation.spread, f"{limit.source}, raised to twice the sessions' spread")
    return CaseTest(
        match=match, limit=limit, difference=deviation.difference, shared=shared, deviation=deviation
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Second measurement of the flagged cases; `ref`: the baseline's code, interleaved with them."""

    new: Digest
    ref: Digest | None = None


def second_tests(
    flagged: Sequence[CaseTest],
    run: Digest,
    confirmation: Confirmation,
    policy: GatePolicy,
    unflagged: Sequence[CaseTest] = (),
) -> list[CaseTest]:
    """Tests of the second measurement.

    `run`: the run that was tested first. `unflagged`: tests that flagged nothing; interleaved ones contribute
    to the variance of pairs.
    """
    if confirmation.ref:
        return _interleaved_tests(flagged, confirmation.ref, confirmation.new, unflagged)
    metrics_of_all = {test.match.metric.name for test in flagged if test.is_together}
    return [
        _second_session_test(
            test,
            confirmation.new,
            policy,
            test.match.metric.name in metrics_of_all,
            not seconds_apart(run, confirmation.new, test.match.metric),
        )
        for test in flagged
    ]


def _interleaved_tests(
    flagged: Sequence[CaseTest], ref: Digest, new: Digest, unflagged: Sequence[CaseTest]
) -> list[CaseTest]:
    missing_case = CaseDigest(absent=NOT_IN_RUN)
    matches = [
        _match_together(test, ref, new)
        if test.is_together
        else match_interleaved(
            test.match.case,
            ref.cases.get(test.match.case, missing_case),
            new.cases.get(test.match.case, missing_case),
            test.match.metric,
        )
        for test in flagged
    ]
    other_matches = [test.match for test in unflagged if test.match.interleaved]
    differences = paired_differences([match for match in matches if match.case != TOGETHER], other_matches)
    return [
        CaseTest(
            match=match,
            limit=test.limit,
            difference=paired(match.pairs)
            if test.is_together and not match.verdict
            else differences.get(match.key),
        )
        for test, match in zip(flagged, matches, strict=True)
    ]


def _match_together(test: CaseTest, ref: Digest, new: Digest) -> BaselineMatch:
    """Match of all interleaved cases as one: the change of each round is the median over the cases."""
    assert test.common
    cases = test.common.case_levels.keys() & ref.cases.keys() & new.cases.keys()
    matches = [
        match_interleaved(case, ref.cases[case], new.cases[case], test.match.metric) for case in sorted(cases)
    ]
    testable = [match for match in matches if match.verdict is None]
    rounds = min((len(match.pairs) for match in testable), default=0)
    if len(testable) < MIN_CASES or rounds < MIN_PROCESSES:
        return replace(test.match, verdict=Verdict.INSUFFICIENT, reason="too few cases have pairs")
    rows = [[match.pairs[index] for match in testable] for index in range(rounds)]
    ref_means = [mean([ref for ref, _ in row]) for row in rows]
    median_changes = [median([new_means - ref for ref, new_means in row]) for row in rows]
    new_means = [ref + change for ref, change in zip(ref_means, median_changes, strict=True)]
    return replace(test.match, new_logs=new_means, days=[ref_means], interleaved=True)


def _second_session_test(
    test: CaseTest, run: Digest, policy: GatePolicy, is_complete: bool, is_same_hour: bool
) -> CaseTest:
    """Test a case that was measured again against the sessions.

    The common change of `run` is known if all cases were measured again, and taken from the first run if that
    was in the same hour. Otherwise it is unknown, and its variance between sessions is added to the error.
    """
    match, change = test.match, test.common
    new, common = run.cases.get(match.case, CaseDigest(absent=NOT_IN_RUN)), 0.0
    if change:
        common = change.of_run(run) if is_complete else change.run if is_same_hour else 0.0
    if test.is_together:
        assert change
        match = match_together(change, common)
    elif new.failure or new.absent:
        match = replace(match, new=new, verdict=Verdict.BROKEN, reason=new.failure or new.absent)
    else:
        match = match_sessions(match.case, match.sessions, new, match.metric)
        match = remove_common_change(match, change, common) if change else match
    second = _session_test(match, test.shared, policy)
    if second.deviation and change and not (is_complete or is_same_hour):
        common_match = match_together(change, common)
        assumed = policy.assumed_of(match.metric)
        error = session_deviation(common_match.days, common_match.new_logs, assumed).difference.error
        difference = second.deviation.difference
        return replace(second, difference=replace(difference, error=math.hypot(difference.error, error)))
    return second
