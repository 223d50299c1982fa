"""What doctor found, as text and as fields. Returns values; prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchbench.analyse.roofline import MEMORY, Ceiling
from benchbench.comparing.verdicts import THRESHOLD
from benchbench.diagnosis.checks.base import Level
from benchbench.diagnosis.findings import Finding
from benchbench.diagnosis.noise import Noise, suggested
from benchbench.diagnosis.selftest import Result
from benchbench.documents.lists import table
from benchbench.format import percent, rate, ratio, seconds, visible
from benchbench.machine.peaks import peaks
from benchbench.model.case import Dtype


def findings(found: Sequence[Finding], width: int | None) -> str:
    """A row per finding, with what to do where something is wrong; then how many there are of each."""
    rows = [
        {
            "status": each.status.value,
            "check": each.check,
            "seen": each.seen,
            "effect": each.effect if each.wrong else "",
            "remedy": each.remedy if each.wrong else "",
        }
        for each in found
    ]
    counts = Counter(each.status for each in found)
    return (
        table(rows, width) + ", ".join(f"{counts[level]} {level}" for level in Level if counts[level]) + "\n"
    )


def ceilings_fields(found: Sequence[Ceiling]) -> list[dict[str, Any]]:
    """Each ceiling with its unit and its share of the datasheet's peak, None where that is not known."""
    return [asdict(each) | {"unit": _unit(each), "of_datasheet": _share(each)} for each in found]


def ceilings_text(found: Sequence[Ceiling], notes: Sequence[str], width: int | None) -> str:
    """A row per ceiling, then what may have held them down."""
    rows = [
        {
            "device": each["device"],
            "of": "copy" if each["quantity"] == MEMORY else f"{each['quantity']} GEMM",
            "rate": rate(each["rate"], each["unit"]),
            "of datasheet": "–" if each["of_datasheet"] is None else percent(each["of_datasheet"]),
            "reached by": each["case"],
        }
        for each in ceilings_fields(found)
    ]
    return table(rows, width) + "".join(f"{visible(note)}\n" for note in notes)


def _unit(ceiling: Ceiling) -> str:
    return "B/s" if ceiling.quantity == MEMORY else "FLOP/s"


def _share(ceiling: Ceiling) -> float | None:
    known = peaks(ceiling.device)
    if known is None:
        return None
    memory = ceiling.quantity == MEMORY
    peak = known.bytes_per_s if memory else known.flops_peak(Dtype(ceiling.quantity))
    return ceiling.rate / peak if peak else None


def selftest_text(found: Sequence[Result], notes: Sequence[str], width: int | None) -> str:
    """A row per result, then how many passed."""
    rows = [
        {
            "result": "pass" if each.passed else "fail",
            "on": each.where,
            "spin": each.spin,
            "of": each.of,
            "asked": seconds(each.asked_s),
            "truth": _maybe(seconds, each.truth_s),
            "measured": _maybe(seconds, each.measured_s),
            "error": _maybe(percent, each.error),
            "limit": percent(each.limit),
            "attempts": str(each.attempts),
            "note": each.note,
        }
        for each in found
    ]
    count = sum(each.passed for each in found)
    lines = [*notes, f"{count} of {len(found)} pass"]
    return table(rows, width) + "".join(f"{visible(line)}\n" for line in lines)


def noise_fields(found: Sequence[Noise]) -> dict[str, Any]:
    """Of every case, and what follows for the suite."""
    return {
        "cases": [asdict(each) for each in found],
        "alarms": sum(each.alarm for each in found),
        "at_threshold": THRESHOLD,
        "suggested_threshold": suggested(found),
    }


def noise_text(found: Sequence[Noise], width: int | None) -> str:
    """A row per case, the alarms, and the threshold suggested."""
    rows = [
        {
            "case": each.case,
            "processes": str(each.processes),
            "cv": _maybe(_bounded, each.cv),
            "detectable": _maybe(_bounded, each.detectable),
            "ratio": _maybe(ratio, each.ratio),
            "threshold": _maybe(_bounded, each.threshold),
            "note": "alarm" if each.alarm else each.reason,
        }
        for each in found
    ]
    lines = [f"{sum(each.alarm for each in found)} alarms in {len(found)} cases at {percent(THRESHOLD)}"]
    lines.append(_suggestion(found))
    return table(rows, width) + "".join(f"{line}\n" for line in lines)


def _suggestion(found: Sequence[Noise]) -> str:
    least = suggested(found)
    if least is None:
        return "too noisy for any threshold: accelbench doctor tells what disturbs, more rounds help"
    noisier = sum(each.threshold is not None and each.threshold > least for each in found)
    return f"suggested: --threshold {100 * least:g}%" + (f"; {noisier} cases are noisier" if noisier else "")


def _bounded(value: float) -> str:
    return percent(value) if value <= 10 else ">1000 %"


def _maybe(show: Callable[[float], str], value: float | None) -> str:
    return "–" if value is None else show(value)
