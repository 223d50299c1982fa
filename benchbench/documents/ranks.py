"""What the ranks of a case were like beside each other: which was slowest, and how far apart they began."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.analyse.rows import Row, by_case, case_key
from benchbench.documents import document
from benchbench.documents.document import Content, Table, number
from benchbench.model.measurement import Measurement, RankSamples
from benchbench.model.note import NoteKind
from benchbench.model.placement import Strategy
from benchbench.model.record import Record
from benchbench.stats import median


def rank_tables(rows: Sequence[Row], records: Sequence[Record]) -> tuple[Table, ...]:
    """A line for each case that several processes computed, of its first measured round; else no table."""
    recorded, lines = by_case(records), []
    for row in rows:
        outcomes = [record.outcome for record in recorded.get(case_key(row.case), [])]
        first = next((each for each in outcomes if isinstance(each, Measurement) and each.ranks), None)
        if row.ok and first:
            lines.append(_line(row, first))
    return (document.table(document.without_empty(lines), title="Ranks"),) if lines else ()


def _line(row: Row, measured: Measurement) -> dict[str, Content]:
    strategy = row.case.placement.strategy
    steps = [median(rank.block_s) / measured.iterations for rank in measured.ranks]
    return {
        "case": row.case.id.partition("[")[0],
        "strategy": None if strategy is Strategy.COLLECTIVE else str(strategy),
        "ranks": str(len(steps)),
        "slowest": str(steps.index(max(steps))),
        "its step": number(max(steps), "s"),
        "spread": number(row.value("rank_spread"), "×"),
        "entry skew": number(row.value("entry_skew_s"), "s"),
        "communication": number(row.communication.value, "%"),
        "bubble": number(_bubble(row), "%"),
        "idle": number(row.idle.value, "%"),
        "memory": number(_largest_peak(measured.ranks), "B"),
    }


def _bubble(row: Row) -> float | None:
    """Of a pipeline whose stages take equally long; of what is measured idle it is a part."""
    shares = [float(each.data["share"]) for each in row.notes if each.kind is NoteKind.PIPELINE]
    return shares[0] if shares else None


def _largest_peak(ranks: Sequence[RankSamples]) -> int | None:
    peaks = [rank.peak_host.bytes for rank in ranks if rank.peak_host.bytes is not None]
    return max(peaks, default=None)
