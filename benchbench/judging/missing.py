"""Records that a run should have and has not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.format import count_of
from benchbench.model.options import Isolation
from benchbench.model.run import Policy

NOT_PLANNED = "in the baseline, but not in the plan of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRecords:
    """A case that the run should have measured and has not, or not in every round."""

    case: str
    reason: str


def missing_records(sessions: Sequence[Digest], new: Digest) -> list[MissingRecords]:
    """Cases of `new` without all their rounds, then those of `sessions` that `new` did not plan."""
    worked = dict.fromkeys(
        name for each in sessions for name, side in each.cases.items() if side.rounds or side.failure
    )
    absent = [MissingRecords(case=name, reason=NOT_PLANNED) for name in worked if name not in new.cases]
    return [*missing_rounds(new), *absent]


def missing_pairs(ref: Digest, new: Digest) -> list[MissingRecords]:
    """Cases without all their rounds on either side of an interleaved run.

    A case that fails on one side is not measured again on the other.
    """
    failed = {
        name
        for name, side in new.cases.items()
        for partner in [ref.cases.get(name, side)]
        if side.failure or partner.failure or partner.absent
    }
    both = {each.case: each for digest in (ref, new) for each in missing_rounds(digest)}
    return [each for name, each in both.items() if name not in failed]


def missing_rounds(new: Digest) -> list[MissingRecords]:
    """Planned cases that neither failed nor have a record of every round."""
    anyhow = new.settings.isolation is Isolation.SHARED  # a test session runs the tests it was asked for
    return [
        MissingRecords(case=name, reason=reason)
        for name, side in new.cases.items()
        if not (side.absent or side.failure) and (reason := _shortfall(side, new.policy, anyhow))
    ]


def _shortfall(side: CaseDigest, policy: Policy, anyhow: bool) -> str:
    count, wanted = len(side.rounds), policy.rounds
    if count == 0:
        return "planned, but without a record"
    if anyhow:
        return ""
    if not set(range(wanted)) <= set(side.rounds):
        return f"records of {count} of {count_of(wanted, 'round')}"
    return ""
