"""What on this machine spoils measurements: every check, its findings, worst first."""

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
    """What a check saw; `value` is the figure in `seen`, in `unit`, where there is one."""

    check: str
    status: Level
    seen: str
    value: float | None
    unit: str
    effect: str  # of what the check is about, were it wrong
    remedy: str

    @property
    def wrong(self) -> bool:
        """Whether there is something to do about it."""
        return self.status in (Level.PROBLEM, Level.WARNING)


def examine(host: Host) -> list[Finding]:
    """What every check saw, worst first; checks of equal status in the table's order."""
    found = [
        Finding(
            check=check.name,
            status=sight.level,
            seen=sight.seen,
            value=sight.value,
            unit=sight.unit,
            effect=check.effect,
            remedy=check.remedy,
        )
        for check in CHECKS
        for sight in check.look(host)
    ]
    return sorted(found, key=lambda finding: list(Level).index(finding.status))


def this_host(nvml: Nvml | str, sleep: Callable[[float], None] = time.sleep) -> Host:
    """Look at this machine: its other processes are watched for half a second."""
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
    """Bytes free on its file system; None where it does not tell, or there is no such folder."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free
    return None
