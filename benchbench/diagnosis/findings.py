"""Run every check of the machine and sort the findings, worst first."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchbench.diagnosis.checks.base import Host, Level
from benchbench.diagnosis.checks.clocks import wall_clock
from benchbench.diagnosis.checks.table import CHECKS
from benchbench.machine.environment import default_threads
from benchbench.machine.kernel import allowed_cpus
from benchbench.machine.nvml import Nvml
from benchbench.machine.sampler import watch_neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of a check. `value` is the number in the text `seen`, in `unit`, if there is one."""

    check: str
    status: Level
    seen: str
    value: float | None
    unit: str
    effect: str  # on measurements, if the check is not ok
    remedy: str

    @property
    def wrong(self) -> bool:
        """True for problems and warnings."""
        return self.status in (Level.PROBLEM, Level.WARNING)


def examine(host: Host) -> list[Finding]:
    """Run every check, worst finding first; findings of equal status in the order of the table."""
    findings = [
        Finding(
            check=check.name,
            status=observation.level,
            seen=observation.text,
            value=observation.value,
            unit=observation.unit,
            effect=check.effect,
            remedy=check.remedy,
        )
        for check in CHECKS
        for observation in check.observe(host)
    ]
    return sorted(findings, key=lambda finding: list(Level).index(finding.status))


def this_host(nvml: Nvml | str, sleep: Callable[[float], None] = time.sleep) -> Host:
    """Inspect this machine, watching its other processes for half a second."""
    root = Path("/")
    pause = watch_neighbours(root, sleep)
    temporary = Path(tempfile.gettempdir())
    return Host(
        root=root,
        cpus=allowed_cpus(),
        threads=default_threads(root),
        pause_s=pause.seconds,
        before=pause.before,
        after=pause.after,
        busiest=pause.busiest,
        nvml=nvml,
        clock=time.perf_counter,
        synchronised=wall_clock(),
        temporary=temporary,
        free_bytes=_free_bytes(temporary),
        shared_bytes=_free_bytes(root / "dev/shm"),
    )


def _free_bytes(folder: Path) -> int | None:
    """Free bytes of a folder's file system, or None if it is missing or unknown."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return None
