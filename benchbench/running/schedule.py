"""The cases of a round, and their order. Pure.

All of them at first; then those of undecided works, and with a budget those whose processes differ most.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.analyse.rows import case_key
from benchbench.judging.ranking import WorkVerdict, judge_records
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Policy
from benchbench.plan.costs import cost_of
from benchbench.timing.policy import half_width, looks

SHARE = 0.5  # of the wide cases that one more round measures: afterwards, others may be the widest


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseWidth:
    """How a case stands: the half width of its interval over processes, as a fraction, and a round's cost."""

    case: Case
    width: float
    cost_s: float


def due(
    policy: Policy, number: int, pending: Sequence[Case], records: Sequence[Record], left_s: float
) -> list[Case]:
    """The cases of round `number`, in the order of `pending` or the widest first; none when all is done.

    `pending`: those that have not failed. `left_s`: of the policy's budget, where it has one.
    """
    if number < policy.rounds:
        return list(pending)
    found = _by_case(records)
    if policy.budget_s is not None:
        widths = [_width_of(case, found.get(case.id, []), policy.planned) for case in pending]
        return affordable(undecided(policy, records), widths, left_s) or widest(
            widths, left_s, policy.settled
        )
    if number in looks(policy)[:-1]:
        asked = {case_key(case) for work in undecided(policy, records) for case in work}
    else:  # works are judged at looks alone; in between, those of the round before go on
        going_on = number < looks(policy)[-1]
        asked = {case_key(record.case) for record in records if going_on and record.round == number - 1}
    return [case for case in pending if case_key(case) in asked]


def undecided(policy: Policy, records: Iterable[Record]) -> list[list[Case]]:
    """The cases that may be the fastest of each work where that is not told and may lead by what matters.

    Those that the fewest further rounds are likely to tell come first.
    """
    verdicts = [each for each in judge_records(records, policy).values() if each.needs_rounds]
    return [
        [each.contender.case for each in (*verdict.undecided,)] + [verdict.fastest.case]
        for verdict in sorted(verdicts, key=lambda each: _rounds_to_tell(each, policy))
        if verdict.fastest
    ]


def _rounds_to_tell(verdict: WorkVerdict, policy: Policy) -> float:
    return max(each.rounds_to_decide(policy) or float("inf") for each in verdict.undecided)


def affordable(works: Iterable[Sequence[Case]], widths: Iterable[CaseWidth], left_s: float) -> list[Case]:
    """The cases of as many works as `left_s` lasts for, each as a whole: their rounds are compared."""
    costs = {case_key(each.case): each.cost_s for each in widths}
    chosen: list[Case] = []
    for work in works:
        pending = all(case_key(case) in costs for case in work)
        cost = sum(costs.get(case_key(case), 0.0) for case in work)
        if pending and cost <= left_s:
            chosen += work
            left_s -= cost
    return chosen


def widest(widths: Iterable[CaseWidth], left_s: float, settled: float) -> list[Case]:
    """Up to half of the cases wider than `settled`, the widest first, as far as `left_s` lasts.

    A case that would take longer than is left is passed over for the next.
    """
    wide = sorted(
        (each for each in widths if each.width > settled), key=lambda each: (-each.width, each.case.id)
    )
    chosen: list[Case] = []
    for each in wide:
        if each.cost_s <= left_s and len(chosen) < SHARE * len(wide):
            chosen.append(each.case)
            left_s -= each.cost_s
    return chosen


def _width_of(case: Case, records: Sequence[Record], planned: int | None) -> CaseWidth:
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    cost = max((record.stages_s.get("wall", 0.0) for record in records), default=0.0)
    return CaseWidth(case=case, width=half_width(measured, planned), cost_s=cost)


def in_blocks(cases: Sequence[Case], seed: int, number: int) -> list[Case]:
    """The order of round `number`: computations are shuffled, and within each the cases that do it.

    What is compared is so measured within the same minutes, and nobody always comes first. It depends on the
    seed and the cases, on nothing else.
    """
    source = random.Random(f"{seed}/{number}")
    blocks: dict[tuple[object, ...], list[Case]] = {}
    for case in sorted(cases, key=lambda case: case.id):
        blocks.setdefault(_computation(case), []).append(case)
    order = list(blocks.values())
    source.shuffle(order)
    for block in order:
        source.shuffle(block)
    return [case for block in order for case in block]


def soonest(order: Sequence[Case]) -> list[Case]:
    """The cases of the computation that is ready to be timed first, in their order: the least, no training.

    So a run shows its first results while everything else has still to be verified.
    """
    ready = [case for case in order if not (case.is_call or case.phase is Phase.TRAIN)]
    if not ready:
        return []
    first = _computation(min(ready, key=lambda case: cost_of(case).flops))
    return [case for case in order if _computation(case) == first]


def _computation(case: Case) -> tuple[object, ...]:
    return (case.suite, case.workload, *case.params.items())


def _by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.case.id, []).append(record)
    return found
