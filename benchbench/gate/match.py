"""A case held against a baseline: the sessions that count, or why nothing can be tested. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import ONCE, SETTLED, Digest, Side
from benchbench.analyse.metrics import Metric
from benchbench.comparing.match import LEAST_PROCESSES, case_bars, environment_changes, pair_in_turn, run_bars
from benchbench.gate.spread import ENOUGH, sittings
from benchbench.model.status import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A case in one session: what bars that session, and the sitting it was made in, numbered from 0."""

    side: Side
    bars: list[str]
    sitting: int = 0


Sides = Sequence[Kept]  # oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A case and metric of a run, and the sessions that count for it, as logarithms of their processes.

    Those of one sitting are one session. `judgement` is None where a test is to decide, else `reason` says
    why none can.
    """

    case: str
    metric: Metric
    sides: Sides
    new: Side
    logs: list[float]
    sessions: list[list[float]]
    judgement: Judgement | None
    reason: str
    in_turn: bool = False  # with the one session, process by process

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Of those measured in turn."""
        return list(zip(self.sessions[0], self.logs, strict=True))

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
    def newest(self) -> Side:
        """The case in the last session in which it worked."""
        return next((each.side for each in reversed(self.sides) if each.side.rounds), Side())

    @property
    def lost(self) -> bool:
        """Whether it was asked for and cannot run."""
        return self.judgement is Judgement.GONE and self.new.case is not None


def sides_of(sessions: Sequence[Digest], new: Digest, *, strict: bool) -> dict[str, Sides]:
    """Case → its sides in `sessions`; `strict`: other versions bar as well."""
    found: dict[str, list[Kept]] = {}
    for session, sitting in zip(sessions, sittings([each.started for each in sessions]), strict=True):
        bars = run_bars(session, new) + (environment_changes(session, new) if strict else [])
        for case, side in session.cases.items():
            found.setdefault(case, []).append(Kept(side=side, bars=bars, sitting=sitting))
    return dict(found)


def hold(case: str, sides: Sides, new: Side, metric: Metric) -> Held:
    """`new` against `sides`, oldest first."""
    working = [(each, each.bars + case_bars(each.side, new)) for each in sides if each.side.rounds]
    alike = [each for each, bars in working if not bars]
    settled = [each for each in alike if not (metric.name in SETTLED and each.side.unsteady)]
    needed = 1 if metric.name in ONCE else LEAST_PROCESSES
    sessions = _by_sitting(settled, metric, needed)
    logs = new.logs(metric)
    judgement, reason = (
        _presence([each.side for each in sides], new)
        or _bar([bars for _, bars in working])
        or _shortage(sessions, logs, needed, metric)
        or _unsteadiness(new, metric)
        or (None, "")
    )
    return Held(
        case=case,
        metric=metric,
        sides=sides,
        new=new,
        logs=logs,
        sessions=sessions,
        judgement=judgement,
        reason=reason,
    )


def _by_sitting(settled: Sides, metric: Metric, needed: int) -> list[list[float]]:
    found: dict[int, list[float]] = {}
    for each in settled:
        logs = each.side.logs(metric)
        if len(logs) >= needed:
            found.setdefault(each.sitting, []).extend(logs)
    return list(found.values())


def hold_in_turn(case: str, ref: Side, new: Side, metric: Metric) -> Held:
    """`new` against the baseline's code, measured in turn with it: a session of the same rounds."""
    pair = pair_in_turn(ref, new, metric)
    judgement, reason = _reference(ref) or (pair.judgement, pair.reason)
    return Held(
        case=case,
        metric=metric,
        sides=(Kept(side=ref, bars=[]),),
        new=new,
        logs=pair.new_logs,
        sessions=[pair.ref_logs],
        judgement=judgement,
        reason=reason,
        in_turn=True,
    )


def _reference(ref: Side) -> tuple[Judgement, str] | None:
    """A baseline that cannot run is no baseline: nothing would ever be slower than it."""
    cause = ref.failure or ("" if ref.spared else ref.absent)
    return (Judgement.INCOMPARABLE, f"the baseline's code: {cause}") if cause else None


def _presence(sides: Sequence[Side], new: Side) -> tuple[Judgement, str] | None:
    if new.absent:
        return Judgement.GONE, new.absent
    known = [side for side in sides if not side.absent]
    worked = any(side.rounds for side in known)
    if new.failure:
        if worked:
            return Judgement.BROKEN, new.failure
        if any(side.failure for side in known):
            return Judgement.INSUFFICIENT, f"fails in the baseline too: {new.failure}"
        return Judgement.BROKEN, f"not part of the baseline: {new.failure}"
    if worked:
        return None
    failure = next((side.failure for side in reversed(known) if side.failure), "")
    return Judgement.NEW, f"failed before: {failure}" if failure else "not part of the baseline"


def _bar(bars: Sequence[list[str]]) -> tuple[Judgement, str] | None:
    """Where no session is comparable, what bars the newest."""
    return (Judgement.INCOMPARABLE, "; ".join(bars[-1])) if all(bars) else None


def _shortage(
    sessions: Sequence[list[float]], logs: list[float], needed: int, metric: Metric
) -> tuple[Judgement, str] | None:
    if len(logs) < needed:
        return Judgement.INSUFFICIENT, f"{len(logs)} processes have {metric.name}, it needs {needed}"
    if not sessions:
        return Judgement.INSUFFICIENT, f"no session has {metric.name} of {needed} steady processes"
    if metric.name in ONCE and len(sessions) < ENOUGH:
        counts = f"the baseline has {len(sessions)} sessions an hour apart, this needs {ENOUGH}"
        return Judgement.INSUFFICIENT, f"{metric.name} is measured once a run: {counts}"
    return None


def _unsteadiness(new: Side, metric: Metric) -> tuple[Judgement, str] | None:
    if metric.name not in SETTLED or not new.unsteady:
        return None
    return Judgement.INSUFFICIENT, f"still warming up when measured, in {new.unsteady} processes"
