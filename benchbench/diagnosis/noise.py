"""Noise of a suite: the variation between processes, the changes it hides, and a suitable threshold. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.judging.comparison import THRESHOLD, CaseComparison, compare_runs
from benchbench.machine.conditions import step_s
from benchbench.model.case import Verdict
from benchbench.model.measurement import Measurement
from benchbench.model.run import Policy, Record, Run, RunInfo
from benchbench.stats import deviation
from benchbench.timing.policy import with_rounds

ORDER = (0, 1, 1, 0)  # side of each of four rounds: a steady drift affects both sides equally
CERTAIN = 2.0  # two processes of one case rarely differ by more than this multiple of the CV
LARGEST = 0.5  # a larger threshold is useless
COVERED = 0.9  # share of cases that the suggested threshold suits: one noisy case must not decide it


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Comparison of a case with itself, in fractions: 0.02 is 2 %. Values are None for the stated `reason`.

    `cv`: coefficient of variation of the medians of all processes. `detectable`: smallest change that a
    comparison of two runs calls slower with 80 % power. `alarm`: this comparison found a change where there
    is none.
    """

    case: str
    processes: int
    cv: float | None
    detectable: float | None
    ratio: float | None
    alarm: bool
    threshold: float | None  # smallest useful threshold for the case
    reason: str


def double_rounds(policy: Policy) -> Policy:
    """Double the rounds of a policy, for two sides."""
    return with_rounds(policy, 2 * policy.rounds)


def split_sides(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Split the rounds of a run into two runs that alternate: A, B, B, A and again."""
    sides: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        sides[ORDER[record.round % len(ORDER)]].append(record)
    return sides


def case_noise(info: RunInfo, records: Sequence[Record]) -> list[Noise]:
    """Noise of every case, by the rules of `compare` and at its default threshold."""
    first, second = (Run(info=info, records=tuple(side)) for side in split_sides(records))
    significant = {
        verdict.case: verdict.mde for verdict in compare_runs(first, second, threshold=0.0).verdicts
    }
    return [
        _noise(verdict, significant[verdict.case], records)
        for verdict in compare_runs(first, second).verdicts
    ]


def _noise(verdict: CaseComparison, significant: float | None, records: Sequence[Record]) -> Noise:
    """Noise of a case. `significant`: the smallest significant change with 80 % power, without a
    threshold.
    """
    outcomes = [record.outcome for record in records if record.case.id == verdict.case]
    medians = [step_s(outcome) for outcome in outcomes if isinstance(outcome, Measurement)]
    logs = [math.log(outcome) for outcome in medians if outcome > 0]
    # The CV of log-normal medians follows from the spread of their logarithms (Aitchison & Brown 1957).
    cv = math.sqrt(math.expm1(deviation(logs) ** 2)) if verdict.mde is not None else None
    return Noise(
        case=verdict.case,
        processes=len(logs),
        cv=cv,
        detectable=verdict.mde,
        ratio=verdict.ratio,
        alarm=verdict.verdict in (Verdict.SLOWER, Verdict.FASTER),
        threshold=case_threshold(cv, significant),
        reason=verdict.reason,
    )


def case_threshold(cv: float | None, significant: float | None) -> float | None:
    """Smallest useful threshold of a case: the smallest significant change, twice the CV,
    compare's default.
    """
    if cv is None or significant is None:
        return None
    return max(THRESHOLD, CERTAIN * cv, significant)


def suggest_threshold(noise: Iterable[Noise]) -> float | None:
    """Smallest whole per cent that suits nine in ten cases, or None if it would be too large."""
    thresholds = sorted(case.threshold for case in noise if case.threshold is not None)
    if not thresholds or thresholds[index := math.ceil(COVERED * len(thresholds)) - 1] > LARGEST:
        return None
    return math.ceil(round(100 * thresholds[index], 6)) / 100
