"""Machines of one type: how far each is from its siblings, over the cases that several of them ran. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchbench.analyse.metrics import LATENCY
from benchbench.choosing.sessions import LEAST, CaseSession, MachineType, filled_variance, nested_days
from benchbench.judging.comparison import ALPHA, THRESHOLD
from benchbench.judging.sessions import ENOUGH
from benchbench.stats import holm, mad, mean, median, t_quantile, t_tail

LEAST_MACHINES = 3  # of two, nobody can say which is the odd one
TO_DEVIATION = 1.4826  # of a MAD, for normal values (Iglewicz & Hoaglin 1993)
# Of few values the MAD is too small; these undo it (Croux & Rousseeuw 1992), of more n / (n − 0.8).
FEW = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.2, 7: 1.14, 8: 1.129, 9: 1.107}
DEGREES = ENOUGH - 1  # of t, however many machines: their days have heavier tails than normal values
EFFICIENCY = 0.37  # of the MAD: it knows as much as a standard deviation of so many of the values


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineScore:
    """A machine beside its siblings. `ratio`: its time over their median, in the median of its `cases`.

    `low`, `high`: 95 %. `slow`: by more than machines differ, at 0.05 over all machines together; None where
    there are too few siblings to say.
    """

    machine: str
    ratio: float
    low: float | None
    high: float | None
    cases: int
    days: int
    slow: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """Machines of one type and settings, the slowest first."""

    type: MachineType
    scores: tuple[MachineScore, ...]


@dataclass(frozen=True, slots=True)
class _Deviations:
    """How far a machine is from its siblings: its logarithm over their median, case by case."""

    machine: str
    cases: tuple[float, ...]
    days: int

    @property
    def score(self) -> float:
        return median(self.cases)


def rank_siblings(sessions: Sequence[CaseSession], assumed: float) -> list[Siblings]:
    """The machines of each type of which a case ran on two or more; `assumed`: how far days differ.

    A machine's score over K days has this over √K in it, of the machine that was measured least.
    """
    types: dict[MachineType, list[CaseSession]] = {}
    for each in sessions:
        types.setdefault(each.type, []).append(each)
    deviations = {kind: _deviations(own) for kind, own in types.items()}
    several = {kind: own for kind, own in deviations.items() if len(own) > 1}
    spreads = {kind: assumed / math.sqrt(min(each.days for each in own)) for kind, own in several.items()}
    ps = _adjusted(
        {kind: machine_ps([each.score for each in own], spreads[kind]) for kind, own in several.items()}
    )
    return [
        Siblings(type=kind, scores=tuple(_scores(own, ps[kind], spreads[kind])))
        for kind, own in several.items()
    ]


def _deviations(sessions: Sequence[CaseSession]) -> list[_Deviations]:
    """Machines, the slowest first; by cases that enough machines ran, or by all of them if they are two."""
    cases: dict[tuple[str, str | None], dict[str, list[CaseSession]]] = {}
    for each in sessions:
        own = cases.setdefault((each.case.id, each.processes.version), {})
        own.setdefault(each.machine, []).append(each)
    least = min(LEAST_MACHINES, max((len(machines) for machines in cases.values()), default=0))
    found: dict[str, list[tuple[float, int]]] = {}
    for machines in cases.values():
        if len(machines) >= max(least, 2):
            for machine, log, days in _from_the_median(machines):
                found.setdefault(machine, []).append((log, days))
    made = [
        _Deviations(machine, tuple(log for log, _ in own), max(days for _, days in own))
        for machine, own in found.items()
    ]
    return sorted(made, key=lambda each: (-each.score, each.machine))


def _from_the_median(machines: Mapping[str, Sequence[CaseSession]]) -> list[tuple[str, float, int]]:
    days = {machine: nested_days(own, LATENCY) for machine, own in machines.items()}
    logs = {
        machine: mean([mean([mean(hour) for hour in day]) for day in own]) for machine, own in days.items()
    }
    middle = median(list(logs.values()))
    return [(machine, log - middle, len(days[machine])) for machine, log in logs.items()]


def spread_of(scores: Sequence[float], assumed: float) -> float:
    """The standard deviation of a machine's score about the median of all.

    The larger of two that slow machines do not widen: from the median absolute deviation, and the root mean
    square of the faster half. Machines with heavy tails have them on that side, too. And from what is
    assumed, for as long as the deviation of so many machines knows less than a standard deviation of
    `ENOUGH`.
    """
    count, middle = len(scores), median(scores)
    typical = mad(scores) * TO_DEVIATION * FEW.get(count, count / (count - 0.8))
    faster = [(score - middle) ** 2 for score in sorted(scores)[: count // 2]]
    own = max(typical**2, mean(faster), LEAST**2)
    variance = filled_variance(own, EFFICIENCY * (count - 1), assumed)
    return math.sqrt(variance * (1 + 1 / count))


def machine_ps(scores: Sequence[float], assumed: float) -> list[float]:
    """The one-sided probability that a machine so slow is one of the others."""
    if len(scores) < LEAST_MACHINES:
        return [1.0] * len(scores)
    spread = spread_of(scores, assumed)
    return [t_tail((median(scores) - score) / spread, DEGREES) for score in scores]


def _adjusted(ps: Mapping[MachineType, Sequence[float]]) -> dict[MachineType, list[float]]:
    """The probabilities adjusted by Holm, over the machines of all types."""
    adjusted = iter(holm([p for own in ps.values() for p in own]))
    return {kind: [next(adjusted) for _ in own] for kind, own in ps.items()}


def _scores(own: Sequence[_Deviations], ps: Sequence[float], assumed: float) -> list[MachineScore]:
    half = None
    if len(own) >= LEAST_MACHINES:
        half = t_quantile(0.975, DEGREES) * spread_of([each.score for each in own], assumed)
    return [_score(each, p, half) for each, p in zip(own, ps, strict=True)]


def _score(own: _Deviations, p: float, half: float | None) -> MachineScore:
    known = half is not None
    return MachineScore(
        machine=own.machine,
        ratio=math.exp(own.score),
        low=math.exp(own.score - half) if half is not None else None,
        high=math.exp(own.score + half) if half is not None else None,
        cases=len(own.cases),
        days=own.days,
        slow=p < ALPHA and own.score >= math.log1p(THRESHOLD) if known else None,
    )
