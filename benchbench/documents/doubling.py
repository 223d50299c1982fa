"""What sequences of doubled sizes come to: where throughput stops rising, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.analyse.rows import Row
from benchbench.documents import document
from benchbench.documents.document import Content, Table, number
from benchbench.model.status import Status
from benchbench.plan.doubling import sequence, swept_size

NEARLY = 0.95  # of the highest throughput: the knee is the smallest size that reaches it
RATE = "items_per_s"


def is_needless(row: Row) -> bool:
    """Whether it is the end of a sequence or comes after it, of which the table of sequences tells."""
    return bool(row.case.doubles) and row.status in (Status.SKIPPED, Status.OUT_OF_MEMORY)


def doubling_tables(rows: Sequence[Row]) -> tuple[Table, ...]:
    """A line per sequence; no table where there is none."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.case.doubles:
            found.setdefault(sequence(row.case), []).append(row)
    lines = [_line(sorted(own, key=lambda row: swept_size(row.case))) for own in found.values()]
    return (document.table(lines, title="Doubled sizes"),) if lines else ()


def _line(rows: Sequence[Row]) -> dict[str, Content]:
    """`rows`: of one sequence, the smallest first."""
    case = rows[0].case
    measured = [row for row in rows if row.value(RATE) is not None]
    best = max(measured, key=_rate, default=None)
    knee = next((row for row in measured if best and _rate(row) >= NEARLY * _rate(best)), None)
    ended = next((row for row in rows if not row.ok), None)
    where = f"{case.workload}/{case.dtype} on {case.target} {case.mode}, {case.device}"
    return {
        "work": where,
        "knee": _named(knee) + (" or less" if knee is rows[0] and swept_size(case) != 1 else ""),
        "rate there": number(_rate(knee), f"{knee.item}/s") if knee else None,
        "highest rate": _interval(best),
        "at": _named(best),
        "fits": f"{_named(measured[-1])}{'' if _is_full(ended) else ' or more'}" if measured else "nothing",
        "ended": ended.message if ended else "the last one planned",
    }


def _rate(row: Row) -> float:
    return row.value(RATE) or 0.0


def _interval(row: Row | None) -> Content:
    if row is None:
        return None
    rate = row.metric(RATE)
    return number(rate.value, f"{row.item}/s", rate.low, rate.high)


def _named(row: Row | None) -> str:
    return f"{row.case.doubles}={swept_size(row.case)}" if row else ""


def _is_full(row: Row | None) -> bool:
    return row is not None and row.status is Status.OUT_OF_MEMORY
