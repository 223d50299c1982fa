"""Where the time of some steps went, by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.record import SCHEMA
from benchbench.stats import mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of a profile: all calls of one name while `Profile.steps` steps ran.

    Self times of all operators add up to the time in which any was running (docs/profiling.md): what ran
    at once shares it. Total times are of threads or streams, and hold what the operator called.
    """

    name: str
    calls: int
    host_self_s: float
    host_total_s: float
    device_self_s: float = 0.0
    device_total_s: float = 0.0
    flops: float | None = None  # as the framework's profiler counts them; None where it does not
    bytes: float | None = None  # read and written, likewise
    allocated_bytes: int | None = None  # asked of the framework's allocator, likewise
    kernels: tuple[str, ...] = ()  # what it ran, where the profiler tells, the longest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The stretches of a profile in which no operator was running."""

    count: int  # 0 beside a total: only their sum is known
    total_s: float
    median_s: float
    longest_s: float
    after: str  # the operator before the longest, "" at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Seconds in which something passed between devices. `exposed_s`: while nothing else ran beside it.

    `computing_s`: in which anything else ran, whether something passed or not; None where that was not noted.
    """

    total_s: float
    exposed_s: float
    computing_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """What a rank's own profile comes to. Sums over all steps."""

    device: str
    wall_s: float
    busy_s: float
    communication: Communication

    @property
    def idle_share(self) -> float | None:
        """The share of a step without computation: it waited, or was in Python between operators."""
        computing_s = self.communication.computing_s
        return None if computing_s is None else max(1 - computing_s / self.wall_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of some steps went, by the framework's own profiler. Sums over all steps.

    Of several ranks, all but `ranks` and `traces` is of the first.
    """

    status: Literal["ok"] = "ok"
    profiler: str  # and its version
    steps: int
    step_s: tuple[float, ...]  # seconds per step of each block, by the case's own timer, profiler on
    plain_step_s: tuple[float, ...] = ()  # likewise just before, in the same process, profiler off
    wall_s: float  # from the first step's start to the last one's end
    on_device: bool  # whether `busy_s` and `gaps` are of an accelerator; else of the host
    busy_s: float
    gaps: Gaps
    operators: tuple[Operator, ...]  # the longest self time first
    memory_at_s: tuple[float, ...] = ()  # since the first step's start
    memory_bytes: tuple[int, ...] = ()  # in use then, by the framework's allocator
    traces: tuple[str, ...] = ()  # files: what the profiler wrote, as it wrote it
    communication: Communication | None = None  # None: the trace has no operator that passes anything
    ranks: tuple[RankProfile, ...] = ()  # where several processes compute a step

    @property
    def communication_share(self) -> float | None:
        """The share of a step in which something passed between devices: the mean of the ranks."""
        if self.ranks:
            return mean([each.communication.total_s / each.wall_s for each in self.ranks])
        return self.communication.total_s / self.wall_s if self.communication else None

    @property
    def idle_share(self) -> float | None:
        """The share of a step in which a rank computes nothing, the mean of ranks; None if not all know."""
        idle = [rank.idle_share for rank in self.ranks]
        known = [share for share in idle if share is not None]
        return mean(known) if known and len(known) == len(idle) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One file of a run: a case and its profile, or why there is none."""

    schema: int = SCHEMA
    case: Case
    framework_version: str | None
    outcome: Profile | Failure
