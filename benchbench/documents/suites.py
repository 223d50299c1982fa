"""Suites as a list: what each would measure here, and about how long that takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.documents import document
from benchbench.documents.document import Document
from benchbench.errors import UnreadableInput, UsageError
from benchbench.machine.environment import fingerprint, machine
from benchbench.model.device import Device, DeviceClass, Probe, Target
from benchbench.model.measurement import Measurement
from benchbench.model.run import Run
from benchbench.plan import suite
from benchbench.plan.cases import plan
from benchbench.plan.costs import estimate_s
from benchbench.plan.selection import Selection, select
from benchbench.plan.suite import Suite
from benchbench.stats import median
from benchbench.store import runs, selectors
from benchbench.timing.policy import POLICIES

RECENT = 20  # runs that are looked into
UNKNOWN = "–"
LISTED = 3  # workloads of a suite


def suites_document(results: Path) -> Document:
    """A row per suite; one with a mistake, its own or of a workload in it, says so in its row."""
    earlier = [run for run in _recent(results) if fingerprint(run.info.machine) == fingerprint(machine())]
    probes, walls_s = list(_probes(earlier)), _walls_s(earlier)
    data = [_fields(name, probes, walls_s) for name in suite.suite_names()]
    return Document(
        name="suites", title="Suites", tables=(document.table([_shown(each) for each in data]),), data=data
    )


def _shown(fields: dict[str, Any]) -> dict[str, str]:
    seconds = fields["estimated_s"]
    return {
        "suite": fields["suite"],
        "cases": UNKNOWN if fields["cases"] is None else str(fields["cases"]),
        "time here": about(seconds) if seconds else UNKNOWN,
        "workloads": _some(fields["workloads"].split(", ")),
        "description": fields["description"],
    }


def _some(names: Sequence[str]) -> str:
    """The first ones where there are many: the data have them all."""
    more = len(names) - LISTED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:LISTED])} and {more} more"


def about(seconds: float) -> str:
    """`about 40 s`, `about 12 min`, `about 1.3 h`: no more than an estimate knows."""
    if seconds < 90:
        return f"about {max(round(seconds, -1), 10):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


def _fields(name: str, probes: list[Probe], walls_s: Mapping[str, float]) -> dict[str, Any]:
    """For programs; `estimated_s` of the rounds that all cases have."""
    try:
        loaded = suite.load_suite(name)
        count, seconds = _forecast(loaded, probes, walls_s)
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


def _forecast(loaded: Suite, probes: list[Probe], walls_s: Mapping[str, float]) -> tuple[int, float]:
    """How many cases, and the seconds: as earlier runs took, else by their cost and a rough rate."""
    policy = POLICIES[loaded.policy]
    classes = {
        (probe.target.name, device.name): device.device_class for probe in probes for device in probe.devices
    }
    cases = plan(select([loaded], Selection()), Selection(), probes).cases
    each_s = (
        walls_s.get(case.id) or estimate_s(case, policy, classes[case.target, case.device]) for case in cases
    )
    return len(cases), policy.rounds * sum(each_s)


def _recent(results: Path) -> Iterator[Run]:
    """The newest last; those that cannot be read are `list runs`' business."""
    for name in selectors.run_ids(results)[-RECENT:]:
        try:
            yield runs.read_run(results / runs.RUNS / name)
        except UnreadableInput:
            continue


def _walls_s(earlier: list[Run]) -> dict[str, float]:
    """Case id → what a process of it took."""
    taken: dict[str, list[float]] = {}
    for record in (record for run in earlier for record in run.records):
        wall = record.stages_s.get("wall")
        if wall and isinstance(record.outcome, Measurement):
            taken.setdefault(record.case.id, []).append(wall)
    return {case: median(walls) for case, walls in taken.items()}


def _probes(earlier: list[Run]) -> Iterator[Probe]:
    """What each backend has: as an earlier run found, else what its package and this machine suggest."""
    seen = {probe.target.name: probe for run in earlier for probe in run.info.probes}
    for name in registry.entry_names("benchbench.backends"):
        kind = registry.load_class("benchbench.backends", name, Backend)  # type: ignore[type-abstract]
        if not kind.virtual and _installed(kind):
            yield seen.get(name) or Probe(
                target=Target(name=name, backend=name, python=""), version=None, devices=(_device(),)
            )


def _installed(kind: type[Backend]) -> bool:
    for distribution in kind.distributions:
        try:
            version(distribution)
        except PackageNotFoundError:
            continue
        return True
    return False


def _device() -> Device:
    accelerators = machine().accelerators
    if accelerators:
        return Device(name="accelerator", device_class=DeviceClass.ACCELERATOR, model=accelerators[0])
    return Device(name="cpu", device_class=DeviceClass.CPU, model="")
