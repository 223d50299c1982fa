"""Results of `doctor` as documents: checks of the machine, ceilings, self-test, and noise of a suite."""

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


def selftest_document(results: Sequence[Result], notes: Sequence[str]) -> Document:
    """Number of passed checks, then a row per result."""
    count = sum(result.passed for result in results)
    return Document(
        name="selftest",
        title="Self-test",
        answer=(Cell((f"{count} of {len(results)} pass",)),),
        tables=(table(map(_result_row, results), notes=notes),),
        data={"results": [asdict(result) for result in results], "notes": notes},
    )


def _result_row(result: Result) -> dict[str, Content]:
    return {
        "result": Cell(("pass",), Tone.GOOD) if result.passed else Cell(("fail",), Tone.BAD),
        "on": result.where,
        "spin": result.spin,
        "of": result.of,
        "asked": number(result.asked_s, "s"),
        "truth": number_or_dash(result.truth_s, "s"),
        "measured": number_or_dash(result.measured_s, "s"),
        "error": number_or_dash(result.error, "%"),
        "limit": number(result.limit, "%"),
        "attempts": result.attempts,
        "note": result.note,
    }


def noise_document(noise: Sequence[Noise]) -> Document:
    """Number of false alarms, a row per case, and a suggested threshold."""
    alarms = sum(case_noise.alarm for case_noise in noise)
    summary = f"{count_of(alarms, 'alarm')} in {count_of(len(noise), 'case')} at {percent(THRESHOLD)}"
    return Document(
        name="noise",
        title="A suite against itself",
        answer=(Cell((summary,)),),
        tables=(table(map(_noise_row, noise), notes=[_threshold_note(noise)]),),
        data={
            "cases": [asdict(case_noise) for case_noise in noise],
            "alarms": alarms,
            "at_threshold": THRESHOLD,
            "suggested_threshold": suggest_threshold(noise),
        },
    )


def _noise_row(noise: Noise) -> dict[str, Content]:
    return {
        "case": noise.case,
        "processes": noise.processes,
        "cv": number_or_dash(noise.cv if noise.cv is None else round(noise.cv, 12), "%"),
        "detectable": number_or_dash(noise.detectable, "%"),
        "ratio": number_or_dash(noise.ratio, "×"),
        "threshold": number_or_dash(noise.threshold, "%"),
        "note": Cell(("alarm",), Tone.BAD) if noise.alarm else noise.reason,
    }


def _threshold_note(noise: Sequence[Noise]) -> str:
    suggested = suggest_threshold(noise)
    if suggested is None:
        return "too noisy for any threshold: accelbench doctor shows what disturbs, more rounds help"
    noisier = sum(
        case_noise.threshold is not None and case_noise.threshold > suggested for case_noise in noise
    )
    verb = "is" if noisier == 1 else "are"
    beyond = f"; {count_of(noisier, 'case')} {verb} noisier" if noisier else ""
    return f"suggested: --threshold {100 * suggested:g}%{beyond}"
