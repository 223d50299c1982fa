"""Cases of a run matched with their sessions, or the reason against a test. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import (
    CONTENDED_METRICS,
    ONCE_PER_RUN,
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
    incomparable,
    insufficient,
    pair_interleaved,
    part_difference,
)
from benchbench.judging.sessions import (
    MIN_SESSIONS,
    Days,
    SharedVariance,
    day_means,
    days_of,
    session_deviation,
    shared_variance,
    squared_correlation,
)
from benchbench.model.case import Status, Verdict

COUNTED_PROCESSES = "processes that were steady, agreed and were not contended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCase:
    """One case in one session, with the day of the session, numbered from 0.

    `mismatches`: differences between session and run that prevent a comparison.
    """

    digest: CaseDigest
    mismatches: list[str]
    day: int = 0


SessionCases = Sequence[SessionCase]  # of one case, oldest session first


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMatch:
    """A case and metric of a run, matched with the sessions it is tested against.

    `new_logs`: logarithms of the run's processes. `days`: those of each day's session.
    `dates`: the numbers of these days. `verdict`: None if a test decides; otherwise the verdict, and `reason`
    explains it. `interleaved`: the only session was measured interleaved with the run.
    """

    case: str
    metric: Metric
    sessions: SessionCases
    new: CaseDigest
    new_logs: list[float]
    days: Days
    dates: tuple[int, ...]
    verdict: Verdict | None
    reason: str
    interleaved: bool = False

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Interleaved processes as pairs of (session, run)."""
        return list(zip(self.days[0], self.new_logs, strict=True))

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
    for session, day in zip(sessions, days_of([session.started for session in sessions]), strict=True):
        mismatches = run_mismatches(session, new) + (environment_changes(session, new) if strict else [])
        for case, digest in session.cases.items():
            cases.setdefault(case, []).append(SessionCase(digest=digest, mismatches=mismatches, day=day))
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
        or (not comparable and incomparable(measured[-1][1]))
        or insufficient(new.disagreement(metric))
        or _too_few_values(len(days), new_logs, min_processes, metric)
        or insufficient(new.unsteadiness(metric))
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
    return not (case.unsteadiness(metric) or case.disturbance(metric))


def _logs_by_day(sessions: SessionCases, metric: Metric, min_processes: int) -> dict[int, list[float]]:
    """Logarithms of each day's last session: sessions of one day share its temperature and neighbours."""
    return {
        session.day: logs for session in sessions if len(logs := session.digest.logs(metric)) >= min_processes
    }


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
        days=[pair.ref_logs],
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


def session_variance(matches: Sequence[BaselineMatch]) -> SharedVariance | None:
    """Variance between sessions, from the cases with sessions on at least `MIN_SESSIONS` days.

    None if there are fewer than two such cases.
    """
    tested = [match for match in matches if match.verdict is None and len(match.days) >= MIN_SESSIONS]
    if len(tested) < 2:
        return None
    sign = 1 if tested[0].metric.better == "lower" else -1
    day_means_by_case = [[sign * place for place in day_means(match.days)] for match in tested]
    correlation = squared_correlation([match.dates for match in tested], day_means_by_case)
    shared = shared_variance(day_means_by_case, correlation)
    # Memory differs in steps, if at all.
    return shared if tested[0].metric.name in CONTENDED_METRICS else replace(shared, heavy_tails=False)


def session_spreads(
    sessions: Sequence[Digest], ref: Digest, new: Digest, metric: Metric
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
    shared = session_variance(tested)
    spreads = {}
    for match in tested:
        deviation = session_deviation(match.days, match.new_logs, 0.0, shared)
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
