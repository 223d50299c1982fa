"""Results of `doctor` as documents: checks of the machine, and ceilings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchbench.analyse.roofline import MEMORY, Ceiling
from benchbench.diagnosis.checks import Finding, Level
from benchbench.documents.document import (
    Cell,
    Column,
    Content,
    Document,
    Layout,
    Tone,
    number,
    number_or_dash,
    table,
)
from benchbench.format import count_of
from benchbench.machine.peaks import peaks
from benchbench.model.case import Dtype

COLUMNS = (
    *map(Column, ("status", "check", "seen")),
    Column("effect", line=1, label="effect:"),
    Column("remedy", line=2, label="remedy:"),
)
TONES = {Level.OK: Tone.GOOD, Level.WARNING: Tone.WARNING, Level.PROBLEM: Tone.BAD}  # others are plain

MAX_RATES = 3  # in the summary


def findings_document(findings: Sequence[Finding]) -> Document:
    """Counts by level, then a row per check with remedies for problems."""
    counts = Counter(finding.status for finding in findings)
    summary = ", ".join(_count_text(counts[level], level) for level in Level if counts[level])
    return Document(
        name="doctor",
        title="Sources of error on this machine",
        answer=(Cell((summary,)),),
        tables=(table(map(_finding_row, findings), COLUMNS, layout=Layout.PARAGRAPHS),),
        data={"findings": [asdict(finding) for finding in findings]},
    )


def _count_text(count: int, level: Level) -> str:
    """`2 warnings`, `5 unknown`: only nouns have a plural."""
    return count_of(count, level) if level in (Level.PROBLEM, Level.WARNING) else f"{count} {level}"


def _finding_row(finding: Finding) -> dict[str, Content]:
    return {
        "status": Cell((finding.status.value,), TONES.get(finding.status, Tone.PLAIN)),
        "check": finding.check,
        "seen": finding.seen,
        "effect": finding.effect if finding.wrong else "",
        "remedy": finding.remedy if finding.wrong else "",
    }


def ceilings_document(ceilings: Sequence[Ceiling], notes: Sequence[str]) -> Document:
    """A row per ceiling, then notes on possible disturbances."""
    fields = [_ceiling_fields(ceiling) for ceiling in ceilings]
    rows = [
        {
            "device": ceiling["device"],
            "of": "memory" if ceiling["quantity"] == MEMORY else f"{ceiling['quantity']} GEMM",
            "rate": number(ceiling["rate"], ceiling["unit"]),
            "of datasheet": number_or_dash(ceiling["of_datasheet"], "%"),
            "reached by": ceiling["case"],
        }
        for ceiling in fields
    ]
    return Document(
        name="ceilings",
        title="The best rates measured on this machine",
        summary_line="; ".join(f"{row['device']}: {row['of']} {row['rate']}" for row in rows[:MAX_RATES]),
        tables=(table(rows, notes=notes),),
        data={"ceilings": fields, "notes": notes},
    )


def _ceiling_fields(ceiling: Ceiling) -> dict[str, Any]:
    """JSON form of a ceiling, with its unit and its share of the datasheet peak (None if unknown)."""
    unit = "B/s" if ceiling.quantity == MEMORY else "FLOP/s"
    return asdict(ceiling) | {"unit": unit, "of_datasheet": _share_of_datasheet(ceiling)}


def _share_of_datasheet(ceiling: Ceiling) -> float | None:
    datasheet = peaks(ceiling.device)
    if datasheet is None:
        return None
    is_memory = ceiling.quantity == MEMORY
    peak = datasheet.bytes_per_s if is_memory else datasheet.flops_peak(Dtype(ceiling.quantity))
    return ceiling.rate / peak if peak else None
