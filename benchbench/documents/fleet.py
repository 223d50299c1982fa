"""A fleet as a document: what became of each machine's share."""

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


def fleet_document(result: FleetResult) -> Document:
    """A row for each machine, and one for each that took over what another left."""
    info = result.info
    rows = [*map(_share_row, result.shares), *map(_absent_row, result.absent)]
    runs = [share.run for share in result.shares if share.run]
    return Document(
        name="fleet",
        title=f"Fleet {info.id}",
        facts=(
            f"fleet {info.id}, {info.started}, accelbench {info.version}",
            *_measured(info),
        ),
        tables=(document.table(rows),),
        notes=(f"next: accelbench report {runs[0]}",) if runs else (),
        data={
            "schema": SCHEMA,
            "fleet": info.id,
            "started": info.started,
            "shares": [_fields(share) for share in result.shares],
            "absent": [asdict(each) for each in result.absent],
        },
    )


def _measured(info: FleetInfo) -> Iterator[str]:
    if info.suites:
        yield f"suites: {', '.join(name for name, _ in info.suites)}"
    if info.options.model:
        yield f"models: {', '.join(info.options.model)}"


def incomplete(result: FleetResult) -> bool:
    """Whether a machine did not answer, could not do its share, or left what no other took over."""
    return bool(result.absent) or any(
        share.state is not ShareState.DONE and not share.begun_again_on for share in result.shares
    )


def _fields(share: ShareProgress) -> dict[str, Any]:
    """What is told to programs of a share that is over."""
    found = {**asdict(share), "state": share.state.value}
    return {name: value for name, value in found.items() if name != "stage"}


def _share_row(share: ShareProgress) -> dict[str, Content]:
    return {
        "machine": share.machine,
        "type": share.kind,
        "state": Cell((share.state.value,), TONES.get(share.state, Tone.PLAIN)),
        "cases": f"{share.finished} of {share.cases}" if share.cases else "",
        "failed": share.failed or "",
        "run": share.run,
        "what happened": what_happened(share),
    }


def _absent_row(each: Absent) -> dict[str, Content]:
    state = Cell((ABSENT,), Tone.BAD)
    return {"machine": each.name, "type": "", "state": state, "what happened": each.reason}


def what_happened(share: ShareProgress) -> str:
    """What happened to a share, other than that it was measured."""
    instead = f"instead of {share.instead_of}" if share.instead_of else ""
    again = f"begun again on {share.begun_again_on}" if share.begun_again_on else ""
    return "; ".join(filter(None, (instead, share.reason, again)))
