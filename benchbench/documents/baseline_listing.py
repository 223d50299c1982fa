"""Baselines as rows: what there is, and what each holds of every case. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.gate.baselines import Shelf, hardware
from benchbench.stats import deviation, mean

Rows = list[dict[str, Any]]


def listed(shelves: Mapping[str, Shelf]) -> Rows:
    """A row per baseline and machine."""
    return [
        {
            "baseline": name,
            "machine": machine,
            "hardware": hardware(sessions[-1].machine),
            "sessions": len(sessions),
            "cases": len(_cases(sessions)),
            "newest": sessions[-1].started,
            "runs": [each.id for each in sessions],
        }
        for name, shelf in shelves.items()
        for machine, sessions in shelf.items()
    ]


def shown(shelf: Shelf, metric: Metric) -> Rows:
    """A row per machine and case: the geometric mean of its sessions, and how much they differ."""
    return [
        {"machine": machine, "case": case, **_held(sides, metric)}
        for machine, sessions in shelf.items()
        for case, sides in _cases(sessions).items()
    ]


def listed_text(rows: Rows) -> list[dict[str, str]]:
    """For people: without the runs."""
    return [{name: str(value) for name, value in row.items() if name != "runs"} for row in rows]


def shown_text(rows: Rows, metric: Metric) -> list[dict[str, str]]:
    """For people."""
    return [
        {
            "machine": row["machine"],
            "case": row["case"],
            metric.name: "–" if row["value"] is None else fmt.quantity(row["value"], metric.unit),
            "spread": "–" if row["spread"] is None else fmt.percent(row["spread"]),
            "sessions": str(row["sessions"]),
            "processes": str(row["processes"]),
            "note": row["note"],
        }
        for row in rows
    ]


def _cases(sessions: Sequence[Digest]) -> dict[str, list[CaseDigest]]:
    found: dict[str, list[CaseDigest]] = {}
    for session in sessions:
        for case, side in session.cases.items():
            found.setdefault(case, []).append(side)
    return found


def _held(sides: Sequence[CaseDigest], metric: Metric) -> dict[str, Any]:
    logs = [each for side in sides if (each := side.logs(metric))]
    places = [mean(each) for each in logs]
    last = sides[-1]
    return {
        "value": math.exp(mean(places)) if places else None,
        "spread": deviation(places) if len(places) > 1 else None,
        "sessions": len(places),
        "processes": sum(map(len, logs)),
        "note": last.failure or last.absent,
    }
