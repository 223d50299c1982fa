"""Each case of a report as a test that passed, failed, or could not be judged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from benchbench.analyse.rows import MEASURED, NO_SPEED, Row
from benchbench.documents.run import CaseVerdict, RunReport
from benchbench.format import visible
from benchbench.model.status import Status, Verdict


class Severity(IntEnum):
    """Worst first."""

    FAILURE = 0  # a regression, or a result that is wrong
    ERROR = 1  # no result
    UNDECIDED = 2  # not shown to be worse, nor not to be
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
}  # every other: passed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A case; `row` is None where the run did not plan it. All text but the row's is safe to show."""

    case: str
    suite: str
    level: Severity
    word: str  # `slower`, `out_of_memory`, `ok`: the worst said of it
    texts: tuple[str, ...]
    row: Row | None
    judged: tuple[CaseVerdict, ...]


def outcomes(report: RunReport) -> list[Outcome]:
    """Every case of the run, and those that were only judged; worst first."""
    judged: dict[str, list[CaseVerdict]] = {}
    for each in report.verdicts:
        judged.setdefault(each.case, []).append(each)
    found = [_outcome(row.case.id, row, judged.get(row.case.id, [])) for row in report.rows]
    known = {row.case.id for row in report.rows}
    found += [_outcome(case, None, said) for case, said in judged.items() if case not in known]
    return sorted(found, key=_rank)


def _rank(outcome: Outcome) -> tuple[Severity, float]:
    """The place of an outcome: the largest regression first; else in the order planned."""
    if outcome.level is not Severity.FAILURE:
        return outcome.level, 0.0
    ratios = [each.ratio for each in outcome.judged if each.verdict is Verdict.SLOWER and each.ratio]
    return outcome.level, -max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def _outcome(case: str, row: Row | None, judged: list[CaseVerdict]) -> Outcome:
    said = [(_level(row.status), str(row.status))] if row else []
    said += [(LEVELS.get(each.verdict, Severity.PASSED), str(each.verdict)) for each in judged]
    level = min(each for each, _ in said)
    words = [word for each, word in said if each is level]
    message = visible(_doubt(row)) if row else ""
    told = any(message in each.text for each in judged)
    own = (message if row.ok else f"{row.status}: {message}",) if row and message and not told else ()
    verdicts = tuple(each.text for each in judged)
    return Outcome(
        case=visible(case),
        suite=visible(row.case.suite) if row else "",
        level=level,
        word=words[-1] if level is Severity.PASSED else words[0],
        texts=(*verdicts, *own) if row and row.ok else (*own, *verdicts),
        row=row,
        judged=tuple(judged),
    )


def _doubt(row: Row) -> str:
    """Why it has no latency, or what makes it doubtful."""
    latency = row.metric("latency_s")
    without = latency.reason if row.ok and latency.value is None else ""
    return row.message or without or (f"contended: {row.contended}" if row.contended else "")


def _level(status: Status) -> Severity:
    if status in MEASURED:
        return Severity.PASSED
    if status in LEFT_OUT:
        return Severity.SKIPPED
    return Severity.FAILURE if status in NO_SPEED else Severity.ERROR
