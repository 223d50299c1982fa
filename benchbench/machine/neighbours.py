"""What other processes use of this machine's CPUs while this one sleeps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.machine.kernel import CpuTimes, allowed_cpus, cpu_times

if TYPE_CHECKING:
    import psutil

PAUSE_S = 0.5  # fifty ticks of /proc/stat: a fiftieth of a core can be told
NAMED = 3  # processes that are named at most, and
LEAST = 0.05  # cores one must have used for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The CPU times around a pause of `seconds`; `busiest`: program → cores it used meanwhile, most first."""

    seconds: float
    cpus: int
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...]

    @property
    def cores(self) -> float | None:
        """That others used; None where the system does not tell."""
        if self.before is None or self.after is None:
            return None
        return (self.after.busy_s - self.before.busy_s) / self.seconds

    @property
    def stolen(self) -> float | None:
        """Cores' worth of time that the hypervisor withheld; None where the system does not tell."""
        if self.before is None or self.after is None:
            return None
        return (self.after.steal_s - self.before.steal_s) / self.seconds

    @property
    def text(self) -> str:
        """`others use 1.50 of 2 CPUs (python 1.00, cc1 0.50)`."""
        names = ", ".join(f"{name} {used:.2f}" for name, used in self.busiest)
        return f"others use {self.cores or 0.0:.2f} of {self.cpus} CPUs{f' ({names})' if names else ''}"


def watch_neighbours(root: Path = Path("/"), sleep: Callable[[float], None] = time.sleep) -> Pause:
    """The CPUs that this process may use, over half a second in which it sleeps."""
    cpus, others = allowed_cpus(), _others()
    start, before = time.monotonic(), cpu_times(root, cpus)
    sleep(PAUSE_S)
    after, pause_s = cpu_times(root, cpus), time.monotonic() - start
    busiest = tuple(_busiest(others))
    return Pause(seconds=pause_s, cpus=len(cpus), before=before, after=after, busiest=busiest)


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
