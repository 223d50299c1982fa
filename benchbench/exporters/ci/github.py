"""GitHub Actions: annotations as workflow commands, and a job summary, within GitHub's limits.

docs.github.com: 10 annotations of each kind per step; a summary beyond 1 MiB is not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci._outcomes import Outcome, Severity, outcomes
from benchbench.exporters.markdown import escape
from benchbench.format import interval, visible
from benchbench.model.case import Verdict

ANNOTATIONS = 10  # per kind
SUMMARY_LIMIT = 2**20  # bytes
TEXT_LIMIT = 1000  # characters of an annotation
KINDS = ("error", "warning", "notice")


class Github(RunExporter):
    """Regressions and errors become errors, undecided cases warnings, faster cases notices."""

    extension: ClassVar[str] = "md"

    def __init__(self, room: int = SUMMARY_LIMIT) -> None:
        """Set `room`, the bytes left in the step's summary."""
        self._room = room

    def export(self, report: RunReport) -> dict[str, bytes]:
        """Annotations, to be printed, and the summary, to be appended to $GITHUB_STEP_SUMMARY."""
        results = outcomes(report)
        return {
            "annotations.txt": "".join(f"{line}\n" for line in _annotations(report, results)).encode(),
            "summary.md": _summary(report, results, self._room),
        }


def _annotations(report: RunReport, results: list[Outcome]) -> Iterator[str]:
    damaged = _damaged(report)
    for kind in KINDS:
        of_kind = [outcome for outcome in results if _kind(outcome) == kind]
        room = ANNOTATIONS - 1 if damaged and kind == "warning" else ANNOTATIONS
        if room < ANNOTATIONS:
            yield _command(kind, "accelbench", damaged)
        listed = of_kind if len(of_kind) <= room else of_kind[: room - 1]
        yield from (_command(kind, f"{o.word}: {o.case}", "\n".join(o.texts)) for o in listed)
        if len(of_kind) > len(listed):
            yield _command(kind, "accelbench", f"{len(of_kind) - len(listed)} more: see the job's summary")


def _kind(outcome: Outcome) -> str:
    if outcome.level in (Severity.FAILURE, Severity.ERROR):
        return "error"
    if outcome.level is Severity.UNDECIDED:
        return "warning"
    return "notice" if outcome.word == Verdict.FASTER else ""


def _damaged(report: RunReport) -> str:
    """Sentence about unreadable lines, if there are any."""
    lines = visible("; ".join(report.run.damaged))
    return f"damaged, not in this report: {lines}" if lines else ""


def _command(kind: str, title: str, text: str) -> str:
    """Workflow command, with its special characters escaped (actions/toolkit)."""
    title, text = title[:TEXT_LIMIT], (text or title)[:TEXT_LIMIT]
    return f"::{kind} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _summary(report: RunReport, results: list[Outcome], room: int) -> bytes:
    """Table of outcomes, worst first, and the number of rows without room."""
    counts = Counter(outcome.word for outcome in results)
    title = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no case"
    head = f"### accelbench: {escape(title)}\n\nRun {escape(visible(report.run.info.id))}\n\n"
    if damaged := _damaged(report)[:TEXT_LIMIT]:
        head += f"{escape(damaged)}\n\n"
    head += "| case | result | latency [95 %] | notes |\n| --- | --- | --- | --- |\n"
    rows = [_row(outcome).encode() for outcome in results]
    last = f"\n… and {len(rows)} more\n".encode()
    row_count, used = 0, len(head.encode()) + len(last)
    while row_count < len(rows) and used + len(rows[row_count]) <= room:
        used += len(rows[row_count])
        row_count += 1
    tail = f"\n… and {len(rows) - row_count} more\n" if row_count < len(rows) else "\n"
    text = head.encode() + b"".join(rows[:row_count]) + tail.encode()
    return text if len(text) <= room else b""


def _row(outcome: Outcome) -> str:
    estimate = outcome.row.metric("latency_s") if outcome.row else None
    latency = (
        interval(estimate.low, estimate.value, estimate.high)
        if estimate and estimate.value is not None
        else ""
    )
    cells = (outcome.case, outcome.word, latency, "; ".join(outcome.texts))
    return f"| {' | '.join(escape(cell) for cell in cells)} |\n"
