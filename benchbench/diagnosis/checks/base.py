"""Input and output of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchbench.machine.kernel import CpuTimes
from benchbench.machine.nvml import Nvml


class Level(StrEnum):
    """Severity, worst first. `problem`: do not trust results until it is fixed."""

    PROBLEM = "problem"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine as checks see it. `root` contains proc and sys."""

    root: Path
    cpus: tuple[int, ...]  # CPUs that this process may use
    threads: int  # default number of threads of a run
    pause_s: float  # between `before` and `after`; this process slept meanwhile
    before: CpuTimes | None
    after: CpuTimes | None
    busiest: tuple[tuple[str, float], ...]  # program and the cores it used in the pause, busiest first
    nvml: Nvml | str  # or why it is missing
    clock: Callable[[], float]  # the clock that times blocks, in seconds
    synchronised: bool | str  # state of the wall clock, or why it is unknown
    temporary: Path  # folder of a run's compile caches
    free_bytes: int | None  # in `temporary`
    shared_bytes: int | None  # free in /dev/shm; None if it is missing
    packages: Mapping[str, str]  # version of each Python package beside accelbench


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation of a check, as text and, if possible, as a number."""

    level: Level
    text: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """Check of one condition. `observe` may return several observations, such as one per GPU, or none."""

    name: str
    observe: Callable[[Host], Sequence[Observation]]
    effect: str  # on measurements, when it is not ok
    remedy: str


def graded(value: float, warning: float, problem: float = float("inf")) -> Level:
    """Level of a value that is worse the larger it is. A limit belongs to the worse level."""
    if value >= problem:
        return Level.PROBLEM
    return Level.WARNING if value >= warning else Level.OK


def unknown_result(reason: str) -> tuple[Observation, ...]:
    """Result of a check without an answer."""
    return (Observation(Level.UNKNOWN, reason),)
