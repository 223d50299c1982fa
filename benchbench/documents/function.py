"""A function that was measured as a document: its run's table, and what was claimed of it beside that."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from benchbench.documents.document import Cell, Document, Number
from benchbench.documents.run import report_document
from benchbench.judging.claims import Claim
from benchbench.model.run import Run

COLUMNS = ("latency", "p90", "p99", "memory", "cold")
NAMES = {  # of a claim's checks
    "returned_s": "until it returned",
    "first_call_s": "first call",
    "before_warm_s": "before it was warm",
    "fastest_s": "fastest block",
}
UNEXPLAINED = "no check explains the factor: other hardware, other inputs or another version may"


def time_document(run: Run, claim: Claim | None = None, where: str = "") -> Document:
    """`where`: the option that names the results folder, for what to type next."""
    found = report_document(run, columns=COLUMNS, where=where)
    if claim is None:
        return found
    data: dict[str, Any] = {**found.data, "claim": {**asdict(claim), "factor": claim.factor}}
    return replace(found, answer=(claim_cell(claim), checks_cell(claim), *found.answer), data=data)


def claim_cell(claim: Claim) -> Cell:
    """`claimed 1.2 ms; measured 4.8 ms, 4.00× as long: it is the time until the call returned, …`."""
    claimed = ("claimed", Number(claim.claimed_s, "s"), "beside", Number(claim.measured_s, "s"))
    if claim.agrees:
        return Cell((*claimed, "measured: they agree"))
    times = Number(claim.factor, "×")
    return Cell((*claimed, "measured, which is", times, "as long:", claim.explanation or UNEXPLAINED))


def checks_cell(claim: Claim) -> Cell:
    """`times of a call that the claim was held against: until it returned 80.0 µs, first call 1.11 s, …`."""
    times = [f"{NAMES[name]} {Number(seconds, 's')}" for name, seconds in claim.checks.items()]
    return Cell((f"times of a call that the claim was held against: {', '.join(times)}",))
