"""The energy counters of CPU packages: RAPL, by docs.kernel.org/power/powercap/powercap.html."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchbench.machine.kernel import read_number, read_text

FOLDER = "sys/class/powercap"


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """One counter: microjoules that start again from 0 after `range_uj`."""

    path: Path
    range_uj: int


def cpu_packages(root: Path) -> tuple[CpuPackage, ...] | str:
    """The counter of every CPU package, or why there is none to read.

    Packages only: the cores are counted in them, `psys` counts them again, memory is not in them.
    """
    zones = sorted((root / FOLDER).glob("intel-rapl:[0-9]*"))  # AMD's counters have this name too
    found = [zone for zone in zones if read_text(zone / "name").startswith("package")]
    if not found:
        return "this machine shows no RAPL counters"
    try:
        for zone in found:
            (zone / "energy_uj").read_text()
    except OSError as error:
        return f"RAPL counters cannot be read: {error.strerror}"
    return tuple(
        CpuPackage(zone / "energy_uj", read_number(zone / "max_energy_range_uj") or 0) for zone in found
    )


def read_uj(found: Sequence[CpuPackage]) -> tuple[int, ...] | None:
    """What each counter shows now; None where one does not."""
    values = [read_number(package.path) for package in found]
    known = tuple(value for value in values if value is not None)
    return known if known and len(known) == len(values) else None


def used_j(readings: Sequence[tuple[int, ...]], ranges_uj: Sequence[int]) -> tuple[float, ...]:
    """Joules of all packages since the first reading, at each reading.

    A counter that went down has started again once: readings come faster than a counter's range lasts.
    """
    total, joules = 0, [0.0] if readings else []
    for before, after in pairwise(readings):
        for old, new, span in zip(before, after, ranges_uj, strict=True):
            total += new - old if new >= old else new - old + span
        joules.append(total / 1e6)
    return tuple(joules)
