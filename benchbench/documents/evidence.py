"""What a verdict stands on: the change, the values, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchbench.analyse.digest import SETTLED
from benchbench.documents.document import Cell, Column, Content, Number, Part, Tone, number
from benchbench.format import significant
from benchbench.judging.comparison import CaseComparison, CommonFactor
from benchbench.judging.significance import TestResult
from benchbench.model.status import Verdict

COLUMNS = (
    Column("ratio [95 %]", line=1),
    Column("ref → new", line=1),
    Column("p", line=1, label="p"),
    Column("MDE", line=1, label="MDE"),
)
TONES = {
    Verdict.SLOWER: Tone.BAD,
    Verdict.BROKEN: Tone.BAD,
    Verdict.FASTER: Tone.GOOD,
    Verdict.INCONCLUSIVE: Tone.WARNING,
    Verdict.INSUFFICIENT: Tone.WARNING,
    Verdict.INCOMPARABLE: Tone.WARNING,
    Verdict.GONE: Tone.WARNING,
}  # every other: plain


def verdict_cell(verdict: Verdict) -> Cell:
    """Its word, and how it is to be taken."""
    return Cell((str(verdict),), TONES.get(verdict, Tone.PLAIN))


def evidence(found: CaseComparison | TestResult, unit: str, verdict: Verdict) -> dict[str, Content]:
    """The cells of `COLUMNS`, each empty where it is not known; values are in `unit`.

    A ratio that is no ground for a verdict has a `?`.
    """
    known = found.ref is not None or found.new is not None
    ratio = number(found.ratio, "×", found.low, found.high)
    return {
        "ratio [95 %]": replace(ratio, unsure=verdict is Verdict.INSUFFICIENT and bool(ratio.parts)),
        "ref → new": Cell((_value(found.ref, unit), "→", _value(found.new, unit))) if known else None,
        "p": number(found.p_holm, "p"),
        "MDE": number(found.mde, "%"),
    }


def _value(value: float | None, unit: str) -> Part:
    return "–" if value is None else Number(value, unit)


def moved_alike(found: CommonFactor | None) -> list[str]:
    """A line where nearly every case moved the same way."""
    if found is None:
        return []
    moved = (
        f"{found.moving} of {found.cases} cases moved the same way, {significant(found.ratio)}× in the median"
    )
    return [f"{moved}: probably the machine, not the code; measure interleaved (--ab)"]


def imprecise(stopped_by: Sequence[str], metric: str) -> str:
    """A note where sampling ended for another reason than its precision, and it matters to the metric."""
    stops = [stop for stop in stopped_by if stop != "precision"]
    return (
        f"less precise than asked (stopped by {' and '.join(stops)})" if stops and metric in SETTLED else ""
    )
