"""Verdict on a claimed speed-up, from the ratio of two functions and the agreement of their results. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from benchbench.errors import UsageError
from benchbench.judging.comparison import CaseComparison, Comparison
from benchbench.model.function import Agreement

MARGIN = 0.05  # a speed-up that misses the claim by less is confirmed: code alignment alone makes 3 %


class ClaimVerdict(StrEnum):
    """Verdict on a claimed speed-up."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that `new` of the comparison is `speedup` times as fast as `ref`, and the evidence."""

    speedup: float
    agreement: Agreement
    comparison: Comparison

    @property
    def measured(self) -> CaseComparison:
        """Comparison of the two functions."""
        (case,) = self.comparison.verdicts
        return case

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """(speed-up, low, high) with its 95 % interval; None without two processes of each function."""
        ratio, low, high = self.measured.ratio, self.measured.low, self.measured.high
        return (1 / ratio, 1 / high, 1 / low) if ratio and low and high else None

    @property
    def verdict(self) -> ClaimVerdict:
        """The verdict: a claim needs equal results and a speed-up that is at least the claimed one."""
        if self.agreement.equal is False:
            return ClaimVerdict.REFUTED
        if self.interval is None:
            return ClaimVerdict.UNDECIDED
        _, low, high = self.interval
        if low * (1 + MARGIN) >= self.speedup:
            return ClaimVerdict.CONFIRMED if self.agreement.equal else ClaimVerdict.UNDECIDED
        return ClaimVerdict.REFUTED if high < self.speedup else ClaimVerdict.UNDECIDED


def claimed_speedup(text: float | str) -> float:
    """The number of a claim: `2`, `2x`, `1.5×`. Raises UsageError."""
    if isinstance(text, str):
        match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) *[x×]?", text.strip(), re.ASCII)
        text = float(match[1]) if match else math.nan
    if not 0 < text < math.inf:
        raise UsageError("The claim is not a speed-up.", "Write --claim 2x for twice as fast.")
    return float(text)
