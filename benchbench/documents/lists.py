"""Lists as documents: workloads, suites, metrics, devices, environments, and faults in files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchbench import registry
from benchbench.analyse.metrics import METRICS
from benchbench.backends.base import Backend, backend_class
from benchbench.documents import document
from benchbench.documents.document import Cell, Column, Content, Document, number, table
from benchbench.environments import interpreters
from benchbench.errors import UnreadableInput, UsageError
from benchbench.format import size
from benchbench.launch import catalogue
from benchbench.launch.project import user_data
from benchbench.machine.environment import machine
from benchbench.model.device import NOT_VERIFIED, Device, DeviceClass, Probe, Target, is_verified
from benchbench.plan import suite
from benchbench.plan.cases import Support, plan, support
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
MAX_LISTED = 3  # workloads of a suite
SUITE_COLUMNS = (
    *map(Column, ("suite", "cases", "time")),
    Column("workloads", rank=1),
    Column("description"),
)


def list_document(subject: str, backends: Sequence[str] = ()) -> Document:
    """Document of `accelbench list SUBJECT`, except runs.

    `backends`: list only the workloads that one of these runs. Raises UsageError for an unknown backend.
    """
    if subject == "suites":
        return suites_document()
    if subject == "workloads":
        return workloads_document(backends)
    return _list_document(subject, subject.capitalize(), LISTS[subject]())


def devices_document(probes: Sequence[Probe]) -> Document:
    """A row per device, and a row for each kind of device or mode that is missing."""
    return _list_document("devices", "Devices", [row for probe in probes for row in _device_rows(probe)])


def _list_document(name: str, title: str, rows: Rows, notes: Iterable[str] = ()) -> Document:
    return Document(name=name, title=title, tables=(document.table(rows, notes=notes),), data=rows)


def _device_rows(probe: Probe) -> Rows:
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
    present = [row(device.name, "ready", _device_note(device)) for device in probe.devices]
    absent = [*probe.missing, *((f"{mode} mode", reason) for mode, reason in probe.missing_modes)]
    return present + [row(kind, "unavailable", reason) for kind, reason in absent]


def _device_note(device: Device) -> str:
    """Hardware, the backend's note, and whether such devices have been verified."""
    parts = (device.model, device.note, "" if is_verified(device.name) else NOT_VERIFIED)
    return "; ".join(filter(None, parts))


def workloads_document(names: Sequence[str] = ()) -> Document:
    """Workloads with the backends that run them: all, or those of these backends with reasons for the others.

    Raises UsageError for an unknown backend.
    """
    rows: Rows = []
    classes = {name: backend_class(name) for name in names or registry.entry_names("benchbench.backends")}
    shown = [name for name, backend in classes.items() if names or not backend.virtual]
    works_by_reason: dict[tuple[str, str], list[str]] = {}
    for name in catalogue.workload_names():
        kind = catalogue.workload_named(name)
        found = [support(name, kind, backend) for backend in shown]
        for entry in found:
            if entry.reason:
                works_by_reason.setdefault((entry.backend, entry.reason), []).append(name)
        supported = [entry for entry in found if not entry.reason]
        if supported or not names:
            rows.append(
                {
                    "workload": name,
                    "phase": kind.phase.value,
                    "backends": ", ".join(map(_support_text, supported)),
                    "parameters": " ".join(
                        f"{key}={str(value).lower()}" for key, value in kind.fields().items()
                    ),
                    "frameworks": ", ".join(kind.frameworks()),
                    "summary": kind.summary,
                }
            )
    notes = [
        f"not on {backend}, {reason}: {', '.join(works)}"
        for (backend, reason), works in works_by_reason.items()
    ]
    return _list_document("workloads", "Workloads", rows, notes if names else ())


def _support_text(entry: Support) -> str:
    """`jax (not with fused=false)`."""
    exceptions = [f"not with {' or '.join(entry.exceptions)}"] if entry.exceptions else []
    details = ", ".join(filter(None, [entry.condition, *exceptions]))
    return f"{entry.backend} ({details})" if details else entry.backend


def _backend_rows() -> Rows:
    """Backends with their modes, the default mode first."""
    rows = []
    for name in registry.entry_names("benchbench.backends"):
        kind = backend_class(name)
        rows.append(
            {
                "backend": name,
                "modes": ", ".join(kind.modes),
                "devices": ", ".join(kind.device_kinds),
                "summary": kind.summary,
            }
        )
    return rows


def _metric_rows() -> Rows:
    """Metrics with their meaning, and how values of several processes are combined."""
    return [
        {
            "metric": metric.name,
            "unit": metric.unit,
            "better": metric.better,
            "is": metric.meaning,
            "over processes": metric.pooled_by,
        }
        for metric in METRICS
    ]


def _data_set_rows() -> Rows:
    """The synthetic data set and the user's data sets."""
    rows = [_data_set_row(SYNTHETIC, note="drawn from a seed")]
    for path in map(Path, user_data()):
        try:
            name, images = read_set(path)
        except UnreadableInput as error:
            rows.append(_data_set_row("–", note=f"unreadable: {error}"))
            continue
        count, classes = len(images.labels), int(images.labels.max()) + 1
        rows.append(_data_set_row(name, f"{count:,}", str(classes), str(path)))
    return rows


def _data_set_row(name: str, images: str = "–", classes: str = "–", note: str = "") -> dict[str, str]:
    return {"source": name, "images": images, "classes": classes, "note": note}


LISTS: dict[str, Callable[[], Rows]] = {
    "backends": _backend_rows,
    "metrics": _metric_rows,
    "data": _data_set_rows,
}


def suites_document() -> Document:
    """A row per suite; invalid suites have an error message."""
    probes = list(_likely_probes())
    data = [_suite_fields(name, probes) for name in suite.suite_names()]
    suites_table = document.table([_suite_row(fields) for fields in data], SUITE_COLUMNS)
    return Document(name="suites", title="Suites", tables=(suites_table,), data=data)


def _suite_row(fields: dict[str, Any]) -> dict[str, Content]:
    seconds, usable = fields["estimated_s"], fields["cases"] is not None
    time, description = rough_duration(seconds) if seconds else UNKNOWN, fields["description"]
    first_clause = re.split(r"[:;,.] | \(", description)[0].removesuffix(".")
    return {
        "suite": fields["suite"],
        "cases": str(fields["cases"]) if usable else UNKNOWN,
        "time": Cell((time,), short=time.removeprefix("about ")),
        "workloads": _first_names(fields["workloads"].split(", ")),
        "description": Cell((description,), short=first_clause if usable else ""),
    }


def _first_names(names: Sequence[str]) -> str:
    """The first names if there are many; the JSON form has all of them."""
    more = len(names) - MAX_LISTED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:MAX_LISTED])} and {more} more"


def rough_duration(seconds: float) -> str:
    """Rounded duration: `about 40 s`, `about 12 min`, `about 1.3 h`."""
    if seconds < 90:
        return f"about {max(round(seconds, -1), 10):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


def _suite_fields(name: str, probes: list[Probe]) -> dict[str, Any]:
    """JSON form of a suite; `estimated_s` covers the rounds that every case gets."""
    try:
        loaded = suite.load_suite(name)
        cases = plan(select([loaded], Selection()), Selection(), probes).cases
        estimate = run_estimate(cases, POLICIES[loaded.policy], device_classes(probes))
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


def _likely_probes() -> Iterator[Probe]:
    """Probe of each backend, inferred from installed packages and the machine."""
    for name in registry.entry_names("benchbench.backends"):
        kind = backend_class(name)
        if not kind.virtual and _is_installed(kind):
            target = Target(name=name, backend=name, python="")
            yield Probe(target=target, version=None, devices=(_likely_device(),))


def _is_installed(kind: type[Backend]) -> bool:
    for distribution in kind.distributions:
        try:
            version(distribution)
        except PackageNotFoundError:
            continue
        return True
    return False


def _likely_device() -> Device:
    """The first accelerator of the machine, otherwise its CPU."""
    accelerators = machine().accelerators
    if accelerators:
        return Device(name="accelerator", device_class=DeviceClass.ACCELERATOR, model=accelerators[0])
    return Device(name="cpu", device_class=DeviceClass.CPU, model="")


def environments_document(environments: Sequence[EnvironmentState]) -> Document:
    """A row per environment: versions of the requested packages, size and faults."""
    fields = [_environment_fields(environment) for environment in environments]
    return Document(
        name="environments",
        title="Environments",
        tables=(table(map(_environment_row, environments, fields)),),
        data=fields,
    )


def _environment_row(environment: EnvironmentState, fields: dict[str, Any]) -> dict[str, Content]:
    record = environment.record
    main = [f"{name} {record.packages.get(name, '?')}" for name in record.main] if record else []
    return {
        "name": environment.name,
        "versions": ", ".join(main) or "–",
        "python": record.python if record else "–",
        "size": number(fields["bytes"], "B"),
        "health": environment.health,
        "note": environment.reason,
    }


def _environment_fields(environment: EnvironmentState) -> dict[str, Any]:
    """JSON form of an environment, with all packages."""
    record = environment.record
    return {
        "name": environment.name,
        "backend": environment.backend,
        "health": environment.health,
        "reason": environment.reason,
        "interpreter": environment.python,
        "bytes": record.bytes
        if record
        else interpreters.bytes_in(interpreters.environment_folder(environment.name)),
        "python": record.python if record else None,
        "created": record.created if record else None,
        "requirements": record.requirements if record else (),
        "main": record.main if record else (),
        "packages": record.packages if record else {},
    }


def build_lines(plan: BuildPlan) -> list[str]:
    """Requirements, number of packages, download size and disk space of an environment."""
    request, download = plan.request, plan.download
    unknown = f", {download.unknown} of unknown size" if download.unknown else ""
    fetched = f"{size(download.remote_bytes)} to download, less what is in pip's cache"
    needs_download = any(package.remote for package in download.packages)
    free = f"{size(download.free_bytes)} are free"
    builder = "torch's build" if request.torch_build else "the build"
    build = f", {builder} for {request.variant} (--variant)" if request.variant else ""
    return [
        f"{request.name}: {', '.join(request.requirements)}{build}",
        f"{len(download.packages)} packages{unknown}",
        fetched if needs_download else "nothing to download: they are on this machine",
        f"about {size(download.disk_bytes)} on disk in {interpreters.environments_folder()}, where {free}",
    ]


def validation_document(validation: Validation) -> Document:
    """A row per fault, with file and line."""
    files = f"{validation.files} file{'s' * (validation.files != 1)}"
    faults = f"{len(validation.faults) or 'no'} fault{'s' * (len(validation.faults) != 1)}"
    rows: list[dict[str, Content]] = [
        {"where": _fault_place(fault), "fault": fault.text} for fault in validation.faults
    ]
    return Document(
        name="validation",
        title="Validation",
        facts=(f"{faults} in {files}",),
        tables=(table(rows),) if rows else (),
        notes=tuple(f"{_fault_place(fault)}: {fault.text}" for fault in validation.remarks),
        data={
            "files": validation.files,
            "faults": [_fault_fields(fault) for fault in validation.faults],
            "remarks": [_fault_fields(fault) for fault in validation.remarks],
        },
    )


def _fault_place(fault: Fault) -> str:
    return f"{fault.path}:{fault.line}" if fault.line else str(fault.path)


def _fault_fields(fault: Fault) -> dict[str, Any]:
    return {**asdict(fault), "path": str(fault.path)}
