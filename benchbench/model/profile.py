"""Profiles: time of some steps by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchbench.model.case import Case
from benchbench.model.measurement import Failure
from benchbench.model.run import SCHEMA
from benchbench.stats import mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of a profile: all calls of one operator during `Profile.steps` steps.

    Self times of all operators add up to the time in which any operator ran (docs/profiling.md); concurrent
    operators share it. Total times are per thread or stream and include called operators.
    """

    name: str
    calls: int
    host_self_s: float
    host_total_s: float
    device_self_s: float = 0.0
    device_total_s: float = 0.0
    flops: float | None = None  # counted by the framework's profiler; None if it does not count
    bytes: float | None = None  # read and written; None if not counted
    allocated_bytes: int | None = None  # from the framework's allocator; None if not counted
    kernels: tuple[str, ...] = ()  # kernels that it launched, longest first, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Stretches of a profile in which no operator ran."""

    count: int  # 0 with a total: only the sum is known
    total_s: float
    median_s: float
    longest_s: float
    after: str  # operator before the longest gap; "" at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Time of transfers between devices. `exposed_s` is the part in which nothing else ran.

    `computing_s` is the time in which anything else ran; None if not recorded.
    """

    total_s: float
    exposed_s: float
    computing_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """Summary of one rank's profile; sums over all steps."""

    device: str
    wall_s: float
    busy_s: float
    communication: Communication

    @property
    def idle_share(self) -> float | None:
        """Share of a step without computation: waiting, or Python between operators. None if unknown."""
        computing_s = self.communication.computing_s
        return None if computing_s is None else max(1 - computing_s / self.wall_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Time of some steps from the framework's own profiler; sums over all steps.

    With several ranks, all fields except `ranks` and `traces` describe the first rank.
    """

    status: Literal["ok"] = "ok"
    profiler: str  # with its version
    steps: int
    step_s: tuple[float, ...]  # seconds per step of each block, by the case's timer, with the profiler
    plain_step_s: tuple[float, ...] = ()  # the same without the profiler, just before in the same process
    wall_s: float  # from the start of the first step to the end of the last
    on_device: bool  # `busy_s` and `gaps` refer to an accelerator, otherwise to the host
    busy_s: float
    gaps: Gaps
    operators: tuple[Operator, ...]  # by self time, longest first
    memory_at_s: tuple[float, ...] = ()  # since the start of the first step
    memory_bytes: tuple[int, ...] = ()  # in use at those times, by the framework's allocator
    traces: tuple[str, ...] = ()  # unchanged files of the profiler
    communication: Communication | None = None  # None: the trace has no transfers
    ranks: tuple[RankProfile, ...] = ()  # if several processes compute a step

    @property
    def communication_share(self) -> float | None:
        """Share of a step with transfers between devices, mean over ranks; None without any."""
        if self.ranks:
            return mean([rank.communication.total_s / rank.wall_s for rank in self.ranks])
        return self.communication.total_s / self.wall_s if self.communication else None

    @property
    def idle_share(self) -> float | None:
        """Share of a step without computation, mean over ranks; None if it is unknown for a rank."""
        idle = [rank.idle_share for rank in self.ranks]
        known_shares = [share for share in idle if share is not None]
        return mean(known_shares) if known_shares and len(known_shares) == len(idle) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """One stored profile: a case and its profile, or the failure."""

    schema: int = SCHEMA
    case: Case
    framework_version: str | None
    outcome: Profile | Failure
