"""GitHub Actions: annotations as workflow commands, and a job summary, each within GitHub's limits.

docs.github.com: 10 annotations of a kind a step; a step's summary at most 1 MiB, else none is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci._outcomes import Outcome, Severity, outcomes
from benchbench.exporters.markdown import escaped
from benchbench.format import interval, visible
from benchbench.model.status import Verdict

ANNOTATIONS = 10  # of a kind
SUMMARY_LIMIT = 2**20  # bytes
TEXT_LIMIT = 1000  # characters of an annotation: enough to see why, and every annotation stays readable
KINDS = ("error", "warning", "notice")


class Github(RunExporter):
    """Regressions and errors are errors, what cannot be judged a warning, what became faster a notice."""

    extension: ClassVar[str] = "md"

    def __init__(self, room: int = SUMMARY_LIMIT) -> None:
        """`room`: bytes left in the step's summary."""
        self._room = room

    def export(self, report: RunReport) -> dict[str, bytes]:
        """The commands, to be printed, and the summary, to be appended to $GITHUB_STEP_SUMMARY."""
        found = outcomes(report)
        return {
            "annotations.txt": "".join(f"{line}\n" for line in _annotations(report, found)).encode(),
            "summary.md": _summary(report, found, self._room),
        }


def _annotations(report: RunReport, found: list[Outcome]) -> Iterator[str]:
    damaged = _damaged(report)
    for kind in KINDS:
        these = [outcome for outcome in found if _kind(outcome) == kind]
        room = ANNOTATIONS - 1 if damaged and kind == "warning" else ANNOTATIONS
        if room < ANNOTATIONS:
            yield _command(kind, "accelbench", damaged)
        shown = these if len(these) <= room else these[: room - 1]
        yield from (_command(kind, f"{o.word}: {o.case}", "\n".join(o.texts)) for o in shown)
        if len(these) > len(shown):
            yield _command(kind, "accelbench", f"{len(these) - len(shown)} more: see the job's summary")


def _kind(outcome: Outcome) -> str:
    if outcome.level in (Severity.FAILURE, Severity.ERROR):
        return "error"
    if outcome.level is Severity.UNDECIDED:
        return "warning"
    return "notice" if outcome.word == Verdict.FASTER else ""


def _damaged(report: RunReport) -> str:
    """What is said of lines that could not be read, if there are any."""
    lines = visible("; ".join(report.run.damaged))
    return f"damaged, not in this report: {lines}" if lines else ""


def _command(kind: str, title: str, text: str) -> str:
    """A workflow command; what would end it, or begin another property, is escaped (actions/toolkit)."""
    title, text = title[:TEXT_LIMIT], (text or title)[:TEXT_LIMIT]
    return f"::{kind} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _summary(report: RunReport, found: list[Outcome], room: int) -> bytes:
    """A table, worst first; rows that find no room are counted."""
    counts = Counter(outcome.word for outcome in found)
    title = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no case"
    head = f"### accelbench: {escaped(title)}\n\nRun {escaped(visible(report.run.info.id))}\n\n"
    if damaged := _damaged(report)[:TEXT_LIMIT]:
        head += f"{escaped(damaged)}\n\n"
    head += "| case | result | latency [95 %] | notes |\n| --- | --- | --- | --- |\n"
    rows = [_row(outcome).encode() for outcome in found]
    last = f"\n… and {len(rows)} more\n".encode()
    kept, used = 0, len(head.encode()) + len(last)
    while kept < len(rows) and used + len(rows[kept]) <= room:
        used += len(rows[kept])
        kept += 1
    tail = f"\n… and {len(rows) - kept} more\n" if kept < len(rows) else "\n"
    text = head.encode() + b"".join(rows[:kept]) + tail.encode()
    return text if len(text) <= room else b""


def _row(outcome: Outcome) -> str:
    found = outcome.row.metric("latency_s") if outcome.row else None
    latency = interval(found.low, found.value, found.high) if found and found.value is not None else ""
    cells = (outcome.case, outcome.word, latency, "; ".join(outcome.texts))
    return f"| {' | '.join(escaped(cell) for cell in cells)} |\n"
