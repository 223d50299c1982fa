"""The endings of a check, gravest first, and its exit code. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from benchbench.judging.check import CaseFinding, GateResult
from benchbench.judging.missing import MissingRecords
from benchbench.model.options import Inconclusive
from benchbench.model.status import Verdict

Cause = CaseFinding | MissingRecords


class Ending(Enum):
    """What keeps a check from passing, in the order told; the value is its name in JSON."""

    NOTHING_TESTED = "nothing_tested"
    INCOMPLETE = "incomplete"
    REGRESSED = "regressed"
    FAILED = "failed"
    NOT_COMPARABLE = "not_comparable"
    PROVISIONAL = "provisional"
    INCONCLUSIVE = "inconclusive"

    @property
    def code(self) -> int:
        """The exit code of a process that ends so (docs/checking.md)."""
        return CODES[self]


CODES: Mapping[Ending, int] = {
    Ending.REGRESSED: 10,
    Ending.FAILED: 4,
    Ending.NOTHING_TESTED: 11,
    Ending.INCOMPLETE: 11,
    Ending.NOT_COMPARABLE: 11,
    Ending.PROVISIONAL: 12,
    Ending.INCONCLUSIVE: 13,
}  # the gravest first
TOLD_ONLY = (Ending.REGRESSED, Ending.PROVISIONAL, Ending.INCONCLUSIVE)  # by --exit-zero
JUDGED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)
VERDICTS = {
    Ending.REGRESSED: (Verdict.SLOWER,),
    Ending.FAILED: (Verdict.BROKEN,),
    Ending.NOT_COMPARABLE: (Verdict.INCOMPARABLE,),
    Ending.PROVISIONAL: (Verdict.PROVISIONAL,),
    Ending.INCONCLUSIVE: (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT),
}


def endings(result: GateResult) -> dict[Ending, list[Cause]]:
    """The endings of the check, in the order told, with their causes; empty where every case was judged.

    A set-up that is broken, incomplete or without anything to compare with is never a regression, and never
    a pass. A case that both sides measured is compared, even if it was too noisy to be tested.
    """
    causes: dict[Ending, list[Cause]] = {Ending.NOTHING_TESTED: [], Ending.INCOMPLETE: [*result.missing]}
    for ending, verdicts in VERDICTS.items():
        causes[ending] = [each for each in (*result.together, *result.findings) if each.verdict in verdicts]
    causes[Ending.NOT_COMPARABLE] += [each for each in result.findings if each.lost]
    compared = result.tested or any(finding.seen for finding in result.findings)
    nothing = set() if compared else {Ending.NOTHING_TESTED}
    return {ending: causes[ending] for ending in Ending if causes[ending] or ending in nothing}


def exit_code(
    result: GateResult, *, inconclusive: Inconclusive | None = None, exit_zero: bool = False
) -> int:
    """The exit code of the process, by the gravest ending. `exit_zero`: no comparison fails the check."""
    ignored: Sequence[Ending] = ()
    if exit_zero:
        ignored = TOLD_ONLY
    elif not fails_undecided(result, inconclusive):
        ignored = (Ending.INCONCLUSIVE,)
    present = endings(result)
    return next((code for ending, code in CODES.items() if ending in present and ending not in ignored), 0)


def fails_undecided(result: GateResult, inconclusive: Inconclusive | None) -> bool:
    """Whether undecided cases fail the check: by default, if no case was decided."""
    if inconclusive is None:
        return judged(result.findings) == 0
    return inconclusive is Inconclusive.FAIL


def judged(findings: Sequence[CaseFinding]) -> int:
    """Number of cases that the test decided."""
    return sum(each.verdict in JUDGED for each in findings)
