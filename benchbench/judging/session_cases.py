"""The cases of a check, each beside the sessions that count for it, or why it cannot be tested. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import DISTURBED, ONCE, SETTLED, CaseDigest, Digest, case_bars, run_bars
from benchbench.analyse.metrics import Metric
from benchbench.format import count_of
from benchbench.judging.pairs import (
    LEAST_PROCESSES,
    environment_changes,
    pair_interleaved,
    parts_apart,
)
from benchbench.judging.sessions import (
    ASSUMED_MEMORY,
    ASSUMED_SHARED,
    ENOUGH,
    LEAST,
    CommonVariance,
    HeavyTails,
    Hours,
    Places,
    SessionPrior,
    alike_p,
    day_means,
    days_of,
    hours_of,
    moments,
    normal_p,
    symmetric_p,
)
from benchbench.model.options import Variance
from benchbench.model.status import Status, Verdict
from benchbench.plan.suite import Rule
from benchbench.stats import VariancePrior, deviation, variance_prior


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
        """The processes measured interleaved, as pairs."""
        return list(zip(self.days[0][0], self.logs, strict=True))

    @property
    def key(self) -> tuple[str, str]:
        """What tells it apart within a check."""
        return self.case, self.metric.name

    @property
    def suite(self) -> str:
        """The suite of the case, as it was planned last."""
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
    alike = _of_newest_work([each for each, bars in working if not bars])
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


def _of_newest_work(alike: SessionCases) -> SessionCases:
    """The sessions of the version of the work that was accepted last: a user's model may have had others."""
    return [each for each in alike if each.side.workload_version == alike[-1].side.workload_version]


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
    added = ref.skipped_for_partner or ref.status in (Status.UNSUPPORTED, Status.INCOMPARABLE)
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
        counts = f"the baseline has sessions of {count_of(days, 'day')}, this needs {ENOUGH}"
        return Verdict.INSUFFICIENT, f"{metric.name} is measured once a run: {counts}"
    return None


def _disagreement(new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    reason = new.disagreement(metric)
    return (Verdict.INSUFFICIENT, reason) if reason else None


def _unsteadiness(new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    if metric.name not in SETTLED or not new.unsteady:
        return None
    return Verdict.INSUFFICIENT, f"still warming up when measured, in {count_of(new.unsteady, 'process')}"


ALIKE_P = 0.05  # of cases that differ by the same: of less likely ones each differs by an amount of its own
HEAVY_P = 0.15  # of five normal sessions where cases are not alike, less of more of them: they tell better
SKEWED_P = 0.01  # likewise of five normal sessions, whether cases are alike or not, and less of more


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionVariance:
    """How much sessions vary in one metric. `prior`: what all cases tell of each; None: judged alone.

    `heavy_tails`: some sessions are much further from the rest than normal ones are, or much slower than the
    rest, so that sessions do not tell where a further one may be. What is slower than those is provisional.
    """

    prior: SessionPrior | None = None
    heavy_tails: bool = False


ALONE = SessionVariance()


def session_variance(matches: Sequence[BaselineMatch], variance: Variance) -> SessionVariance:
    """By the cases that have sessions of `ENOUGH` days: fewer stand on an assumption of their own."""
    tested = [each for each in matches if each.verdict is None and len(each.days) >= ENOUGH]
    if variance is Variance.OWN or len(tested) < 2:
        return ALONE
    sign = 1 if tested[0].metric.better == "lower" else -1
    places = [[sign * place for place in day_means(each.days)] for each in tested]
    alike = likeness([each.dates for each in tested], places)
    if tested[0].metric.name not in DISTURBED:  # memory: what differs at all differs by steps
        return SessionVariance(prior=_prior(places, alike))
    return estimated_from_all(places, alike)


def estimated_from_all(places: Sequence[Places], alike: float) -> SessionVariance:
    """From two or more cases of likeness `alike`: they differ equally, have heavy tails, or neither.

    `places`: above 0 is worse. Machines that others use are skewed to slow.
    """
    cases = [moments(each) for each in places]
    degrees = [each.count - 1 for each in cases]
    squares = [max(each.square * each.count / (each.count - 1), LEAST**2) for each in cases]
    common = math.fsum(map(operator.mul, squares, degrees)) / sum(degrees)
    more = max(each.count for each in cases) - ENOUGH + 1
    if symmetric_p(cases, alike) < SKEWED_P / more:
        return SessionVariance(prior=HeavyTails(common), heavy_tails=True)
    if alike_p(cases, alike) >= ALIKE_P:
        known = sum(degrees) / (1 + (len(places) - 1) * alike)
        return SessionVariance(prior=CommonVariance(common, known))
    if normal_p(cases, alike) < HEAVY_P / more:
        return SessionVariance(prior=HeavyTails(common), heavy_tails=True)
    return SessionVariance(prior=_prior(places, alike))


def _prior(places: Sequence[Places], alike: float) -> VariancePrior:
    """The prior of cases whose sessions differ by more in some than in others (Smyth 2004)."""
    squares = [max(deviation(each), LEAST) ** 2 for each in places]
    return variance_prior(squares, [len(each) - 1 for each in places], alike)


def likeness(dates: Sequence[tuple[int, ...]], places: Sequence[Places]) -> float:
    """The mean square of the correlation between cases over the days they share, 0 of independent ones.

    Of the cases that have the commonest `dates`. K independent normal values correlate by chance with a mean
    square of 1/(K − 1), which is taken off.
    """
    import numpy as np

    commonest = max(dict.fromkeys(dates), key=dates.count)
    rows = np.array([row for own, row in zip(dates, places, strict=True) if own == commonest])
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1)
    units = rows[lengths > LEAST] / lengths[lengths > LEAST, None]
    count, chance = len(units), 1 / (len(commonest) - 1)
    if count < 2:
        return 0.0
    square = (float(((units.T @ units) ** 2).sum()) - count) / (count * (count - 1))
    return max(0.0, (square - chance) / (1 - chance))


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
