"""The second look of a check: flagged cases measured again, on processes of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.comparing.match import ELSEWHERE
from benchbench.gate.match import Held, hold, hold_in_turn
from benchbench.gate.significance import Family, Look, Seen, looks, seen
from benchbench.gate.spread import departure
from benchbench.model.status import Verdict
from benchbench.stats import paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Flagged cases measured again; `ref`: the baseline's code measured in turn with it, by the same ids."""

    new: Digest
    ref: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """What measuring a case again showed, or by what verdict it showed nothing."""

    side: CaseDigest
    look: Look | None = None
    seen: Seen | None = None
    verdict: Verdict | None = None
    reason: str = ""


def second_looks(
    flagged: Sequence[Held], confirmation: Confirmation, family: Family, assumed: float
) -> dict[tuple[str, str], Second]:
    """By case and metric. `family`: of the first looks, which stored sessions are adjusted for."""
    found = {held.key: _again(held, confirmation, assumed) for held in flagged}
    tested = {key: each.seen for key, each in found.items() if each.seen}
    if confirmation.ref:
        adjusted = looks(list(tested.values()), replace(family, size=len(tested), fewest=1))
    else:
        adjusted = looks(list(tested.values()), family)
    looked = dict(zip(tested, adjusted, strict=True))
    return {
        key: Second(
            look=looked.get(key),
            seen=each.seen,
            verdict=each.verdict,
            reason=each.reason,
            side=each.side,
        )
        for key, each in found.items()
    }


def _again(held: Held, confirmation: Confirmation, assumed: float) -> Second:
    none = CaseDigest(absent=ELSEWHERE)
    new = confirmation.new.cases.get(held.case, none)
    if confirmation.ref:
        return _in_turn(
            hold_in_turn(held.case, confirmation.ref.cases.get(held.case, none), new, held.metric)
        )
    if new.failure or new.absent:
        return _nothing(Verdict.BROKEN, new.failure or new.absent, new)
    again = hold(held.case, held.sides, new, held.metric)
    if again.verdict:
        return _nothing(again.verdict, again.reason, new)
    return Second(seen=seen(again, departure(again.sessions, again.logs, assumed).difference), side=new)


def _in_turn(held: Held) -> Second:
    if held.verdict:
        return _nothing(held.verdict, held.reason, held.new)
    return Second(seen=seen(held, paired(held.pairs)), side=held.new)


def _nothing(verdict: Verdict, reason: str, side: CaseDigest) -> Second:
    return Second(verdict=verdict, reason=f"measured again: {reason}", side=side)
