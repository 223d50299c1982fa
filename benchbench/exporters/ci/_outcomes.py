"""Cases of a report as tests that passed, failed, or are undecided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from benchbench.analyse.rows import MEASURED_STATUSES, UNTRUSTED_STATUSES, Row
from benchbench.documents.run import CaseVerdict, RunReport
from benchbench.format import visible
from benchbench.model.case import Status, Verdict


class Severity(IntEnum):
    """Severity, worst first."""

    FAILURE = 0  # a regression or a wrong result
    ERROR = 1  # no result
    UNDECIDED = 2  # neither a regression nor the absence of one was shown
    SKIPPED = 3
    PASSED = 4


LEFT_OUT = (Status.UNAVAILABLE, Status.UNSUPPORTED, Status.SKIPPED)
LEVELS = {
    Verdict.SLOWER: Severity.FAILURE,
    Verdict.BROKEN: Severity.ERROR,
    Verdict.PROVISIONAL: Severity.UNDECIDED,
    Verdict.INCONCLUSIVE: Severity.UNDECIDED,
    Verdict.INSUFFICIENT: Severity.UNDECIDED,
    Verdict.INCOMPARABLE: Severity.UNDECIDED,
    Verdict.GONE: Severity.UNDECIDED,
}  # other verdicts pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a case; `row` is None if the run did not plan it. All texts except the row's are safe to
    show.
    """

    case: str
    suite: str
    level: Severity
    word: str  # the worst status or verdict: `slower`, `out_of_memory`, `ok`
    texts: tuple[str, ...]
    row: Row | None
    judged: tuple[CaseVerdict, ...]


def outcomes(report: RunReport) -> list[Outcome]:
    """Outcomes of all cases of the run, and of cases with only a verdict; worst first."""
    judged: dict[str, list[CaseVerdict]] = {}
    for verdict in report.verdicts:
        judged.setdefault(verdict.case, []).append(verdict)
    results = [_outcome(row.case.id, row, judged.get(row.case.id, [])) for row in report.rows]
    case_ids = {row.case.id for row in report.rows}
    results += [_outcome(case, None, verdicts) for case, verdicts in judged.items() if case not in case_ids]
    return sorted(results, key=_rank)


def _rank(outcome: Outcome) -> tuple[Severity, float]:
    """Sort key: the largest regression first, then the planned order."""
    if outcome.level is not Severity.FAILURE:
        return outcome.level, 0.0
    ratios = [
        verdict.ratio for verdict in outcome.judged if verdict.verdict is Verdict.SLOWER and verdict.ratio
    ]
    return outcome.level, -max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def _outcome(case: str, row: Row | None, judged: list[CaseVerdict]) -> Outcome:
    levels = [(_level(row.status), str(row.status))] if row else []
    levels += [(LEVELS.get(item.verdict, Severity.PASSED), str(item.verdict)) for item in judged]
    level = min(item for item, _ in levels)
    words = [word for item, word in levels if item is level]
    message = visible(_doubt(row)) if row else ""
    is_repeated = any(message in item.text for item in judged)
    row_texts = (
        (message if row.ok else f"{row.status}: {message}",) if row and message and not is_repeated else ()
    )
    verdicts = tuple(item.text for item in judged)
    return Outcome(
        case=visible(case),
        suite=visible(row.case.suite) if row else "",
        level=level,
        word=words[-1] if level is Severity.PASSED else words[0],
        texts=(*verdicts, *row_texts) if row and row.ok else (*row_texts, *verdicts),
        row=row,
        judged=tuple(judged),
    )


def _doubt(row: Row) -> str:
    """Reason for a missing latency, or a doubt about it."""
    latency = row.metric("latency_s")
    missing_reason = latency.reason if row.ok and latency.value is None else ""
    return row.message or missing_reason or (f"contended: {row.contended}" if row.contended else "")


def _level(status: Status) -> Severity:
    if status in MEASURED_STATUSES:
        return Severity.PASSED
    if status in LEFT_OUT:
        return Severity.SKIPPED
    return Severity.FAILURE if status in UNTRUSTED_STATUSES else Severity.ERROR
