"""Baselines as documents: what there is, and what one holds of every case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.documents.document import Cell, Content, Document, Number, table
from benchbench.format import count_of, visible
from benchbench.gate.baselines import KEPT, SessionsByMachine, hardware
from benchbench.gate.stages import Acceptance
from benchbench.judging.sessions import ENOUGH
from benchbench.stats import deviation, mean
from benchbench.store import naming


def baselines_document(baselines: Mapping[str, SessionsByMachine]) -> Document:
    """A row per baseline and machine; for programs, with the runs."""
    fields: list[dict[str, Any]] = [
        {
            "baseline": name,
            "machine": machine,
            "hardware": hardware(sessions[-1].machine),
            "sessions": len(sessions),
            "cases": len(_cases(sessions)),
            "newest": sessions[-1].started,
            "runs": [each.id for each in sessions],
        }
        for name, sessions_by_machine in baselines.items()
        for machine, sessions in sessions_by_machine.items()
    ]
    rows = [{name: value for name, value in row.items() if name != "runs"} for row in fields]
    return Document(name="baselines", title="Baselines", tables=(table(rows),), data=fields)


def baseline_document(name: str, sessions_by_machine: SessionsByMachine, metric: Metric) -> Document:
    """A row per machine and case: the geometric mean of its sessions, and how much they differ."""
    fields = [
        {"machine": machine, "case": case, **_summary(sides, metric)}
        for machine, sessions in sessions_by_machine.items()
        for case, sides in _cases(sessions).items()
    ]
    return Document(
        name="baseline",
        title=f"Baseline {name}",
        tables=(table(_row(each, metric) for each in fields),),
        data=fields,
    )


def accepted_lines(name: str, done: Acceptance) -> list[str]:
    """What was accepted, and what the baseline's machine has now."""
    session, count = done.session, len(done.session.cases)
    failed = sum(bool(side.failure) for side in session.cases.values())
    commit = f", commit {naming.short(session.commit)}" if session.commit else ""
    lines = [f"accepted run {session.id}{commit}, {count_of(count, 'case')}"]
    if failed:
        lines.append(f"{failed} of them failed: a check cannot use them")
    lines.append(f"{name}: {done.runs} of {KEPT} sessions of {hardware(session.machine)}")
    if done.days < done.runs:
        lines.append(f"runs of one day count as one session: {done.days} of {done.runs} count")
    if done.days < ENOUGH:
        lines.append(f"provisional: {done.days} of {ENOUGH} sessions; record the others on other days")
    return [visible(line) for line in lines]


def _row(fields: Mapping[str, Any], metric: Metric) -> dict[str, Content]:
    return {
        "machine": fields["machine"],
        "case": fields["case"],
        metric.name: _known(fields["value"], metric.unit),
        "spread": _known(fields["spread"], "%"),
        "sessions": fields["sessions"],
        "processes": fields["processes"],
        "note": fields["note"],
    }


def _known(value: float | None, unit: str) -> Cell:
    return Cell(("–",)) if value is None else Cell((Number(value, unit),))


def _cases(sessions: Sequence[Digest]) -> dict[str, list[CaseDigest]]:
    cases: dict[str, list[CaseDigest]] = {}
    for session in sessions:
        for case, side in session.cases.items():
            cases.setdefault(case, []).append(side)
    return cases


def _summary(sides: Sequence[CaseDigest], metric: Metric) -> dict[str, Any]:
    """Of the sessions that have the metric; why the newest has not, if so."""
    logs = [each for side in sides if (each := side.logs(metric))]
    places = [mean(each) for each in logs]
    newest = sides[-1]
    return {
        "value": math.exp(mean(places)) if places else None,
        "spread": deviation(places) if len(places) > 1 else None,
        "sessions": len(places),
        "processes": sum(map(len, logs)),
        "note": newest.failure or newest.absent,
    }
