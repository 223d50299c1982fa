"""Lists, devices and plans as documents; what a run comes to, in a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchbench import registry
from benchbench.analyse.metrics import METRICS
from benchbench.analyse.plausible import implausible
from benchbench.analyse.rows import by_case
from benchbench.backends.base import Backend
from benchbench.documents import document
from benchbench.documents.document import Content, Document, number
from benchbench.errors import UnreadableInput
from benchbench.format import size
from benchbench.model.case import LeftOut
from benchbench.model.device import Probe
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.plan.cases import estimate_s, footprint_bytes
from benchbench.running.progress import Forecast, duration
from benchbench.store import runs as store
from benchbench.store import tags
from benchbench.timing.policy import in_words
from benchbench.workloads.base import Workload

Rows = list[dict[str, str]]


def list_document(what: str, results: Path) -> Document:
    """What `accelbench list WHAT` answers: workloads, backends, suites, or the runs kept in `results`."""
    return _document(what, what.capitalize(), _runs(results) if what == "runs" else LISTS[what]())


def devices_document(probes: Sequence[Probe]) -> Document:
    """A row per device, and one per kind of device that is not there."""
    return _document("devices", "Devices", [row for probe in probes for row in _devices(probe)])


def _document(name: str, title: str, rows: Rows) -> Document:
    return Document(name=name, title=title, tables=(document.table(rows),), data=rows)


def _devices(probe: Probe) -> Rows:
    def row(device: str, status: str, note: str, remedy: str = "") -> dict[str, str]:
        return {
            "backend": probe.target.name,
            "version": probe.version or "–",
            "device": device,
            "status": status,
            "note": note,
            "remedy": remedy,
        }

    if probe.status != "ready":
        return [row("–", probe.status, probe.reason, probe.remedy)]
    present = [row(device.name, "ready", device.model or device.note) for device in probe.devices]
    absent = [*probe.missing, *((f"{mode} mode", reason) for mode, reason in probe.missing_modes)]
    return present + [row(kind, "unavailable", reason) for kind, reason in absent]


def _workloads() -> Rows:
    """Every workload with its parameters and the frameworks it is written in."""
    rows = []
    for name in registry.names("benchbench.workloads"):
        kind = registry.load_class("benchbench.workloads", name, Workload)  # type: ignore[type-abstract]
        rows.append(
            {
                "workload": name,
                "phase": kind.phase.value,
                "parameters": " ".join(f"{key}={str(value).lower()}" for key, value in kind.fields().items()),
                "frameworks": ", ".join(kind.frameworks()),
                "summary": kind.summary,
            }
        )
    return rows


def _backends() -> Rows:
    """Every backend with its modes, the usual one first."""
    rows = []
    for name in registry.names("benchbench.backends"):
        kind = registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
        rows.append({"backend": name, "modes": ", ".join(kind.modes), "summary": kind.summary})
    return rows


def _suites() -> Rows:
    """Every suite by name."""
    from benchbench.plan import suite

    loaded = [(name, suite.load_suite(name)) for name in suite.names()]
    return [
        {
            "suite": name,
            "workloads": ", ".join(dict.fromkeys(entry.workload for entry in each.cases)),
            "description": each.description,
        }
        for name, each in loaded
    ]


def _runs(results: Path) -> Rows:
    """Every stored run, oldest first."""
    rows = []
    for name in store.runs(results):
        try:
            info = store.head(results / store.RUNS / name)
        except UnreadableInput as error:
            rows.append(_listed(name, command=f"unreadable: {error}"))
            continue
        command, found = " ".join(info.command), tags.text(info.tags)
        rows.append(_listed(name, info.started, str(len(info.plan)), found, command))
    return rows


def _listed(
    run: str, started: str = "–", cases: str = "–", tags: str = "", command: str = ""
) -> dict[str, str]:
    return {"run": run, "started": started, "cases": cases, "tags": tags, "command": command}


def _metrics() -> Rows:
    """Every metric: what it is, and how the values of a case's processes become one."""
    return [
        {
            "metric": each.name,
            "unit": each.unit,
            "better": each.better,
            "is": each.meaning,
            "over processes": each.pooled_by,
        }
        for each in METRICS
    ]


LISTS: dict[str, Callable[[], Rows]] = {
    "workloads": _workloads,
    "backends": _backends,
    "suites": _suites,
    "metrics": _metrics,
}


def _plan_fields(info: RunInfo) -> dict[str, Any]:
    return {
        "cases": [{"case": case.id, "bytes": footprint_bytes(case)} for case in info.plan],
        "left_out": [
            {"case": each.case.id, "status": each.status.value, "reason": each.reason}
            for each in info.left_out
        ],
        "rounds": info.policy.rounds,
        "budget_s": info.policy.budget_s,
        "estimated_s": _estimated_s(info),
    }


def forecast(info: RunInfo) -> Forecast:
    """The time left of a run that has not begun."""
    return Forecast(_estimates(info), info.policy.rounds, info.policy.budget_s)


def _estimated_s(info: RunInfo) -> float:
    """Of the rounds that all cases have, or the budget where that is more."""
    return max(info.policy.rounds * sum(_estimates(info).values()), info.policy.budget_s or 0.0)


def _estimates(info: RunInfo) -> dict[str, float]:
    classes = {
        (probe.target.name, device.name): device.device_class
        for probe in info.probes
        for device in probe.devices
    }
    return {case.id: estimate_s(case, info.policy, classes[case.target, case.device]) for case in info.plan}


def plan_document(info: RunInfo) -> Document:
    """The cases, what is left out and why, and what it will take."""
    rows: list[dict[str, Content]] = [
        {"case": case.id, "at least": number(footprint_bytes(case), "B")} for case in info.plan
    ]
    memory = size(max((footprint_bytes(case) for case in info.plan), default=0))
    total = (
        f"{len(info.plan)} cases, {len(info.left_out)} left out; {in_words(info.policy)}, "
        f"about {duration(_estimated_s(info))}; largest case at least {memory} and its framework"
    )
    return Document(
        name="plan",
        title="What would be measured",
        tables=(document.table(rows, notes=[*left_out(info.left_out), total]),),
        data=_plan_fields(info),
    )


def left_out(cases: Sequence[LeftOut]) -> list[str]:
    """One line for each reason, with how many cases it leaves out."""
    counted = Counter((each.case.target, each.case.device, each.status.value, each.reason) for each in cases)
    return [
        f"left out: {count} on {target}:{device}, {status}: {reason}"
        for (target, device, status, reason), count in counted.items()
    ]


def summary(records: Sequence[Record], info: RunInfo, wall_s: float) -> str:
    """How many cases ended how."""
    counts = Counter(_endings(records))
    parts = [f"{count} {status}" for status, count in counts.items()] or ["nothing measured"]
    if info.left_out:
        parts.append(f"{len(info.left_out)} left out")
    return f"{', '.join(parts)} in {duration(wall_s)}   run {info.id}\n"


def time_split(records: Sequence[Record], shared_s: Mapping[str, float]) -> str:
    """Where the wall time of a run went, largest part first; `shared_s` is what no single case caused."""
    spent = Counter(shared_s)
    for record in records:
        stages = {name: each for name, each in record.stages_s.items() if name != "wall"}
        if isinstance(record.outcome, Measurement):
            stages["warm-up"] = sum(record.outcome.warmup_block_s)
            stages["timed"] = sum(record.outcome.block_s)
            stages["timing overhead"] = max(stages.pop("timing") - stages["warm-up"] - stages["timed"], 0.0)
        stages["fork and wait"] = max(record.stages_s.get("wall", 0.0) - sum(stages.values()), 0.0)
        spent.update(stages)
    whole = sum(spent.values()) or 1.0
    return ", ".join(f"{name} {each:.1f} s ({each / whole:.0%})" for name, each in spent.most_common())


def failing(records: Sequence[Record]) -> bool:
    """Whether any case failed, or has a time that cannot be true; one that cannot run here has not."""
    return any(status not in (Status.OK, Status.UNSUPPORTED) for status in _endings(records))


def _endings(records: Sequence[Record]) -> list[str]:
    """How each case ended; nothing is measured again after a failure."""
    return [_ending(found) for found in by_case(records).values()]


def _ending(records: Sequence[Record]) -> str:
    last = records[-1]
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    if isinstance(last.outcome, Measurement) and implausible(last.case, last.device_model, measured):
        return Status.IMPLAUSIBLE
    return str(last.outcome.status)
