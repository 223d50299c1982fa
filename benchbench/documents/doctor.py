"""What doctor reports as documents: checks of the machine, ceilings, the self-test, a suite's noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchbench.analyse.roofline import MEMORY, Ceiling
from benchbench.diagnosis.checks.base import Level
from benchbench.diagnosis.findings import Finding
from benchbench.diagnosis.noise import Noise, suggest_threshold
from benchbench.diagnosis.selftest import Result
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
from benchbench.format import count_of, percent
from benchbench.judging.comparison import THRESHOLD
from benchbench.machine.peaks import peaks
from benchbench.model.case import Dtype

COLUMNS = (
    *map(Column, ("status", "check", "seen")),
    Column("effect", line=1, label="effect:"),
    Column("remedy", line=2, label="remedy:"),
)
TONES = {Level.OK: Tone.GOOD, Level.WARNING: Tone.WARNING, Level.PROBLEM: Tone.BAD}  # every other: plain

MOST_TOLD = 3  # rates in a headline


def findings_document(findings: Sequence[Finding]) -> Document:
    """How many there are of each level; a row per check, with what to do where something is wrong."""
    counts = Counter(each.status for each in findings)
    summary = ", ".join(_counted(counts[level], level) for level in Level if counts[level])
    return Document(
        name="doctor",
        title="What spoils measurements on this machine",
        answer=(Cell((summary,)),),
        tables=(table(map(_finding, findings), COLUMNS, layout=Layout.PARAGRAPHS),),
        data={"findings": [asdict(each) for each in findings]},
    )


def _counted(count: int, level: Level) -> str:
    """`2 warnings`, `5 unknown`: a noun is counted, an adjective is not."""
    return count_of(count, level) if level in (Level.PROBLEM, Level.WARNING) else f"{count} {level}"


def _finding(found: Finding) -> dict[str, Content]:
    return {
        "status": Cell((found.status.value,), TONES.get(found.status, Tone.PLAIN)),
        "check": found.check,
        "seen": found.seen,
        "effect": found.effect if found.wrong else "",
        "remedy": found.remedy if found.wrong else "",
    }


def ceilings_document(ceilings: Sequence[Ceiling], notes: Sequence[str]) -> Document:
    """A row per ceiling, then what may have held them down."""
    fields = [_ceiling_fields(each) for each in ceilings]
    rows = [
        {
            "device": each["device"],
            "of": "copy" if each["quantity"] == MEMORY else f"{each['quantity']} GEMM",
            "rate": number(each["rate"], each["unit"]),
            "of datasheet": number_or_dash(each["of_datasheet"], "%"),
            "reached by": each["case"],
        }
        for each in fields
    ]
    return Document(
        name="ceilings",
        title="The best rates measured on this machine",
        headline="; ".join(f"{row['device']}: {row['of']} {row['rate']}" for row in rows[:MOST_TOLD]),
        tables=(table(rows, notes=notes),),
        data={"ceilings": fields, "notes": notes},
    )


def _ceiling_fields(ceiling: Ceiling) -> dict[str, Any]:
    """A ceiling with its unit and its share of the datasheet's peak, None where that is not known."""
    unit = "B/s" if ceiling.quantity == MEMORY else "FLOP/s"
    return asdict(ceiling) | {"unit": unit, "of_datasheet": _of_datasheet(ceiling)}


def _of_datasheet(ceiling: Ceiling) -> float | None:
    known = peaks(ceiling.device)
    if known is None:
        return None
    memory = ceiling.quantity == MEMORY
    peak = known.bytes_per_s if memory else known.flops_peak(Dtype(ceiling.quantity))
    return ceiling.rate / peak if peak else None


def selftest_document(results: Sequence[Result], notes: Sequence[str]) -> Document:
    """How many passed, then a row per result."""
    count = sum(each.passed for each in results)
    return Document(
        name="selftest",
        title="Are measurements right here?",
        answer=(Cell((f"{count} of {len(results)} pass",)),),
        tables=(table(map(_result, results), notes=notes),),
        data={"results": [asdict(each) for each in results], "notes": notes},
    )


def _result(found: Result) -> dict[str, Content]:
    return {
        "result": Cell(("pass",), Tone.GOOD) if found.passed else Cell(("fail",), Tone.BAD),
        "on": found.where,
        "spin": found.spin,
        "of": found.of,
        "asked": number(found.asked_s, "s"),
        "truth": number_or_dash(found.truth_s, "s"),
        "measured": number_or_dash(found.measured_s, "s"),
        "error": number_or_dash(found.error, "%"),
        "limit": number(found.limit, "%"),
        "attempts": found.attempts,
        "note": found.note,
    }


def noise_document(noise: Sequence[Noise]) -> Document:
    """The alarms, a row per case, and the threshold suggested."""
    alarms = sum(each.alarm for each in noise)
    summary = f"{count_of(alarms, 'alarm')} in {count_of(len(noise), 'case')} at {percent(THRESHOLD)}"
    return Document(
        name="noise",
        title="A suite against itself",
        answer=(Cell((summary,)),),
        tables=(table(map(_noise, noise), notes=[_suggestion(noise)]),),
        data={
            "cases": [asdict(each) for each in noise],
            "alarms": alarms,
            "at_threshold": THRESHOLD,
            "suggested_threshold": suggest_threshold(noise),
        },
    )


def _noise(found: Noise) -> dict[str, Content]:
    return {
        "case": found.case,
        "processes": found.processes,
        "cv": number_or_dash(found.cv if found.cv is None else round(found.cv, 12), "%"),
        "detectable": number_or_dash(found.detectable, "%"),
        "ratio": number_or_dash(found.ratio, "×"),
        "threshold": number_or_dash(found.threshold, "%"),
        "note": Cell(("alarm",), Tone.BAD) if found.alarm else found.reason,
    }


def _suggestion(found: Sequence[Noise]) -> str:
    least = suggest_threshold(found)
    if least is None:
        return "too noisy for any threshold: accelbench doctor shows what disturbs, more rounds help"
    noisier = sum(each.threshold is not None and each.threshold > least for each in found)
    are = "is" if noisier == 1 else "are"
    beyond = f"; {count_of(noisier, 'case')} {are} noisier" if noisier else ""
    return f"suggested: --threshold {100 * least:g}%{beyond}"
