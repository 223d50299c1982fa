"""Suites as a list: what each would measure here, and about how long that takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchbench import registry
from benchbench.backends.base import Backend
from benchbench.documents import document
from benchbench.documents.document import Cell, Column, Content, Document
from benchbench.documents.earlier_runs import processes_s, runs_here
from benchbench.errors import UsageError
from benchbench.machine.environment import machine
from benchbench.model.device import Device, DeviceClass, Probe, Target
from benchbench.model.run import Run
from benchbench.plan import suite
from benchbench.plan.cases import plan
from benchbench.plan.estimates import device_classes, run_estimate
from benchbench.plan.suite import Selection, Suite, select
from benchbench.timing.policy import POLICIES

UNKNOWN = "–"
LISTED = 3  # workloads of a suite
COLUMNS = (
    *map(Column, ("suite", "cases", "time here")),
    Column("workloads", rank=1),
    Column("description"),
)


def suites_document(results: Path) -> Document:
    """A row per suite; one with a mistake, its own or of a workload in it, says so in its row."""
    earlier = runs_here(results)
    probes = list(_probes(earlier))
    data = [_fields(name, probes, earlier) for name in suite.suite_names()]
    shown = document.table([_shown(each) for each in data], COLUMNS)
    return Document(name="suites", title="Suites", tables=(shown,), data=data)


def _shown(fields: dict[str, Any]) -> dict[str, Content]:
    seconds, usable = fields["estimated_s"], fields["cases"] is not None
    time, description = about(seconds) if seconds else UNKNOWN, fields["description"]
    return {
        "suite": fields["suite"],
        "cases": str(fields["cases"]) if usable else UNKNOWN,
        "time here": Cell((time,), short=time.removeprefix("about ")),
        "workloads": _some(fields["workloads"].split(", ")),
        "description": Cell((description,), short=_first_clause(description) if usable else ""),
    }


def _first_clause(description: str) -> str:
    """What the suite is, without the rest of the sentence."""
    return re.split(r"[:;,.] | \(", description)[0].removesuffix(".")


def _some(names: Sequence[str]) -> str:
    """The first ones where there are many: the data have them all."""
    more = len(names) - LISTED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:LISTED])} and {more} more"


def about(seconds: float) -> str:
    """`about 40 s`, `about 12 min`, `about 1.3 h`: no more than an estimate knows."""
    if seconds < 90:
        return f"about {max(round(seconds, -1), 10):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


def _fields(name: str, probes: list[Probe], earlier: Sequence[Run]) -> dict[str, Any]:
    """For programs; `estimated_s` with the rounds that all cases have."""
    try:
        loaded = suite.load_suite(name)
        count, seconds = _forecast(loaded, probes, earlier)
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


def _forecast(loaded: Suite, probes: list[Probe], earlier: Sequence[Run]) -> tuple[int, float]:
    """How many cases, and the seconds: of those measured earlier as they took, else by their cost."""
    policy = POLICIES[loaded.policy]
    cases = plan(select([loaded], Selection()), Selection(), probes).cases
    taken = processes_s(earlier, policy)
    return len(cases), run_estimate(cases, policy, device_classes(probes), taken).total


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
