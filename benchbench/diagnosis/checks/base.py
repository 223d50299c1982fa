"""What a check is given and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchbench.machine.kernel import CpuTimes
from benchbench.machine.nvml import Nvml


class Level(StrEnum):
    """How bad it is, worst first. `problem`: results are not to be trusted until it is gone."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as checks see it. `root` holds proc and sys."""

    root: Path
    cpus: tuple[int, ...]  # that this process may run on
    threads: int  # that a run would use
    pause_s: float  # between `before` and `after`, in which this process slept
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...]  # program → cores it used in the pause, most first
    nvml: Nvml | str  # or why there is none
    clock: Callable[[], float]  # that times blocks, in seconds
    synchronised: bool | str  # the wall clock; or why that is not known
    temporary: Path  # where a run keeps its compile caches
    free_bytes: int | None  # there
    shared_bytes: int | None  # free in /dev/shm; None where there is none


@dataclass(frozen=True, slots=True)
class Sight:
    """What a check saw: for people, and as a number where it is one."""

    level: Level
    seen: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """`look` may see several things, one per GPU; none where it has nothing to look at."""

    name: str
    look: Callable[[Host], Sequence[Sight]]
    effect: str  # on measurements, when it is not ok
    remedy: str


def graded(value: float, warning: float, problem: float = float("inf")) -> Level:
    """The level of a value that is worse the larger it is; each limit is the first value beyond."""
    if value >= problem:
        return Level.PROBLEM
    return Level.WARNING if value >= warning else Level.OK


def unknown_result(why: str) -> tuple[Sight, ...]:
    """The result of a check that has no answer."""
    return (Sight(Level.UNKNOWN, why),)
