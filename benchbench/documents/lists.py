"""What there is, as documents: workloads, suites, metrics, devices, environments, faults in files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench import registry
from benchbench.analyse.metrics import METRICS
from benchbench.backends.base import Backend
from benchbench.documents import document
from benchbench.documents.document import Cell, Column, Content, Document, number, table
from benchbench.documents.plan import EarlierRun, processes_s, runs_here
from benchbench.environments import interpreters
from benchbench.errors import UnreadableInput, UsageError
from benchbench.format import size
from benchbench.launch import catalogue
from benchbench.launch.project import user_data
from benchbench.machine.environment import machine
from benchbench.model.device import WHY_NOT_MEASURED, Device, DeviceClass, Probe, Target
from benchbench.plan import suite
from benchbench.plan.cases import plan
from benchbench.plan.estimates import device_classes, run_estimate
from benchbench.plan.suite import Selection, select
from benchbench.timing.policy import POLICIES
from benchbench.workloads._image_sets import SYNTHETIC, read_set

if TYPE_CHECKING:
    from benchbench.environments.build import BuildPlan
    from benchbench.environments.interpreters import EnvironmentState
    from benchbench.store.validation import Fault, Validation

Rows = list[dict[str, str]]
UNKNOWN = "–"
LISTED = 3  # workloads of a suite
SUITE_COLUMNS = (
    *map(Column, ("suite", "cases", "time here")),
    Column("workloads", rank=1),
    Column("description"),
)


def list_document(what: str, results: Path) -> Document:
    """What `accelbench list WHAT` answers, unless it is of runs; times of suites follow from `results`."""
    if what == "suites":
        return suites_document(results)
    return _document(what, what.capitalize(), LISTS[what](), NOTES.get(what, ()))


def devices_document(probes: Sequence[Probe]) -> Document:
    """A row per device, and one per kind of device that is not there."""
    return _document("devices", "Devices", [row for probe in probes for row in _devices(probe)])


def _document(name: str, title: str, rows: Rows, notes: Iterable[str] = ()) -> Document:
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
        rows.append(
            {
                "backend": name,
                "modes": ", ".join(kind.modes),
                "not supported": ", ".join(kind.not_measured),
                "summary": kind.summary,
            }
        )
    return rows


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


NOTES = {"backends": (f"not supported: {WHY_NOT_MEASURED}",)}
LISTS: dict[str, Callable[[], Rows]] = {
    "workloads": _workloads,
    "backends": _backends,
    "metrics": _metrics,
    "data": _data,
}


def suites_document(results: Path) -> Document:
    """A row per suite; one with a mistake, its own or of a workload in it, says so in its row."""
    earlier = runs_here(results)
    probes = list(_probes(earlier))
    taken = {name: processes_s(earlier, policy) for name, policy in POLICIES.items()}
    data = [_suite_fields(name, probes, taken) for name in suite.suite_names()]
    shown = document.table([_suite_row(each) for each in data], SUITE_COLUMNS)
    return Document(name="suites", title="Suites", tables=(shown,), data=data)


def _suite_row(fields: dict[str, Any]) -> dict[str, Content]:
    seconds, usable = fields["estimated_s"], fields["cases"] is not None
    time, description = about(seconds) if seconds else UNKNOWN, fields["description"]
    first_clause = re.split(r"[:;,.] | \(", description)[0].removesuffix(".")
    return {
        "suite": fields["suite"],
        "cases": str(fields["cases"]) if usable else UNKNOWN,
        "time here": Cell((time,), short=time.removeprefix("about ")),
        "workloads": _some(fields["workloads"].split(", ")),
        "description": Cell((description,), short=first_clause if usable else ""),
    }


def _some(names: Sequence[str]) -> str:
    """The first names where there are many: the data have them all."""
    more = len(names) - LISTED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:LISTED])} and {more} more"


def about(seconds: float) -> str:
    """An estimate in words: `about 40 s`, `about 12 min`, `about 1.3 h`, no more precise than it is."""
    if seconds < 90:
        return f"about {max(round(seconds, -1), 10):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


def _suite_fields(name: str, probes: list[Probe], taken: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """A suite for programs; `estimated_s` with the rounds that all cases have.

    `taken`: what processes took, by the policy and the case's id.
    """
    try:
        loaded = suite.load_suite(name)
        policy = POLICIES[loaded.policy]
        cases = plan(select([loaded], Selection()), Selection(), probes).cases
        estimate = run_estimate(cases, policy, device_classes(probes), taken[loaded.policy])
        count, seconds = len(cases), estimate.total
    except UsageError as error:
        broken = {"cases": None, "estimated_s": None, "workloads": UNKNOWN}
        return {"suite": name, **broken, "description": f"not usable: {error}"}
    return {
        "suite": name,
        "cases": count,
        "estimated_s": seconds,
        "workloads": ", ".join(dict.fromkeys(entry.workload for entry in loaded.cases)),
        "description": loaded.description,
    }


def _probes(earlier: Sequence[EarlierRun]) -> Iterator[Probe]:
    """What each backend has: as an earlier run found, else what its package and this machine suggest."""
    seen = {probe.target.name: probe for run in earlier for probe in run.info.probes}
    for name in registry.entry_names("benchbench.backends"):
        kind = registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
        if not kind.virtual and _installed(kind):
            yield seen.get(name) or Probe(
                target=Target(name=name, backend=name, python=""), version=None, devices=(_likely_device(),)
            )


def _installed(kind: type[Backend]) -> bool:
    for distribution in kind.distributions:
        try:
            version(distribution)
        except PackageNotFoundError:
            continue
        return True
    return False


def _likely_device() -> Device:
    accelerators = machine().accelerators
    if accelerators:
        return Device(name="accelerator", device_class=DeviceClass.ACCELERATOR, model=accelerators[0])
    return Device(name="cpu", device_class=DeviceClass.CPU, model="")


def environments_document(found: Sequence[EnvironmentState]) -> Document:
    """A row per environment: the versions of what was asked for, the size, and what is wrong."""
    fields = [_environment_fields(each) for each in found]
    return Document(
        name="environments",
        title="Environments",
        tables=(table(map(_environment_row, found, fields)),),
        data=fields,
    )


def _environment_row(found: EnvironmentState, fields: dict[str, Any]) -> dict[str, Content]:
    record = found.record
    main = [f"{name} {record.packages.get(name, '?')}" for name in record.main] if record else []
    return {
        "name": found.name,
        "versions": ", ".join(main) or "–",
        "python": record.python if record else "–",
        "size": number(fields["bytes"], "B"),
        "health": found.health,
        "note": found.reason,
    }


def _environment_fields(found: EnvironmentState) -> dict[str, Any]:
    """An environment for programs, with every package."""
    record = found.record
    return {
        "name": found.name,
        "backend": found.backend,
        "health": found.health,
        "reason": found.reason,
        "interpreter": found.python,
        "bytes": record.bytes
        if record
        else interpreters.bytes_in(interpreters.environment_folder(found.name)),
        "python": record.python if record else None,
        "created": record.created if record else None,
        "requirements": record.requirements if record else (),
        "main": record.main if record else (),
        "packages": record.packages if record else {},
    }


def download_document(plan: BuildPlan) -> Document:
    """A row per file that pip would install, and what an environment of them takes."""
    request, download = plan.request, plan.download
    rows = [
        {
            "package": each.name,
            "version": each.version,
            "size": Cell(("not known",)) if each.bytes is None else number(each.bytes, "B"),
            "from": "the index" if each.remote else "this machine",
        }
        for each in download.packages
    ]
    totals = {"download_bytes": download.remote_bytes, "disk_bytes": download.disk_bytes}
    return Document(
        name="download",
        title=f"What {request.name} takes",
        tables=(table(rows, notes=takes(plan)),),
        data={"name": request.name, **asdict(request), **totals, **asdict(download)},
    )


def takes(plan: BuildPlan) -> list[str]:
    """What an environment takes, in a few lines."""
    request, download = plan.request, plan.download
    unknown = f", {download.unknown} of unknown size" if download.unknown else ""
    fetched = f"{size(download.remote_bytes)} to download, less what is in pip's cache"
    remote = any(each.remote for each in download.packages)
    free = f"{size(download.free_bytes)} are free"
    whose = "torch's build" if request.torch_build else "the build"
    build = f", {whose} for {request.variant} (--variant)" if request.variant else ""
    return [
        f"{request.name}: {', '.join(request.requirements)}{build}",
        f"{len(download.packages)} packages{unknown}",
        fetched if remote else "nothing to download: they are on this machine",
        f"about {size(download.disk_bytes)} on disk in {plan.where}, where {free}",
    ]


def validation_document(found: Validation) -> Document:
    """A row per fault, with its file and line."""
    files = f"{found.files} file{'s' * (found.files != 1)}"
    faults = f"{len(found.faults) or 'no'} fault{'s' * (len(found.faults) != 1)}"
    rows: list[dict[str, Content]] = [
        {"where": _fault_place(each), "fault": each.text} for each in found.faults
    ]
    return Document(
        name="validation",
        title="Validation",
        facts=(f"{faults} in {files}",),
        tables=(table(rows),) if rows else (),
        notes=tuple(f"{_fault_place(each)}: {each.text}" for each in found.remarks),
        data={
            "files": found.files,
            "faults": [_fault_fields(each) for each in found.faults],
            "remarks": [_fault_fields(each) for each in found.remarks],
        },
    )


def _fault_place(fault: Fault) -> str:
    return f"{fault.path}:{fault.line}" if fault.line else str(fault.path)


def _fault_fields(fault: Fault) -> dict[str, Any]:
    return {**asdict(fault), "path": str(fault.path)}
