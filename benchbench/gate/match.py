"""A case matched with a baseline: the sessions that count, or why nothing can be tested. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import ONCE, SETTLED, CaseDigest, Digest, case_bars, run_bars
from benchbench.analyse.metrics import Metric
from benchbench.comparing.match import (
    LEAST_PROCESSES,
    environment_changes,
    pair_interleaved,
    parts_apart,
)
from benchbench.format import count_of
from benchbench.gate.spread import ENOUGH, Hours, days_of, hours_of
from benchbench.model.status import Status, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCase:
    """A case in one session: what bars that session, and the day and hour it was made in, from 0."""

    side: CaseDigest
    bars: list[str]
    day: int = 0
    hour: int = 0


QUIET = "processes that were steady, agreed and were not contended"
SessionCases = Sequence[SessionCase]  # oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMatch:
    """A case and metric of a run with the sessions that count for it.

    `days`: day by day, hour by hour, the logarithms of the processes; `dates`: the numbers of these days.
    `verdict` is None where a test is to decide, else `reason` says why none can. `interleaved`: with the one
    session, process by process.
    """

    case: str
    metric: Metric
    sides: SessionCases
    new: CaseDigest
    logs: list[float]
    days: list[Hours]
    dates: tuple[int, ...]
    verdict: Verdict | None
    reason: str
    interleaved: bool = False

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Of the processes measured interleaved."""
        return list(zip(self.days[0][0], self.logs, strict=True))

    @property
    def key(self) -> tuple[str, str]:
        """What tells it apart within a check."""
        return self.case, self.metric.name

    @property
    def suite(self) -> str:
        """Of the case, as it was planned last."""
        planned = [side.case for side in (*(each.side for each in self.sides), self.new) if side.case]
        return planned[-1].suite if planned else ""

    @property
    def newest(self) -> CaseDigest:
        """The case in the last session in which it worked."""
        return next((each.side for each in reversed(self.sides) if each.side.rounds), CaseDigest())

    @property
    def lost(self) -> bool:
        """Whether it was asked for and cannot run."""
        return self.verdict is Verdict.GONE and self.new.case is not None


def session_cases(sessions: Sequence[Digest], new: Digest, *, strict: bool) -> dict[str, SessionCases]:
    """Case → what each of `sessions` has of it; `strict`: other versions bar as well."""
    cases: dict[str, list[SessionCase]] = {}
    started = [each.started for each in sessions]
    for session, day, hour in zip(sessions, days_of(started), hours_of(started), strict=True):
        bars = run_bars(session, new) + (environment_changes(session, new) if strict else [])
        for case, side in session.cases.items():
            cases.setdefault(case, []).append(SessionCase(side=side, bars=bars, day=day, hour=hour))
    return dict(cases)


def match_sessions(case: str, sides: SessionCases, new: CaseDigest, metric: Metric) -> BaselineMatch:
    """`new` with the sessions of `sides` that can be compared with it."""
    working = [(each, each.bars + case_bars(each.side, new)) for each in sides if each.side.rounds]
    alike = [each for each, bars in working if not bars]
    settled = [each for each in alike if _counts(each.side, metric)]
    needed = 1 if metric.name in ONCE else LEAST_PROCESSES
    days = _by_day(settled, metric, needed)
    logs = new.logs(metric)
    verdict, reason = (
        _presence([each.side for each in sides], new)
        or _bar([bars for _, bars in working])
        or _disagreement(new, metric)
        or _shortage(len(days), logs, needed, metric)
        or _unsteadiness(new, metric)
        or parts_apart((new,), metric)
        or (None, "")
    )
    return BaselineMatch(
        case=case,
        metric=metric,
        sides=sides,
        new=new,
        logs=logs,
        days=list(days.values()),
        dates=tuple(days),
        verdict=verdict,
        reason=reason,
    )


def _counts(side: CaseDigest, metric: Metric) -> bool:
    """Whether a session had warmed up, and nobody else used the device."""
    return not (metric.name in SETTLED and side.unsteady) and not side.disturbance(metric)


def _by_day(settled: SessionCases, metric: Metric, needed: int) -> dict[int, Hours]:
    days: dict[int, dict[int, list[float]]] = {}
    for each in settled:
        logs = each.side.logs(metric)
        if len(logs) >= needed:
            days.setdefault(each.day, {}).setdefault(each.hour, []).extend(logs)
    return {day: list(hours.values()) for day, hours in days.items()}


def match_interleaved(case: str, ref: CaseDigest, new: CaseDigest, metric: Metric) -> BaselineMatch:
    """`new` with the baseline's code, measured interleaved with it: a session of the same rounds."""
    pair = pair_interleaved(ref, new, metric)
    verdict, reason = _reference(ref) or (pair.verdict, pair.reason)
    return BaselineMatch(
        case=case,
        metric=metric,
        sides=(SessionCase(side=ref, bars=[]),),
        new=new,
        logs=pair.new_logs,
        days=[[pair.ref_logs]],
        dates=(0,),
        verdict=verdict,
        reason=reason,
        interleaved=True,
    )


def _reference(ref: CaseDigest) -> tuple[Verdict, str] | None:
    """A baseline that cannot run is no baseline: nothing would ever be slower than it.

    Code that has no such case, since it was added later, is not broken: the case is new.
    """
    added = ref.skipped_for_partner or ref.status is Status.UNSUPPORTED
    cause = ref.failure or ("" if added else ref.absent)
    return (Verdict.INCOMPARABLE, f"the baseline's code: {cause}") if cause else None


def _presence(sides: Sequence[CaseDigest], new: CaseDigest) -> tuple[Verdict, str] | None:
    if new.absent:
        return Verdict.GONE, new.absent
    known = [side for side in sides if not side.absent]
    worked = any(side.rounds for side in known)
    if new.failure:
        if worked:
            return Verdict.BROKEN, new.failure
        if any(side.failure for side in known):
            return Verdict.INSUFFICIENT, f"fails in the baseline too: {new.failure}"
        return Verdict.BROKEN, f"not part of the baseline: {new.failure}"
    if worked:
        return None
    failure = next((side.failure for side in reversed(known) if side.failure), "")
    return Verdict.NEW, f"failed before: {failure}" if failure else "not part of the baseline"


def _bar(bars: Sequence[list[str]]) -> tuple[Verdict, str] | None:
    """Where no session is comparable, what bars the newest."""
    return (Verdict.INCOMPARABLE, "; ".join(bars[-1])) if all(bars) else None


def _shortage(days: int, logs: list[float], needed: int, metric: Metric) -> tuple[Verdict, str] | None:
    if len(logs) < needed:
        known = count_of(len(logs), "process")
        return Verdict.INSUFFICIENT, f"{metric.name} is known of {known}, a test needs {needed}"
    if not days:
        return Verdict.INSUFFICIENT, f"no session has {metric.name} of {needed} {QUIET}"
    if metric.name in ONCE and days < ENOUGH:
        counts = f"the baseline has sessions of {days} days, this needs {ENOUGH}"
        return Verdict.INSUFFICIENT, f"{metric.name} is measured once a run: {counts}"
    return None


def _disagreement(new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    reason = new.disagreement(metric)
    return (Verdict.INSUFFICIENT, reason) if reason else None


def _unsteadiness(new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    if metric.name not in SETTLED or not new.unsteady:
        return None
    return Verdict.INSUFFICIENT, f"still warming up when measured, in {count_of(new.unsteady, 'process')}"
