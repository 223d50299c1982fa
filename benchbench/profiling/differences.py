"""Compare two profiles of a step by operator. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.errors import UsageError
from benchbench.profiling.tables import Kind, OperatorRow, OperatorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """Part of the difference of two steps that an operator, or a kind of operators, causes."""

    name: str
    kind: str
    ref_s: float | None  # None: absent
    new_s: float | None
    change_s: float
    share: float | None  # of the whole difference; None if that is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDifference:
    """Difference of two profiles: changes, largest first, and the share that operators explain."""

    ref: OperatorTable
    new: OperatorTable
    change_s: float
    idle_change_s: float
    explained: float | None
    changes: tuple[OperatorChange, ...]


def pairs(
    ref: Sequence[OperatorTable], new: Sequence[OperatorTable]
) -> list[tuple[OperatorTable, OperatorTable]]:
    """Pair profiles of the same case; two single profiles of different cases are a pair, too. Raises
    UsageError.
    """
    after = {table.case: table for table in new}
    matches = [(table, after[table.case]) for table in ref if table.case in after]
    if not matches and len(ref) == len(new) == 1:
        return [(ref[0], new[0])]
    if not matches:
        raise UsageError("No case was profiled in both runs.", "Choose one case of each run with --case.")
    return matches


def difference(ref: OperatorTable, new: OperatorTable) -> ProfileDifference:
    """Difference of two steps by operator; together with the idle time it is complete."""
    total = new.step_s - ref.step_s
    before, after = ({row.name: row for row in side.rows} for side in (ref, new))
    changes = [_change(name, before[name], after[name], total) for name in before.keys() & after.keys()]
    for kind in Kind:
        removed = [row for row in ref.rows if row.kind is kind and row.name not in after]
        added = [row for row in new.rows if row.kind is kind and row.name not in before]
        changes += _unmatched(kind, removed, added, total)
    changes.sort(key=lambda change: (-abs(change.change_s), change.name))
    return ProfileDifference(
        ref=ref,
        new=new,
        change_s=total,
        idle_change_s=new.idle_s - ref.idle_s,
        explained=_share(sum(change.change_s for change in changes), total),
        changes=tuple(changes),
    )


def _change(name: str, ref: OperatorRow | None, new: OperatorRow | None, total: float) -> OperatorChange:
    row = new or ref
    assert row is not None
    change = (new.self_s if new else 0.0) - (ref.self_s if ref else 0.0)
    return OperatorChange(
        name=name,
        kind=row.kind,
        ref_s=ref.self_s if ref else None,
        new_s=new.self_s if new else None,
        change_s=change,
        share=_share(change, total),
    )


def _unmatched(
    kind: Kind, removed: Sequence[OperatorRow], added: Sequence[OperatorRow], total: float
) -> list[OperatorChange]:
    """Changes for operators of one kind that only one side has, combined if both sides have some."""
    if not (removed and added):
        return [_change(row.name, row, None, total) for row in removed] + [
            _change(row.name, None, row, total) for row in added
        ]
    ref_s, new_s = (sum(row.self_s for row in rows) for rows in (removed, added))
    return [
        OperatorChange(
            name=f"{_names(removed)} → {_names(added)}",
            kind=kind,
            ref_s=ref_s,
            new_s=new_s,
            change_s=new_s - ref_s,
            share=_share(new_s - ref_s, total),
        )
    ]


def _names(rows: Sequence[OperatorRow]) -> str:
    largest = max(rows, key=lambda row: row.self_s).name
    return largest if len(rows) == 1 else f"{largest} and {len(rows) - 1} more"


def _share(part: float, total: float) -> float | None:
    return part / total if total else None
