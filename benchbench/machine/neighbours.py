"""What other processes use of this machine's CPUs: all but this one and those below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchbench.machine.kernel import CpuTimes, allowed_cpus, cpu_times
from benchbench.machine.telemetry import cpu_seconds

if TYPE_CHECKING:
    import psutil

PAUSE_S = 0.5  # fifty ticks of /proc/stat: a fiftieth of a core can be told
NAMED = 3  # processes that are named at most, and
LEAST = 0.05  # cores one must have used for it


@dataclass(frozen=True, slots=True)
class Beginning:
    """A moment that others are watched from: CPU times of all, and of this process and those below it."""

    at_s: float
    cpu: CpuTimes | None
    own_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The CPU times around `seconds` in which accelbench itself used `own_s`.

    `busiest`: program → cores it used meanwhile, most first; empty where nobody looked.
    """

    seconds: float
    cpus: int
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...] = ()
    own_s: float = 0.0

    @property
    def cores(self) -> float | None:
        """Cores that others used; None where the system does not tell."""
        if self.before is None or self.after is None:
            return None
        return max(self.after.busy_s - self.before.busy_s - self.own_s, 0.0) / self.seconds

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


def beginning(root: Path = Path("/")) -> Beginning:
    """This moment."""
    return Beginning(time.monotonic(), cpu_times(root, allowed_cpus()), cpu_seconds())


def pause_since(
    since: Beginning,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Pause:
    """The pause from `start` until now, once half a second is over."""
    sleep(max(PAUSE_S - (clock() - since.at_s), 0.0))
    now = beginning(root)
    return Pause(
        seconds=now.at_s - since.at_s,
        cpus=len(allowed_cpus()),
        before=since.cpu,
        after=now.cpu,
        own_s=now.own_s - since.own_s,
    )


def watch_neighbours(root: Path = Path("/"), sleep: Callable[[float], None] = time.sleep) -> Pause:
    """Half a second from now, in which this process sleeps, and who computed most."""
    others = _others()
    pause = pause_since(beginning(root), root, sleep)
    return replace(pause, busiest=tuple(_busiest(others)))


def _others() -> list[psutil.Process]:
    """Every process but this one and those below it, its CPU time counted from now."""
    import psutil

    own = psutil.Process()
    ours = {own.pid, *(each.pid for each in own.children(recursive=True))}
    found = [each for each in psutil.process_iter(["name"]) if each.pid not in ours]
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
