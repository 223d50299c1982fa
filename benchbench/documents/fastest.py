"""The question a run answers: who is fastest, in how many works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchbench.analyse.rows import Row
from benchbench.documents.document import Cell
from benchbench.documents.run_columns import latency_s, told_apart
from benchbench.documents.run_works import Work

KINDS = ("target", "mode", "device")  # the first of which a run has several of is what is compared


def fastest_lines(works: Sequence[Work]) -> list[Cell]:
    """`torch is fastest in 3 of 6, jax in 2; 1 undecided`; nothing where nothing is compared."""
    kind = next((kind for kind in KINDS if any(len(_names(work, kind)) > 1 for work in works)), None)
    compared = [work for work in works if kind and len(_names(work, kind)) > 1]
    if kind is None:
        return []
    told = Counter(winner for work in compared if (winner := _winner(work, kind)))
    open_ = len(compared) - told.total()
    parts = [f"{name} in {count}" for name, count in told.most_common()]
    if parts:
        parts[0] = parts[0].replace(" in ", " is fastest in ", 1) + f" of {len(compared)}"
    line = ", ".join(parts)
    if not parts:
        where = f" in any of {len(compared)}" if len(compared) > 1 else ""
        return [Cell((f"cannot tell which is fastest{where}",))]
    return [Cell((f"{line}; {open_} undecided" if open_ else line,))]


def _names(work: Work, kind: str) -> set[str]:
    return {getattr(row.case, kind) for row in work.rows if latency_s(row)}


def _winner(work: Work, kind: str) -> str:
    """Empty where another one may be as fast, be it that its processes disagree."""
    fastest = work.fastest
    assert fastest
    if any(row.ok and latency_s(row) is None for row in work.rows):
        return ""
    name: str = getattr(fastest.case, kind)
    return name if all(_slower(row, fastest, kind) for row in work.rows if latency_s(row)) else ""


def _slower(row: Row, fastest: Row, kind: str) -> bool:
    return getattr(row.case, kind) == getattr(fastest.case, kind) or told_apart(row, fastest)
