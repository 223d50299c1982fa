"""A fleet as a document: the outcome of each machine's share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchbench.cluster.fleet import FleetResult
from benchbench.cluster.machines import Absent, FleetInfo, ShareState
from benchbench.cluster.receiver import ShareProgress
from benchbench.documents import document
from benchbench.documents.document import Cell, Content, Document, Tone

SCHEMA = 1  # of the data. 1: first
TONES = {ShareState.DONE: Tone.GOOD, ShareState.FAILED: Tone.BAD, ShareState.LOST: Tone.BAD}
ABSENT = "absent"


def fleet_document(result: FleetResult, results_option: str = "") -> Document:
    """Document with a row for each share and each absent machine.

    `results_option` is ` --results FOLDER` for the suggested command, or empty.
    """
    info = result.info
    rows = [*map(_share_row, result.shares), *map(_absent_row, result.absent)]
    runs = [share.run for share in result.shares if share.run]
    return Document(
        name="fleet",
        title=f"Fleet {info.id}",
        facts=(
            f"fleet {info.id}, {info.started}, accelbench {info.version}",
            *_measured_facts(info),
        ),
        tables=(document.table(rows),),
        notes=(f"next: accelbench report {runs[0]}{results_option}",) if runs else (),
        data={
            "schema": SCHEMA,
            "fleet": info.id,
            "started": info.started,
            "shares": [_share_fields(share) for share in result.shares],
            "absent": [asdict(machine) for machine in result.absent],
        },
    )


def _measured_facts(info: FleetInfo) -> Iterator[str]:
    if info.suites:
        yield f"suites: {', '.join(name for name, _ in info.suites)}"
    if info.options.model:
        yield f"models: {', '.join(info.options.model)}"


def is_incomplete(result: FleetResult) -> bool:
    """True if a machine was absent, or a share was not finished and not taken over by another machine."""
    return bool(result.absent) or any(
        share.state is not ShareState.DONE and not share.begun_again_on for share in result.shares
    )


def _share_fields(share: ShareProgress) -> dict[str, Any]:
    """JSON form of a finished share."""
    fields = {**asdict(share), "state": share.state.value}
    return {name: value for name, value in fields.items() if name != "stage"}


def _share_row(share: ShareProgress) -> dict[str, Content]:
    return {
        "machine": share.machine,
        "type": share.kind,
        "state": Cell((share.state.value,), TONES.get(share.state, Tone.PLAIN)),
        "cases": f"{share.finished} of {share.cases}" if share.cases else "",
        "failed": share.failed or "",
        "run": share.run,
        "what happened": events_text(share),
    }


def _absent_row(machine: Absent) -> dict[str, Content]:
    state = Cell((ABSENT,), Tone.BAD)
    return {"machine": machine.name, "type": "", "state": state, "what happened": machine.reason}


def events_text(share: ShareProgress) -> str:
    """Replacement, failure reason and restart of a share; empty if it was simply measured."""
    instead = f"instead of {share.instead_of}" if share.instead_of else ""
    again = f"begun again on {share.begun_again_on}" if share.begun_again_on else ""
    return "; ".join(filter(None, (instead, share.reason, again)))
