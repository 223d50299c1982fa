"""What there is, as documents: workloads, backends, suites, metrics, data, runs, devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchbench import registry
from benchbench.analyse.metrics import METRICS
from benchbench.backends.base import Backend
from benchbench.documents import document
from benchbench.documents.document import Document
from benchbench.documents.suites import suites_document
from benchbench.errors import UnreadableInput
from benchbench.launch import catalogue
from benchbench.launch.project import user_data
from benchbench.model.device import WHY_NOT_MEASURED, Probe
from benchbench.model.run import RunInfo
from benchbench.plan.rerun import why_not_resumed
from benchbench.store import naming, selectors
from benchbench.store import runs as store
from benchbench.workloads._image_sets import SYNTHETIC, read_set

Rows = list[dict[str, str]]


def list_document(what: str, results: Path) -> Document:
    """What `accelbench list WHAT` answers; of runs, those kept in `results`."""
    if what == "runs":
        return _document(what, "Runs", _runs(results), _interrupted(results))
    if what == "suites":
        return suites_document(results)
    return _document(what, what.capitalize(), LISTS[what]())


def devices_document(probes: Sequence[Probe]) -> Document:
    """A row per device, and one per kind of device that is not there."""
    return _document("devices", "Devices", [row for probe in probes for row in _devices(probe)])


def _document(name: str, title: str, rows: Rows, notes: Sequence[str] = ()) -> Document:
    return Document(name=name, title=title, tables=(document.table(rows, notes=notes),), data=rows)


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
    for name in catalogue.workload_names():
        kind = catalogue.workload_named(name)
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
    for name in registry.entry_names("benchbench.backends"):
        kind = registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
        without = f"{', '.join(kind.not_measured)}: {WHY_NOT_MEASURED}" if kind.not_measured else ""
        rows.append(
            {
                "backend": name,
                "modes": ", ".join(kind.modes),
                "not supported": without,
                "summary": kind.summary,
            }
        )
    return rows


def _runs(results: Path) -> Rows:
    """Every stored run, oldest first."""
    rows = []
    for name in selectors.run_ids(results):
        try:
            info = store.read_head(results / store.RUNS / name)
            progress = store.progress(results / store.RUNS / name)
        except UnreadableInput as error:
            rows.append(_listed(name, command=f"unreadable: {error}"))
            continue
        command, found = " ".join(info.command), naming.tags_text(info.tags)
        rows.append(_listed(name, info.started, progress, str(len(info.plan)), found, command))
    return rows


def _listed(
    run: str, started: str = "–", status: str = "–", cases: str = "–", tags: str = "", command: str = ""
) -> dict[str, str]:
    return {
        "run": run,
        "started": started,
        "status": status,
        "cases": cases,
        "tags": tags,
        "command": command,
    }


def _interrupted(results: Path) -> list[str]:
    """For each run that can be finished, the line to type."""
    lines = []
    for name in selectors.run_ids(results):
        folder = results / store.RUNS / name
        with suppress(UnreadableInput):
            if store.progress(folder) is store.Progress.INTERRUPTED:
                lines.append(_to_finish(store.read_head(folder)))
    where = selectors.results_option(results)
    return [line + where for line in dict.fromkeys(lines) if line]


def _to_finish(info: RunInfo) -> str:
    if fleet := naming.fleet_of(info.tags):
        return f"to finish the fleet {fleet}: accelbench fleet --resume {fleet}"
    return "" if why_not_resumed(info) else f"to finish {info.id}: accelbench run --resume {info.id}"


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


def _data() -> Rows:
    """The set that is drawn, and the user's by the names that a case has them by."""
    rows = [_set(SYNTHETIC, note="drawn from a seed")]
    for path in map(Path, user_data()):
        try:
            name, images = read_set(path)
        except UnreadableInput as error:
            rows.append(_set("–", note=f"unreadable: {error}"))
            continue
        count, classes = len(images.labels), int(images.labels.max()) + 1
        rows.append(_set(name, f"{count:,}", str(classes), str(path)))
    return rows


def _set(name: str, images: str = "–", classes: str = "–", note: str = "") -> dict[str, str]:
    return {"source": name, "images": images, "classes": classes, "note": note}


LISTS: dict[str, Callable[[], Rows]] = {
    "workloads": _workloads,
    "backends": _backends,
    "metrics": _metrics,
    "data": _data,
}
