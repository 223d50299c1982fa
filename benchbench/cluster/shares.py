"""Which machine measures what: each the suite, then also what a lost machine has left. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from benchbench.analyse.rows import case_key
from benchbench.cluster.machines import FleetMachine
from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.running.schedule import due
from benchbench.store.naming import INSTEAD_OF, MACHINE


class ShareState(StrEnum):
    """How far a machine has come with its share."""

    WAITING = "waiting"
    STARTING = "starting"
    MEASURING = "measuring"
    DONE = "done"
    FAILED = "failed"  # it told why it cannot
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one machine is to measure, as a run: the whole suite, unless it is `interrupted` or `lost`.

    `interrupted`: a run of this machine, to be finished. `lost`: the head of a run whose machine went away,
    to be begun again in these `cases`. `instead_of`: the id of that run, or the machine that never began.
    """

    machine: str
    kind: str
    interrupted: Run | None = None
    lost: RunInfo | None = None
    cases: tuple[Case, ...] = ()
    instead_of: str = ""


def unfinished_cases(info: RunInfo, records: Sequence[Record]) -> list[tuple[Case, int]]:
    """The planned cases that lack a record of some round, and the first such round; none of what failed.

    Rounds that a budget would have added are not missed.
    """
    failed = {case_key(record.case) for record in records if isinstance(record.outcome, Failure)}
    made = {(*case_key(record.case), record.round) for record in records}
    pending = [case for case in info.plan if case_key(case) not in failed]
    missing: dict[tuple[str, str], tuple[Case, int]] = {}
    for number in count():
        if not (cases := due(info.policy, number, pending, records, left_s=0.0)):
            return list(missing.values())
        for case in cases:
            if (*case_key(case), number) not in made:
                missing.setdefault(case_key(case), (case, number))
    raise AssertionError("rounds end")


def lost_cases(run: Run) -> tuple[Case, ...]:
    """Those that were unfinished when its machine was lost."""
    return tuple(record.case for record in run.records if record.outcome.status == Status.LOST)


def begun_again(share: Share, info: RunInfo | None, cases: Sequence[Case], machine: str) -> Share:
    """What is left of a share that was lost, for another machine; `info`: the head, if there was one."""
    if info is None:
        return dataclasses.replace(share, machine=machine, instead_of=share.instead_of or share.machine)
    return Share(machine=machine, kind=share.kind, lost=info, cases=tuple(cases), instead_of=info.id)


def sibling(kind: str, machines: Sequence[FleetMachine], load: Mapping[str, int]) -> str:
    """Of the machines of that kind the one with the least to do, by name; empty where there is none."""
    same = [each.name for each in machines if each.kind == kind]
    return min(same, key=lambda name: load.get(name, 0), default="")


def shares_left(
    machines: Sequence[FleetMachine], measuring: Sequence[str], runs: Sequence[Run]
) -> list[Share]:
    """What a fleet that ended early still has to do.

    `measuring`: the names of those machines that were to measure the suite. `runs`: what there is of it.
    """
    kinds = {each.name: each.kind for each in machines}
    stood_in_for = {run.info.tags.get(INSTEAD_OF, "") for run in runs}
    own = {run.info.tags.get(MACHINE) for run in runs if INSTEAD_OF not in run.info.tags}
    never = [Share(machine=name, kind=kinds[name]) for name in measuring if name not in own | stood_in_for]
    return never + [share for run in runs if run.info.id not in stood_in_for for share in _left(run, kinds)]


def _left(run: Run, kinds: Mapping[str, str]) -> Iterator[Share]:
    tags = run.info.tags
    share = Share(
        machine=tags[MACHINE], kind=kinds.get(tags[MACHINE], ""), instead_of=tags.get(INSTEAD_OF, "")
    )
    if not run.ended:
        yield dataclasses.replace(share, interrupted=run)
    elif cases := lost_cases(run):
        yield begun_again(share, run.info, cases, share.machine)  # which may be back
