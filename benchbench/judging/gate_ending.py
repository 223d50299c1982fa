"""Endings of a check, most serious first, and its exit code. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from benchbench.judging.check import CaseFinding, GateResult, MissingRecords
from benchbench.model.case import Verdict
from benchbench.model.options import Inconclusive

Cause = CaseFinding | MissingRecords


class Ending(Enum):
    """Reason why a check does not pass, in the order of the report; the value is its name in JSON."""

    NOTHING_TESTED = "nothing_tested"
    INCOMPLETE = "incomplete"
    REGRESSED = "regressed"
    FAILED = "failed"
    NOT_COMPARABLE = "not_comparable"
    PROVISIONAL = "provisional"
    INCONCLUSIVE = "inconclusive"

    @property
    def code(self) -> int:
        """Exit code of a process with this ending (docs/checking.md)."""
        return EXIT_CODES[self]


EXIT_CODES: Mapping[Ending, int] = {
    Ending.REGRESSED: 10,
    Ending.FAILED: 4,
    Ending.NOTHING_TESTED: 11,
    Ending.INCOMPLETE: 11,
    Ending.NOT_COMPARABLE: 11,
    Ending.PROVISIONAL: 12,
    Ending.INCONCLUSIVE: 13,
}  # most serious first
REPORT_ONLY = (Ending.REGRESSED, Ending.PROVISIONAL, Ending.INCONCLUSIVE)  # with --exit-zero
DECIDED = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER)
VERDICTS = {
    Ending.REGRESSED: (Verdict.SLOWER,),
    Ending.FAILED: (Verdict.BROKEN,),
    Ending.NOT_COMPARABLE: (Verdict.INCOMPARABLE,),
    Ending.PROVISIONAL: (Verdict.PROVISIONAL,),
    Ending.INCONCLUSIVE: (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT),
}


def endings(result: GateResult) -> dict[Ending, list[Cause]]:
    """Endings of the check with their causes, in the order of the report; empty if every case was decided.

    A set-up that is broken, incomplete or without anything to compare is neither a regression nor a pass. A
    case measured on both sides counts as compared, even if it was too noisy to be tested.
    """
    causes: dict[Ending, list[Cause]] = {Ending.NOTHING_TESTED: [], Ending.INCOMPLETE: [*result.missing]}
    for ending, verdicts in VERDICTS.items():
        causes[ending] = [
            finding for finding in (*result.together, *result.findings) if finding.verdict in verdicts
        ]
    causes[Ending.NOT_COMPARABLE] += [finding for finding in result.findings if finding.lost]
    is_compared = result.tested or any(finding.seen for finding in result.findings)
    empty_endings = set() if is_compared else {Ending.NOTHING_TESTED}
    return {ending: causes[ending] for ending in Ending if causes[ending] or ending in empty_endings}


def exit_code(
    result: GateResult, *, inconclusive: Inconclusive | None = None, exit_zero: bool = False
) -> int:
    """Exit code for the most serious ending. `exit_zero`: no result of a comparison fails the check."""
    ignored: Sequence[Ending] = ()
    if exit_zero:
        ignored = REPORT_ONLY
    elif not fails_undecided(result, inconclusive):
        ignored = (Ending.INCONCLUSIVE,)
    present = endings(result)
    return next(
        (code for ending, code in EXIT_CODES.items() if ending in present and ending not in ignored), 0
    )


def fails_undecided(result: GateResult, inconclusive: Inconclusive | None) -> bool:
    """True if undecided cases fail the check: by default, if no case was decided."""
    if inconclusive is None:
        return decided_count(result.findings) == 0
    return inconclusive is Inconclusive.FAIL


def decided_count(findings: Sequence[CaseFinding]) -> int:
    """Number of cases that the tests decided."""
    return sum(finding.verdict in DECIDED for finding in findings)
