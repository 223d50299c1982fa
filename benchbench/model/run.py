"""The records of one invocation, and what holds for all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchbench.model.case import Case, LeftOut
from benchbench.model.device import Machine, Probe
from benchbench.model.options import Allocator, Isolation, Weights
from benchbench.model.record import SCHEMA, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long to measure. Sources: docs/measuring.md."""

    name: str
    rounds: int
    precision: float = 0.01  # half width of the median's interval / median
    min_s: float = 0.5  # of measuring, per process
    max_s: float = 10.0
    max_blocks: int = 1000
    min_blocks: int = 30  # of fast steps
    least_blocks: int = 5  # of slow ones
    warmup_min_s: float = 0.5
    warmup_min_blocks: int = 8
    warmup_max_s: float = 20.0
    window_s: float = 0.5  # what a warm-up window of at most 20 blocks spans
    slow_s: float = 3.0  # fewer than `min_blocks` will do where they span this
    most_rounds: int | None = None  # of works whose fastest is not told; None: no more than the others
    budget_s: float | None = None  # wall time for more rounds: of such works, then of the widest cases
    settled: float = 0.005  # half width between processes at which a budget leaves a case alone
    turn_s: float = 0.03  # of a case's turns beside others
    cycles: int = 30  # turns of each case in a heat, and
    min_cycles: int = 5  # of slow steps: enough where all cases together took `max_s` each
    reimports: bool = True  # whether the processes of each heat are forked from templates that imported anew

    @property
    def planned(self) -> int | None:
        """How many rounds of a case tell its spread; None: all, since it does not decide their number."""
        return None if self.most_rounds is None and self.budget_s is None else self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What changes the answer and is fixed before a worker starts."""

    threads: int
    allocator: Allocator = Allocator.STEADY
    isolation: Isolation = Isolation.FORK
    timeout_s: float = 300.0
    max_error: float | None = None  # of a user's model on an engine that loses precision; None: on none
    input: str = ""  # the file of a user's model's inputs, as typed; "": as the model says
    weights: Weights = Weights.DRAWN  # of a user's model


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """The other of two interleaved runs: of each round, a process of one came after one of the other."""

    label: str  # of this run's side, as typed
    run: str  # id of the other
    cases: dict[str, str]  # case id here → its counterpart's there, those left out of both included


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A later part of a run that was interrupted; its first part is as the head says."""

    started: str  # ISO 8601, UTC
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The head of a run, written before the first case starts."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    command: tuple[str, ...]
    version: str
    machine: Machine
    settings: Settings
    policy: Policy
    seed: int
    probes: tuple[Probe, ...]
    plan: tuple[Case, ...]
    left_out: tuple[LeftOut, ...]
    partner: Partner | None = None
    tags: dict[str, str] = field(default_factory=dict)  # what it is filed under, `commit` among them
    resumed: tuple[Resumption, ...] = ()  # its parts after the first, in order
    machine_id: str = ""  # which of its type; empty: not known
    variables: dict[str, str] | None = None  # of the shell, for frameworks; None: not known
    models: dict[str, str] = field(default_factory=dict)  # the user's, by name: as they are asked for
    implied_sizes: tuple[str, ...] = ()  # lines on sizes of a suite that was not named
    name_hashes: tuple[str, ...] = ()  # of its host and user, by which a shared copy leaves their names out

    @property
    def commit(self) -> str:
        """The commit of its checkout, `-dirty` at its end where that was changed; empty outside of one."""
        return self.tags.get("commit", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as read back. `damaged` names the lines that could not be read, or that are missing."""

    info: RunInfo
    records: tuple[Record, ...]
    damaged: tuple[str, ...] = ()
    ended: bool = True  # False: it was interrupted, or is still being measured
    unprofiled: dict[str, str] = field(default_factory=dict)  # case id → why it has no profile
    communication: dict[str, float] = field(default_factory=dict)  # case id → share of its profiled step
    idle: dict[str, float] = field(default_factory=dict)  # likewise, in which a pipeline's stage did nothing
