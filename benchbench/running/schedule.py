"""The cases of a round, and their order.

The planned rounds have all cases. Further rounds have those of undecided works, and with a budget also those
with the widest intervals.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.analyse.rows import case_key
from benchbench.judging.ranking import WorkVerdict, judge_records
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Measurement
from benchbench.model.run import Policy, Record
from benchbench.plan.estimates import cost_of
from benchbench.timing.policy import half_width, looks

ROUND_SHARE = 0.5  # of the wide cases measured in one more round, after which others may be the widest


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseWidth:
    """A case's precision and cost.

    `width`: half width of its 95 % interval over processes, as a fraction. `cost_s`: seconds of one round.
    """

    case: Case
    width: float
    cost_s: float


def cases_of_round(
    policy: Policy, number: int, pending: Sequence[Case], records: Sequence[Record], left_s: float
) -> list[Case]:
    """The cases of round `number`; none if the run is complete.

    `pending`: the cases that have not failed. `left_s`: seconds left of the policy's budget, if it has one.
    """
    if number < policy.rounds:
        return list(pending)
    records_by_case = _group_by_case(records)
    if policy.budget_s is not None:
        widths = [_width_of(case, records_by_case.get(case.id, []), policy.planned) for case in pending]
        return within_budget(undecided(policy, records), widths, left_s) or least_precise(
            widths, left_s, policy.settled
        )
    if number in looks(policy)[:-1]:
        keys = {case_key(case) for work in undecided(policy, records) for case in work}
    else:  # works are judged at looks only; other rounds repeat the cases of the round before
        continues = number < looks(policy)[-1]
        keys = {case_key(record.case) for record in records if continues and record.round == number - 1}
    return [case for case in pending if case_key(case) in keys]


def undecided(policy: Policy, records: Iterable[Record]) -> list[list[Case]]:
    """Contenders of each undecided work whose possible lead exceeds the threshold, and its fastest case.

    Works that probably need the fewest further rounds come first.
    """
    verdicts = [verdict for verdict in judge_records(records, policy).values() if verdict.needs_rounds]
    return [
        [comparison.contender.case for comparison in verdict.undecided] + [verdict.fastest.case]
        for verdict in sorted(verdicts, key=lambda verdict: _rounds_to_decide(verdict, policy))
        if verdict.fastest
    ]


def _rounds_to_decide(verdict: WorkVerdict, policy: Policy) -> float:
    return max(comparison.rounds_to_decide(policy) or float("inf") for comparison in verdict.undecided)


def within_budget(works: Iterable[Sequence[Case]], widths: Iterable[CaseWidth], left_s: float) -> list[Case]:
    """The cases of the works that fit into `left_s`. A work is taken as a whole or not at all."""
    costs = {case_key(width.case): width.cost_s for width in widths}
    cases: list[Case] = []
    for work in works:
        pending = all(case_key(case) in costs for case in work)
        cost = sum(costs.get(case_key(case), 0.0) for case in work)
        if pending and cost <= left_s:
            cases += work
            left_s -= cost
    return cases


def least_precise(widths: Iterable[CaseWidth], left_s: float, settled: float) -> list[Case]:
    """The widest of the cases wider than `settled`: up to ROUND_SHARE of them that fit into `left_s`.

    A case that does not fit is skipped.
    """
    wide = sorted((width for width in widths if width.width > settled), key=lambda w: (-w.width, w.case.id))
    cases: list[Case] = []
    for width in wide:
        if width.cost_s <= left_s and len(cases) < ROUND_SHARE * len(wide):
            cases.append(width.case)
            left_s -= width.cost_s
    return cases


def _width_of(case: Case, records: Sequence[Record], planned: int | None) -> CaseWidth:
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    cost = max((record.stages_s.get("wall", 0.0) for record in records), default=0.0)
    return CaseWidth(case=case, width=half_width(measured, planned), cost_s=cost)


def shuffled_by_work(cases: Sequence[Case], seed: int, number: int) -> list[Case]:
    """The cases in the order of round `number`: works are shuffled, and the cases within each work.

    Compared cases are measured within minutes of each other, and none is always first. The order depends on
    the seed and the cases only.
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


def first_work(order: Sequence[Case]) -> list[Case]:
    """The cases of the smallest work without training, in their order. They need the least preparation.

    Timing them first lets a run show results before everything else is verified.
    """
    ready = [case for case in order if not (case.is_call or case.phase is Phase.TRAIN)]
    if not ready:
        return []
    first = _computation(min(ready, key=lambda case: cost_of(case).flops))
    return [case for case in order if _computation(case) == first]


def _computation(case: Case) -> tuple[object, ...]:
    return (case.suite, case.workload, *case.params.items())


def _group_by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.case.id, []).append(record)
    return groups
