"""What on this machine spoils measurements: every check, its findings, worst first."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.diagnosis.checks.base import Host, Level
from benchbench.diagnosis.checks.clocks import wall_clock
from benchbench.diagnosis.checks.table import CHECKS
from benchbench.machine.environment import usable_threads
from benchbench.machine.kernel import allowed_cpus, cpu_times
from benchbench.machine.nvml import Nvml

if TYPE_CHECKING:
    import psutil

PAUSE_S = 0.5  # fifty ticks of /proc/stat: a fiftieth of a core can be told
NAMED = 3  # processes that are named at most, and
LEAST = 0.05  # cores one must have used for it


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
    """This machine, after a pause of half a second in which its other processes are watched."""
    root, cpus, others = Path("/"), allowed_cpus(), _others()
    start, before = time.monotonic(), cpu_times(root, cpus)
    sleep(PAUSE_S)
    after, pause = cpu_times(root, cpus), time.monotonic() - start
    temporary = Path(tempfile.gettempdir())
    free = None
    with suppress(OSError):
        free = shutil.disk_usage(temporary).free
    return Host(
        root=root,
        cpus=cpus,
        threads=usable_threads(root),
        pause_s=pause,
        before=before,
        after=after,
        busiest=tuple(_busiest(others)),
        nvml=nvml,
        clock=time.perf_counter,
        synchronised=wall_clock(),
        temporary=temporary,
        free_bytes=free,
    )


def _others() -> list[psutil.Process]:
    """Every other process, its CPU time counted from now."""
    import psutil

    found = [each for each in psutil.process_iter(["name"]) if each.pid != os.getpid()]
    _used(found)
    return found


def _busiest(processes: Sequence[psutil.Process]) -> Iterator[tuple[str, float]]:
    """The programs that computed most since they were last looked at."""
    for cores, name in sorted(_used(processes), reverse=True)[:NAMED]:
        if cores >= LEAST:
            yield name, cores


def _used(processes: Sequence[psutil.Process]) -> list[tuple[float, str]]:
    """Cores and name of each process that is still there."""
    import psutil

    found = []
    for process in processes:
        with suppress(psutil.Error):
            found.append((process.cpu_percent() / 100, str(process.info["name"] or "?")))
    return found
