"""Verdict on a claimed speed-up as a document: verdict, measured speed-up, and compared results."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from benchbench.documents.comparison import comparison_document
from benchbench.documents.document import Cell, Document, Tone
from benchbench.format import count_of, ratio
from benchbench.judging.comparison import MARGIN, Claim, ClaimVerdict

SCHEMA = 1  # of the JSON. 1: first
TONES = {
    ClaimVerdict.CONFIRMED: Tone.GOOD,
    ClaimVerdict.REFUTED: Tone.BAD,
    ClaimVerdict.UNDECIDED: Tone.WARNING,
}
EXIT_CODES = {ClaimVerdict.CONFIRMED: 0, ClaimVerdict.REFUTED: 10, ClaimVerdict.UNDECIDED: 13}


def claim_document(claim: Claim) -> Document:
    """Document whose first lines are the verdict and the agreement of the results."""
    comparison = comparison_document(claim.comparison, claim.comparison.verdicts)
    verdict = claim.verdict
    answer = (
        Cell((f"{verdict}: {_speed_up(claim)}",), TONES[verdict]),
        Cell((_results(claim),), Tone.BAD if claim.agreement.equal is False else Tone.PLAIN),
    )
    return replace(
        comparison,
        name="claim",
        title=f"Claim that {_names(claim)[1]} is {ratio(claim.speedup)} as fast as {_names(claim)[0]}",
        answer=answer,
        notes=(f"confirmed: the whole interval is above the claim, or below it by less than {MARGIN:.0%}",),
        data=_data(claim),
        records=None,
    )


def _names(claim: Claim) -> tuple[str, str]:
    first, second = (run.info.plan[0].workload for run in (claim.comparison.ref, claim.comparison.new))
    return first, second


def _speed_up(claim: Claim) -> str:
    ref, new = _names(claim)
    claimed = f"claimed: {ratio(claim.speedup)}"
    if claim.interval is None:
        return f"the speed-up of {new} is not known ({claim.measured.reason or 'too few values'}); {claimed}"
    speedup, low, high = map(ratio, claim.interval)
    text = f"{new} is {speedup} as fast as {ref} (95 %: {low} to {high}); {claimed}"
    return f"{text}. More heats would narrow the interval: --heats 30" if _needs_heats(claim) else text


def _needs_heats(claim: Claim) -> bool:
    return claim.verdict is ClaimVerdict.UNDECIDED and claim.agreement.equal is True


def _results(claim: Claim) -> str:
    agreement = claim.agreement
    if agreement.equal is None:
        return f"the results could not be compared: {agreement.reason}"
    if not agreement.equal:
        return f"the results differ: {agreement.reason}"
    return f"the results are the same for {count_of(agreement.inputs, 'set')} of inputs: {agreement.reason}"


def _data(claim: Claim) -> dict[str, Any]:
    speedup, low, high = claim.interval or (None, None, None)
    ref, new = _names(claim)
    return {
        "schema": SCHEMA,
        "verdict": claim.verdict,
        "ref": ref,
        "new": new,
        "claimed": claim.speedup,
        "speedup": speedup,
        "low": low,
        "high": high,
        "results": asdict(claim.agreement),
        "runs": [claim.comparison.ref.info.id, claim.comparison.new.info.id],
    }
