"""The overview at the top of a report page: the fastest of each work, and the outcomes of all cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchbench.analyse.rows import Row
from benchbench.documents.answers import answer
from benchbench.documents.document import Cell, Mark, Number, Part, Spread, Table, Tone, table
from benchbench.documents.run_table import Work, latency_s, why_no_speed
from benchbench.judging.ranking import Rival, Standing
from benchbench.model.status import Status

FASTEST = "Fastest per work"
COVERAGE = "Results per backend and device"
RULER = "times as long as the fastest"
STATUS_TONES = {Status.OK: Tone.GOOD, Status.UNSUPPORTED: Tone.PLAIN, Status.SKIPPED: Tone.PLAIN}


def overview(works: Sequence[Work], rows: Sequence[Row]) -> tuple[Table, ...]:
    """Tables of the fastest alternative of each work, and of the outcomes for each target and device."""
    compared = [work for work in works if work.verdict.compared_rivals]
    fastest = [table([_fastest_row(work) for work in compared], title=FASTEST)] if compared else []
    return (*fastest, _coverage_table(rows))


def _fastest_row(work: Work) -> dict[str, Cell]:
    verdict = work.verdict
    labels = dict(zip((row.case.id for row in work.rows), work.names, strict=True))
    assert verdict.fastest
    first = verdict.fastest.case
    fastest = Mark(label=labels[first.id], backend=first.backend, value=1.0, is_undecided=not verdict.winner)
    marks = [fastest, *(_rival_mark(rival, labels[rival.contender.case.id]) for rival in verdict.rivals)]
    is_tied = verdict.standing is Standing.TIED
    ratios = [part for mark in marks for part in _ratio_parts(mark, sure=is_tied or not mark.is_undecided)]
    return {
        "work": Cell((work.title,)),
        "answer": answer(verdict),
        RULER: Cell((Spread(tuple(marks), "×"),)),
        "ratios": Cell(tuple(ratios[1:])),
    }


def _ratio_parts(mark: Mark, *, sure: bool) -> list[Part]:
    """Parts for a separator, a name and its ratio: `· jax jit 1.31× ?`."""
    assert mark.value is not None
    return ["·", mark.label, Number(mark.value, "×"), *([] if sure else ["?"])]


def _rival_mark(rival: Rival, label: str) -> Mark:
    low, high = rival.interval or (None, None)
    backend = rival.contender.case.backend
    return Mark(
        label=label, backend=backend, value=rival.ratio, low=low, high=high, is_undecided=not rival.is_slower
    )


def _coverage_table(rows: Sequence[Row]) -> Table:
    """Table of case counts by status for each target and device, with the reasons for missing speeds."""
    places = dict.fromkeys((row.case.target, row.case.device) for row in rows)
    statuses = [status for status in Status if any(row.status is status for row in rows)]
    lines: list[dict[str, Cell]] = []
    for target, device in places:
        place_rows = [row for row in rows if (row.case.target, row.case.device) == (target, device)]
        counts = Counter(row.status for row in place_rows)
        reasons = Counter(why_no_speed(row) for row in place_rows if latency_s(row) is None)
        reasons_text = [
            text if count == 1 else f"{text} ({count} cases)" for text, count in reasons.most_common()
        ]
        lines.append(
            {"backend": Cell((target,)), "device": Cell((device,))}
            | {
                str(status): _count_cell(counts[status], STATUS_TONES.get(status, Tone.BAD))
                for status in statuses
            }
            | {"reasons for missing results": Cell(("; ".join(reasons_text),)) if reasons_text else Cell()}
        )
    return table(lines, title=COVERAGE)


def _count_cell(count: int, tone: Tone) -> Cell:
    return Cell((Number(count),), tone) if count else Cell()
