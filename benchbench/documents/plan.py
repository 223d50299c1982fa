"""A plan as a document: what would be measured, what is left out and why, and what it will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from benchbench.documents import document
from benchbench.documents.document import Content, Document, number
from benchbench.documents.short_names import case_cells
from benchbench.format import count_of, size
from benchbench.model.case import Case, LeftOut
from benchbench.model.run import RunInfo
from benchbench.plan.costs import footprint_bytes
from benchbench.plan.estimates import RunEstimate, device_classes, process_s, run_estimate
from benchbench.plan.traffic import Traffic, traffic
from benchbench.running.observer import Forecast, duration
from benchbench.timing.policy import in_words


def _plan_fields(info: RunInfo, estimate: RunEstimate) -> dict[str, Any]:
    return {
        "cases": [_case_fields(case) for case in info.plan],
        "left_out": [
            {"case": each.case.id, "status": each.status.value, "reason": each.reason}
            for each in info.left_out
        ],
        "rounds": info.policy.rounds,
        "budget_s": info.policy.budget_s,
        "estimated_s": estimate.total,
        "estimated_parts_s": asdict(estimate),
    }


def _case_fields(case: Case) -> dict[str, Any]:
    fields: dict[str, Any] = {"case": case.id, "bytes": footprint_bytes(case)}
    return fields | (asdict(each) if (each := traffic(case)) else {})


def forecast(info: RunInfo) -> Forecast:
    """The time left of a run that has not begun."""
    return Forecast(_estimates(info), info.policy.rounds, info.policy.budget_s)


def _estimates(info: RunInfo) -> dict[str, float]:
    classes = device_classes(info.probes)
    return {case.id: process_s(case, info.policy, classes) for case in info.plan}


def plan_document(
    info: RunInfo, earlier_s: Mapping[str, float] = MappingProxyType({}), *, profile: bool = False
) -> Document:
    """The cases, what is left out and why, and what it will take.

    `earlier_s`: case id → what a process of it took in earlier runs here. `profile`: as `--profile` does.
    """
    classes = device_classes(info.probes)
    estimate = run_estimate(info.plan, info.policy, classes, earlier_s, profile=profile)
    names = case_cells(case.id for case in info.plan)
    traffics = {case.id: traffic(case) for case in info.plan}
    bubbles = {name: each.bubble for name, each in traffics.items() if each and each.bubble is not None}
    rows: list[dict[str, Content]] = [
        {
            "case": names[case.id],
            "at least": number(footprint_bytes(case), "B"),
            **(_of_each(traffics[case.id]) if any(traffics.values()) else {}),
            **({"bubble": number(bubbles.get(case.id), "%")} if bubbles else {}),
        }
        for case in info.plan
    ]
    memory = size(max((footprint_bytes(case) for case in info.plan), default=0))
    total = (
        f"{count_of(len(info.plan), 'case')}, {len(info.left_out)} left out; {in_words(info.policy)}, "
        f"about {duration(estimate.total)}; largest case at least {memory} and its framework"
    )
    return Document(
        name="plan",
        title="What would be measured",
        tables=(document.table(rows, notes=[*left_out(info.left_out), total]),),
        data=_plan_fields(info, estimate),
    )


def _of_each(each: Traffic | None) -> dict[str, Content]:
    """What a device of several holds and sends; see `plan/traffic.py`."""
    return {
        "a device holds": number(each.held, "B") if each else None,
        "and sends a step": number(each.sent, "B") if each else None,
    }


def left_out(cases: Sequence[LeftOut]) -> list[str]:
    """One line for each reason, with how many cases it leaves out."""
    counted = Counter((each.case.target, each.case.device, each.status.value, each.reason) for each in cases)
    return [
        f"left out: {count} on {target}:{device}, {status}: {reason}"
        for (target, device, status, reason), count in counted.items()
    ]
