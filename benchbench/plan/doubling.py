"""Sequences of cases in which a parameter is doubled, and where they end. Pure.

A sequence ends in its first round: where a size does not fit, or where doubling twice in a row brought less
than 5 % more items a second. Larger sizes are skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from benchbench.machine.conditions import step_s
from benchbench.model.case import Case, Scalar
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.record import Record
from benchbench.model.status import Status

DOUBLINGS = 20  # of a parameter, at most: a million times its first value
RISE = 1.05  # of the items a second: less is no rise
FLAT = 2  # doublings in a row without one: a single one may be a neighbour's doing


def doublings(point: Mapping[str, Scalar], name: str, start: int) -> Iterator[dict[str, Scalar]]:
    """The point, then with `name`, which begins at `start`, doubled again and again."""
    for times in range(DOUBLINGS + 1):
        yield {**point, name: start * 2**times}


def sequence(case: Case) -> str:
    """The name of a case's sequence, which its members share; outside a sequence, the case's id."""
    if not case.doubles:
        return case.id
    params = {name: value for name, value in case.params.items() if name != case.doubles}
    return dataclasses.replace(case, params=params, doubles="").id


def swept_size(case: Case) -> Scalar:
    """The value of the parameter that is doubled."""
    return case.params[case.doubles]


def ascending(order: Sequence[Case]) -> list[Case]:
    """The same order, but for members of a sequence, which swap places so that smaller ones come first."""
    members: dict[str, list[Case]] = {}
    for case in order:
        members.setdefault(sequence(case), []).append(case)
    turns = {
        name: iter(sorted(cases, key=lambda case: (case.doubles and swept_size(case)) or 0))
        for name, cases in members.items()
    }
    return [next(turns[sequence(case)]) for case in order]


def smallest(cases: Sequence[Case]) -> dict[str, Case]:
    """Case id → the smallest member of its sequence, or the case itself."""
    first: dict[str, Case] = {}
    for case in cases:
        known = first.setdefault(sequence(case), case)
        if case.doubles and swept_size(case) < swept_size(known):  # type: ignore[operator]
            first[sequence(case)] = case
    return {case.id: first[sequence(case)] for case in cases}


def why_needless(case: Case, records: Sequence[Record]) -> str:
    """Why a member of a sequence need not be measured, given the records of its first round; else empty."""
    smaller = [
        record
        for record in records
        if record.round == 0
        and sequence(record.case) == sequence(case)
        and swept_size(record.case) < swept_size(case)  # type: ignore[operator]
    ]
    smaller.sort(key=lambda record: swept_size(record.case))
    return next(filter(None, map(_end, smaller)), "") or _plateau(case.doubles, smaller)


def _end(record: Record) -> str:
    """Why this record ends its sequence: its case failed; else empty."""
    if not isinstance(record.outcome, Failure) or record.outcome.status is Status.SKIPPED:
        return ""
    name, status = record.case.doubles, record.outcome.status
    why = "did not fit in memory" if status is Status.OUT_OF_MEMORY else f"ended as {status}"
    return f"{name}={swept_size(record.case)} {why}"


def _plateau(name: str, smaller: Sequence[Record]) -> str:
    highest, flat = 0.0, 0
    for record in smaller:
        if not isinstance(record.outcome, Measurement):
            continue
        rate = items_per_s(record.outcome)
        flat = 0 if rate >= RISE * highest else flat + 1
        highest = max(highest, rate)
        if flat == FLAT:
            return f"{record.outcome.cost.item}s a second no longer rise at {name}={swept_size(record.case)}"
    return ""


def items_per_s(measured: Measurement) -> float:
    """The rate of one process."""
    return measured.cost.items / step_s(measured)
