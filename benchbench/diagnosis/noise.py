"""A suite compared with itself: how much processes differ, which changes that hides. Pure.

It suggests the threshold from which changes can be found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchbench.judging.comparison import THRESHOLD, CaseComparison, compare_runs
from benchbench.machine.conditions import step_s
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Policy, Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.stats import deviation
from benchbench.timing.policy import of_rounds

ORDER = (0, 1, 1, 0)  # sides of four rounds: what drifts steadily falls on both alike
CERTAIN = 2.0  # times the CV: two processes of one case rarely differ by more
LARGEST = 0.5  # a threshold beyond says nothing
COVERED = 0.9  # of the cases, by the suggested threshold: one wild case must not set it for all


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A case compared with itself, in fractions: 0.02 is 2 %. None: `reason` says why.

    `cv`: of the medians of all its processes. `detectable`: the smallest change that a comparison of two
    runs calls slower with 80 % power. `alarm`: whether this one found a change where there is none.
    """

    case: str
    processes: int
    cv: float | None
    detectable: float | None
    ratio: float | None
    alarm: bool
    threshold: float | None  # at least this for the case
    reason: str


def doubled(policy: Policy) -> Policy:
    """A policy of as many rounds for each of two sides as this one has for one."""
    return of_rounds(policy, 2 * policy.rounds)


def split_sides(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """The rounds of a run as two runs that alternate: A, B, B, A and again."""
    found: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        found[ORDER[record.round % len(ORDER)]].append(record)
    return found


def against_itself(info: RunInfo, records: Sequence[Record]) -> list[Noise]:
    """The noise of every case, by the rule that `compare` goes by, at its own threshold."""
    one, other = (Run(info=info, records=tuple(side)) for side in split_sides(records))
    significant = {each.case: each.mde for each in compare_runs(one, other, threshold=0.0).verdicts}
    return [
        _noise(verdict, significant[verdict.case], records) for verdict in compare_runs(one, other).verdicts
    ]


def _noise(verdict: CaseComparison, significant: float | None, records: Sequence[Record]) -> Noise:
    """`significant`: the smallest change that is, four times in five, however small it may be."""
    outcomes = [record.outcome for record in records if record.case.id == verdict.case]
    medians = [step_s(each) for each in outcomes if isinstance(each, Measurement)]
    logs = [math.log(each) for each in medians if each > 0]
    # of log-normal medians (Aitchison & Brown 1957): the CV follows from the spread of the logarithms
    cv = math.sqrt(math.expm1(deviation(logs) ** 2)) if verdict.mde is not None else None
    return Noise(
        case=verdict.case,
        processes=len(logs),
        cv=cv,
        detectable=verdict.mde,
        ratio=verdict.ratio,
        alarm=verdict.verdict in (Verdict.SLOWER, Verdict.FASTER),
        threshold=suggested_threshold(cv, significant),
        reason=verdict.reason,
    )


def suggested_threshold(cv: float | None, significant: float | None) -> float | None:
    """The least that is worth asking for: what can be significant, twice the CV, and compare's own."""
    if cv is None or significant is None:
        return None
    return max(THRESHOLD, CERTAIN * cv, significant)


def suggested(found: Iterable[Noise]) -> float | None:
    """The least whole per cent that nine in ten of the cases can live with; None where that is too much."""
    known = sorted(each.threshold for each in found if each.threshold is not None)
    if not known or known[index := math.ceil(COVERED * len(known)) - 1] > LARGEST:
        return None
    return math.ceil(round(100 * known[index], 6)) / 100
