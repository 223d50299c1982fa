"""Records that a run should have but does not. Pure."""

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
    """A planned case without a record in every round."""

    case: str
    reason: str


def missing_records(sessions: Sequence[Digest], new: Digest) -> list[MissingRecords]:
    """Cases of `new` without all their rounds, then cases of `sessions` that `new` did not plan."""
    baseline_cases = dict.fromkeys(
        name for session in sessions for name, side in session.cases.items() if side.rounds or side.failure
    )
    absent = [
        MissingRecords(case=name, reason=NOT_PLANNED) for name in baseline_cases if name not in new.cases
    ]
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
    missing = {entry.case: entry for digest in (ref, new) for entry in missing_rounds(digest)}
    return [entry for name, entry in missing.items() if name not in failed]


def missing_rounds(new: Digest) -> list[MissingRecords]:
    """Planned cases that neither failed nor have a record of every round."""
    may_lack_rounds = new.settings.isolation is Isolation.SHARED  # pytest may run a selection of tests
    return [
        MissingRecords(case=name, reason=reason)
        for name, side in new.cases.items()
        if not (side.absent or side.failure)
        and (reason := _missing_rounds_reason(side, new.policy, may_lack_rounds))
    ]


def _missing_rounds_reason(side: CaseDigest, policy: Policy, may_lack_rounds: bool) -> str:
    count, planned = len(side.rounds), policy.rounds
    if count == 0:
        return "planned, but without a record"
    if may_lack_rounds:
        return ""
    if not set(range(planned)) <= set(side.rounds):
        return f"records of {count} of {count_of(planned, 'round')}"
    return ""
