"""Which operators explain the difference of two profiles of a step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.errors import UsageError
from benchbench.profiling.tables import Kind, OperatorRow, OperatorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """What an operator, or a kind of them, adds to the difference of two steps."""

    name: str
    kind: str
    ref_s: float | None  # None: not there
    new_s: float | None
    change_s: float
    share: float | None  # of the whole difference; None where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDifference:
    """Two profiles: what changed, the largest first, and how much of it operators account for."""

    ref: OperatorTable
    new: OperatorTable
    change_s: float
    idle_change_s: float
    explained: float | None
    changes: tuple[OperatorChange, ...]


def pairs(
    ref: Sequence[OperatorTable], new: Sequence[OperatorTable]
) -> list[tuple[OperatorTable, OperatorTable]]:
    """The same case in both; where none is and either has one case, these two. Raises UsageError."""
    after = {each.case: each for each in new}
    found = [(each, after[each.case]) for each in ref if each.case in after]
    if not found and len(ref) == len(new) == 1:
        return [(ref[0], new[0])]
    if not found:
        raise UsageError(
            "No case was profiled in both runs.", "Choose one of each with --case: any two can be compared."
        )
    return found


def difference(ref: OperatorTable, new: OperatorTable) -> ProfileDifference:
    """What each operator adds to the difference of the two steps; with the idle time's, that is all of it."""
    total = new.step_s - ref.step_s
    before, after = ({row.name: row for row in side.rows} for side in (ref, new))
    changes = [_change(name, before[name], after[name], total) for name in before.keys() & after.keys()]
    for each in Kind:
        gone = [row for row in ref.rows if row.kind is each and row.name not in after]
        come = [row for row in new.rows if row.kind is each and row.name not in before]
        changes += _unmatched(each, gone, come, total)
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
    kind: Kind, gone: Sequence[OperatorRow], come: Sequence[OperatorRow], total: float
) -> list[OperatorChange]:
    """Operators of one kind that only one side has: together where both have some, else each alone."""
    if not (gone and come):
        return [_change(row.name, row, None, total) for row in gone] + [
            _change(row.name, None, row, total) for row in come
        ]
    ref_s, new_s = (sum(row.self_s for row in rows) for rows in (gone, come))
    return [
        OperatorChange(
            name=f"{_names(gone)} → {_names(come)}",
            kind=kind,
            ref_s=ref_s,
            new_s=new_s,
            change_s=new_s - ref_s,
            share=_share(new_s - ref_s, total),
        )
    ]


def _names(rows: Sequence[OperatorRow]) -> str:
    most = max(rows, key=lambda row: row.self_s).name
    return most if len(rows) == 1 else f"{most} and {len(rows) - 1} more"


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
