"""Cases of a run matched with their sessions, or the reason against a test; variation of sessions. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import (
    CONTENDED_METRICS,
    ONCE_PER_RUN,
    STEADY_METRICS,
    CaseDigest,
    Digest,
    case_mismatches,
    run_mismatches,
)
from benchbench.analyse.metrics import Metric
from benchbench.format import count_of
from benchbench.judging.change_points import change_points
from benchbench.judging.comparison import SessionSpread
from benchbench.judging.pairs import (
    MIN_PROCESSES,
    environment_changes,
    pair_interleaved,
    part_difference,
)
from benchbench.judging.sessions import (
    ASSUMED_MEMORY,
    ASSUMED_SHARED,
    MIN_DEVIATION,
    MIN_SESSIONS,
    CommonVariance,
    DayMeans,
    HeavyTails,
    LogsByHour,
    SessionPrior,
    day_means,
    days_of,
    equal_variance_p,
    hours_of,
    moments,
    normality_p,
    session_deviation,
    symmetry_p,
)
from benchbench.model.case import Status, Verdict
from benchbench.model.options import Rule, Variance
from benchbench.stats import VariancePrior, deviation, variance_prior


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCase:
    """One case in one session, with the day and hour of the session, numbered from 0.

    `mismatches`: differences between session and run that prevent a comparison.
    """

    digest: CaseDigest
    mismatches: list[str]
    day: int = 0
    hour: int = 0


COUNTED_PROCESSES = "processes that were steady, agreed and were not contended"
SessionCases = Sequence[SessionCase]  # of one case, oldest session first


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMatch:
    """A case and metric of a run, matched with the sessions it is tested against.

    `new_logs`: logarithms of the run's processes. `days`: for each day and hour, the logarithms of the
    sessions' processes. `dates`: the numbers of these days. `verdict`: None if a test decides; otherwise the
    verdict, and `reason` explains it. `interleaved`: the only session was measured interleaved with the run.
    """

    case: str
    metric: Metric
    sessions: SessionCases
    new: CaseDigest
    new_logs: list[float]
    days: list[LogsByHour]
    dates: tuple[int, ...]
    verdict: Verdict | None
    reason: str
    interleaved: bool = False

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Interleaved processes as pairs of (session, run)."""
        return list(zip(self.days[0][0], self.new_logs, strict=True))

    @property
    def key(self) -> tuple[str, str]:
        """Case and metric name, unique within a check."""
        return self.case, self.metric.name

    @property
    def suite(self) -> str:
        """Suite of the case in its most recent plan."""
        planned = [
            side.case for side in (*(session.digest for session in self.sessions), self.new) if side.case
        ]
        return planned[-1].suite if planned else ""

    @property
    def newest(self) -> CaseDigest:
        """The case in the last session in which it worked; an empty digest if there is none."""
        return next(
            (session.digest for session in reversed(self.sessions) if session.digest.rounds), CaseDigest()
        )

    @property
    def is_unrunnable(self) -> bool:
        """True if the case was requested but cannot run."""
        return self.verdict is Verdict.GONE and self.new.case is not None


def session_cases(sessions: Sequence[Digest], new: Digest, *, strict: bool) -> dict[str, SessionCases]:
    """Occurrences of each case in the sessions, by case id. `strict`: other versions are mismatches too."""
    cases: dict[str, list[SessionCase]] = {}
    started = [session.started for session in sessions]
    for session, day, hour in zip(sessions, days_of(started), hours_of(started), strict=True):
        mismatches = run_mismatches(session, new) + (environment_changes(session, new) if strict else [])
        for case, digest in session.cases.items():
            cases.setdefault(case, []).append(
                SessionCase(digest=digest, mismatches=mismatches, day=day, hour=hour)
            )
    return dict(cases)


def match_sessions(case: str, sessions: SessionCases, new: CaseDigest, metric: Metric) -> BaselineMatch:
    """Match a case of a run with those of its sessions that are comparable."""
    measured = [
        (session, session.mismatches + case_mismatches(session.digest, new))
        for session in sessions
        if session.digest.rounds
    ]
    comparable = _with_newest_workload_version(
        [session for session, mismatches in measured if not mismatches]
    )
    usable = [session for session in comparable if _is_usable(session.digest, metric)]
    min_processes = 1 if metric.name in ONCE_PER_RUN else MIN_PROCESSES
    days = _logs_by_day(usable, metric, min_processes)
    new_logs = new.logs(metric)
    verdict, reason = (
        _absence([session.digest for session in sessions], new)
        or _mismatch([mismatches for _, mismatches in measured])
        or _disagreement(new, metric)
        or _too_few_values(len(days), new_logs, min_processes, metric)
        or _unsteadiness(new, metric)
        or part_difference((new,), metric)
        or (None, "")
    )
    return BaselineMatch(
        case=case,
        metric=metric,
        sessions=sessions,
        new=new,
        new_logs=new_logs,
        days=list(days.values()),
        dates=tuple(days),
        verdict=verdict,
        reason=reason,
    )


def _with_newest_workload_version(sessions: SessionCases) -> SessionCases:
    """Sessions with the workload version of the last one: a user's model may have changed."""
    return [
        session
        for session in sessions
        if session.digest.workload_version == sessions[-1].digest.workload_version
    ]


def _is_usable(case: CaseDigest, metric: Metric) -> bool:
    """True if the session's processes had warmed up and were not contended."""
    return not (metric.name in STEADY_METRICS and case.unsteady) and not case.disturbance(metric)


def _logs_by_day(sessions: SessionCases, metric: Metric, min_processes: int) -> dict[int, LogsByHour]:
    days: dict[int, dict[int, list[float]]] = {}
    for session in sessions:
        logs = session.digest.logs(metric)
        if len(logs) >= min_processes:
            days.setdefault(session.day, {}).setdefault(session.hour, []).extend(logs)
    return {day: list(hours.values()) for day, hours in days.items()}


def match_interleaved(case: str, ref: CaseDigest, new: CaseDigest, metric: Metric) -> BaselineMatch:
    """Match a case with the baseline's code, measured interleaved with it, as if that were a session."""
    pair = pair_interleaved(ref, new, metric)
    verdict, reason = _reference_failure(ref) or (pair.verdict, pair.reason)
    return BaselineMatch(
        case=case,
        metric=metric,
        sessions=(SessionCase(digest=ref, mismatches=[]),),
        new=new,
        new_logs=pair.new_logs,
        days=[[pair.ref_logs]],
        dates=(0,),
        verdict=verdict,
        reason=reason,
        interleaved=True,
    )


def _reference_failure(ref: CaseDigest) -> tuple[Verdict, str] | None:
    """Verdict if the baseline's code cannot run the case: nothing would ever be slower than it.

    Code from before the case was added is not broken: the case is new.
    """
    added = ref.skipped_for_partner or ref.status in (Status.UNSUPPORTED, Status.INCOMPARABLE)
    cause = ref.failure or ("" if added else ref.absent)
    return (Verdict.INCOMPARABLE, f"the baseline's code: {cause}") if cause else None


def _absence(sessions: Sequence[CaseDigest], new: CaseDigest) -> tuple[Verdict, str] | None:
    if new.absent:
        return Verdict.GONE, new.absent
    planned = [session for session in sessions if not session.absent]
    worked = any(session.rounds for session in planned)
    if new.failure:
        if worked:
            return Verdict.BROKEN, new.failure
        if any(session.failure for session in planned):
            return Verdict.INSUFFICIENT, f"fails in the baseline too: {new.failure}"
        return Verdict.BROKEN, f"not part of the baseline: {new.failure}"
    if worked:
        return None
    failure = next((session.failure for session in reversed(planned) if session.failure), "")
    return Verdict.NEW, f"failed before: {failure}" if failure else "not part of the baseline"


def _mismatch(mismatches: Sequence[list[str]]) -> tuple[Verdict, str] | None:
    """Mismatches of the newest session, if no session is comparable."""
    return (Verdict.INCOMPARABLE, "; ".join(mismatches[-1])) if all(mismatches) else None


def _too_few_values(
    days: int, logs: list[float], min_processes: int, metric: Metric
) -> tuple[Verdict, str] | None:
    if len(logs) < min_processes:
        processes = count_of(len(logs), "process")
        return Verdict.INSUFFICIENT, f"{metric.name} is known of {processes}, a test needs {min_processes}"
    if not days:
        return Verdict.INSUFFICIENT, f"no session has {metric.name} of {min_processes} {COUNTED_PROCESSES}"
    if metric.name in ONCE_PER_RUN and days < MIN_SESSIONS:
        counts = f"the baseline has sessions of {count_of(days, 'day')}, this needs {MIN_SESSIONS}"
        return Verdict.INSUFFICIENT, f"{metric.name} is measured once a run: {counts}"
    return None


def _disagreement(new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    reason = new.disagreement(metric)
    return (Verdict.INSUFFICIENT, reason) if reason else None


def _unsteadiness(new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    if metric.name not in STEADY_METRICS or not new.unsteady:
        return None
    return Verdict.INSUFFICIENT, f"still warming up when measured, in {count_of(new.unsteady, 'process')}"


EQUAL_VARIANCE_P = 0.05  # above this p, all cases are taken to vary equally between sessions
HEAVY_TAILS_P = 0.15  # for five sessions of unequal cases; smaller for a larger number of sessions
SKEWED_P = 0.01  # likewise, for equal or unequal cases


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionVariance:
    """Variance between sessions in one metric.

    `prior`: estimate from all cases; None if each case is judged alone.
    `heavy_tails`: some sessions are outliers, so the sessions do not predict a further one. A case that is
    slower than such sessions is provisional.
    """

    prior: SessionPrior | None = None
    heavy_tails: bool = False


UNSHARED = SessionVariance()


def session_variance(matches: Sequence[BaselineMatch], variance: Variance) -> SessionVariance:
    """Variance between sessions, estimated from the cases with sessions on at least `MIN_SESSIONS` days."""
    tested = [match for match in matches if match.verdict is None and len(match.days) >= MIN_SESSIONS]
    if variance is Variance.OWN or len(tested) < 2:
        return UNSHARED
    sign = 1 if tested[0].metric.better == "lower" else -1
    day_means_by_case = [[sign * place for place in day_means(match.days)] for match in tested]
    correlation = squared_correlation([match.dates for match in tested], day_means_by_case)
    if tested[0].metric.name not in CONTENDED_METRICS:  # memory differs in steps, if at all
        return SessionVariance(prior=_prior(day_means_by_case, correlation))
    return shared_session_variance(day_means_by_case, correlation)


def shared_session_variance(
    day_means_by_case: Sequence[DayMeans], squared_correlation: float
) -> SessionVariance:
    """Prior from two or more cases: equal variances, heavy tails, or neither.

    `day_means_by_case`: in logarithms, with the sign that makes larger values worse. On shared machines they
    are skewed towards slow. `squared_correlation`: mean ρ² between cases.
    """
    cases = [moments(means) for means in day_means_by_case]
    degrees = [case.count - 1 for case in cases]
    squares = [max(case.square * case.count / (case.count - 1), MIN_DEVIATION**2) for case in cases]
    common_variance = math.fsum(map(operator.mul, squares, degrees)) / sum(degrees)
    extra_days = max(case.count for case in cases) - MIN_SESSIONS + 1
    if symmetry_p(cases, squared_correlation) < SKEWED_P / extra_days:
        return SessionVariance(prior=HeavyTails(common_variance), heavy_tails=True)
    if equal_variance_p(cases, squared_correlation) >= EQUAL_VARIANCE_P:
        common_degrees = sum(degrees) / (1 + (len(day_means_by_case) - 1) * squared_correlation)
        return SessionVariance(prior=CommonVariance(common_variance, common_degrees))
    if normality_p(cases, squared_correlation) < HEAVY_TAILS_P / extra_days:
        return SessionVariance(prior=HeavyTails(common_variance), heavy_tails=True)
    return SessionVariance(prior=_prior(day_means_by_case, squared_correlation))


def _prior(day_means_by_case: Sequence[DayMeans], squared_correlation: float) -> VariancePrior:
    """Prior of cases whose variances between sessions differ (Smyth 2004)."""
    squares = [max(deviation(means), MIN_DEVIATION) ** 2 for means in day_means_by_case]
    return variance_prior(squares, [len(means) - 1 for means in day_means_by_case], squared_correlation)


def squared_correlation(dates: Sequence[tuple[int, ...]], day_means_by_case: Sequence[DayMeans]) -> float:
    """Mean squared correlation between cases over the days that they share; 0 if they are independent.

    Only cases with the most common `dates` are used. K independent normal values correlate with a mean square
    of 1/(K − 1) by chance, which is subtracted.
    """
    import numpy as np

    common_dates = max(dict.fromkeys(dates), key=dates.count)
    rows = np.array(
        [row for case_dates, row in zip(dates, day_means_by_case, strict=True) if case_dates == common_dates]
    )
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > MIN_DEVIATION] / lengths[lengths > MIN_DEVIATION, None]
    count, chance = len(units), 1 / (len(common_dates) - 1)
    if count < 2:
        return 0.0
    mean_square = (float(((units.T @ units) ** 2).sum()) - count) / (count * (count - 1))
    return max(0.0, (mean_square - chance) / (1 - chance))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePolicy:
    """Settings of a check. `confirm`: a second test has to confirm what the first one flags as slower.

    `interleaved`: the last test measures the baseline's code too, process by process. `assumed`: standard
    deviation assumed between sessions, as a fraction, while few are stored. `variance`: whether the variance
    of a case is estimated from all cases or from that case alone.
    """

    metrics: tuple[Metric, ...]
    thresholds: tuple[Rule, ...] = ()
    assumed: float = ASSUMED_SHARED
    variance: Variance = Variance.SHARED
    strict_env: bool = False
    confirm: bool = True
    interleaved: bool = False

    def assumed_of(self, metric: Metric) -> float:
        """Standard deviation assumed between sessions for one metric, as a fraction."""
        return min(self.assumed, ASSUMED_MEMORY) if metric.unit == "B" else self.assumed


def session_spreads(
    sessions: Sequence[Digest], ref: Digest, new: Digest, metric: Metric, variance: Variance
) -> Mapping[str, SessionSpread]:
    """Variance between sessions of the machine by case id, for cases with sessions on enough days.

    `sessions`: oldest first; `ref` and `new` themselves are not used. Days before the last change of a case's
    level are left out if enough days follow, since they measured other code. The variance is shared by all
    cases, by the same rule as in a check.
    """
    other_sessions = [
        session for session in sessions if session.id not in (ref.id, new.id) and session.partner is None
    ]
    sessions_by_case = session_cases(other_sessions, new, strict=False)
    missing_case = CaseDigest()
    matches = (
        _since_last_change(match_sessions(case, case_sessions, new.cases.get(case, missing_case), metric))
        for case, case_sessions in sessions_by_case.items()
    )
    tested = [match for match in matches if match.verdict is None and len(match.days) >= MIN_SESSIONS]
    prior = session_variance(tested, variance).prior
    spreads = {}
    for match in tested:
        deviation = session_deviation(match.days, match.new_logs, 0.0, prior)
        degrees = deviation.difference.degrees
        spreads[match.case] = SessionSpread(deviation.predicted_deviation**2, degrees, len(match.days))
    return spreads


def _since_last_change(match: BaselineMatch) -> BaselineMatch:
    """The match with only the days since the last change of the case's level, if there are enough of them.

    Otherwise all days are used, and the change adds to the variance. Too few days would cause false alarms:
    by chance, one of many cases seems to have changed.
    """
    if len(match.days) <= MIN_SESSIONS:
        return match
    changes = change_points([math.exp(place) for place in day_means(match.days)]).changes
    first = changes[-1].index if changes and len(match.days) - changes[-1].index >= MIN_SESSIONS else 0
    return replace(match, days=match.days[first:], dates=match.dates[first:])
