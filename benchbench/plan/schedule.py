"""Which cases a round measures: all of them at first, then those whose processes differ most. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Policy
from benchbench.timing.policy import half_width, rounds_of

SHARE = 0.5  # of the wide cases that one more round measures: afterwards, others may be the widest


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a case stands: the half width of its interval over processes, as a fraction, and a round's cost."""

    case: Case
    width: float
    cost_s: float


def due(
    policy: Policy, number: int, pending: Sequence[Case], records: Iterable[Record], left_s: float
) -> list[Case]:
    """The cases of round `number`, in the order of `pending` or the widest first; none when all is done.

    `pending`: those that have not failed. `left_s`: of the policy's budget, where it has one.
    """
    if number < policy.rounds:
        return list(pending)
    found = _by_case(records)
    if policy.budget_s is not None:
        standings = [_standing(case, found.get(case.id, []), policy.planned) for case in pending]
        return widest(standings, left_s, policy.settled)
    return [
        case
        for case in pending
        if number < rounds_of(policy, [record.outcome for record in found.get(case.id, [])])
    ]


def widest(standings: Iterable[Standing], left_s: float, settled: float) -> list[Case]:
    """Up to half of the cases wider than `settled`, the widest first, as far as `left_s` lasts.

    A case that would take longer than is left is passed over for the next.
    """
    wide = sorted(
        (each for each in standings if each.width > settled), key=lambda each: (-each.width, each.case.id)
    )
    chosen: list[Case] = []
    for each in wide:
        if each.cost_s <= left_s and len(chosen) < SHARE * len(wide):
            chosen.append(each.case)
            left_s -= each.cost_s
    return chosen


def _standing(case: Case, records: Sequence[Record], planned: int | None) -> Standing:
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    cost = max((record.stages_s.get("wall", 0.0) for record in records), default=0.0)
    return Standing(case=case, width=half_width(measured, planned), cost_s=cost)


def _by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.case.id, []).append(record)
    return found
